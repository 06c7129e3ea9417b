//! Transfers schedules from Windlass to the PostgreSQL extension pg_cron, and back.

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::schedule::{Rule, checked_id};
use crate::store::postgres::pg_cron as pg_cron_store;

/// The parts of a schedule that decide whether pg_cron can run it.
#[derive(Debug, Clone)]
pub(crate) struct PgCronSchedule {
    pub cron: String,
    pub timezone: String,
    pub title: Option<String>,
    pub payload: String,
    /// The time zone of pg_cron; `None` if pg_cron is not installed in this database.
    pub pg_cron_timezone: Option<String>,
}

const NOT_INSTALLED: &str = "pg_cron is not installed in this database: add it to shared_preload_libraries, set \
                             cron.database_name to this database, restart the server, and run CREATE EXTENSION pg_cron";

/// Placeholders that pg_cron cannot compute.
const UNSUPPORTED_PLACEHOLDERS: [&str; 2] = ["tick.previous", "tick.next"];

/// Names of UTC.
const UTC_NAMES: [&str; 10] =
    ["UTC", "GMT", "Etc/UTC", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal"];

const NICKNAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The smallest and largest number of a field, and names for the numbers from the smallest on.
type Field = (u8, u8, &'static [&'static str]);
const FIELDS: [Field; 5] = [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, MONTHS), (0, 7, DAYS)];

/// The cron expression for pg_cron, or an error that says why pg_cron cannot run the schedule.
pub(crate) fn expression(schedule: &PgCronSchedule) -> Result<String> {
    let Some(pg_cron_timezone) = &schedule.pg_cron_timezone else {
        return Err(Error::invalid("runner", NOT_INSTALLED));
    };
    if !same_zone(&schedule.timezone, pg_cron_timezone) {
        let problem = format!(
            "pg_cron uses {pg_cron_timezone} (its setting cron.timezone) and cannot run a schedule in {}",
            schedule.timezone
        );
        return Err(Error::invalid("timezone", problem));
    }
    check_template("payload", &schedule.payload)?;
    check_template("title", schedule.title.as_deref().unwrap_or_default())?;
    plain_expression(&schedule.cron)
}

fn same_zone(one: &str, other: &str) -> bool {
    let is_utc = |zone: &str| UTC_NAMES.iter().any(|name| name.eq_ignore_ascii_case(zone));
    one.eq_ignore_ascii_case(other) || (is_utc(one) && is_utc(other))
}

fn check_template(field: &'static str, template: &str) -> Result<()> {
    let mut names = template.split("}}").filter_map(|text| Some(text.rsplit_once("{{")?.1.trim_matches(' ')));
    match names.find(|name| UNSUPPORTED_PLACEHOLDERS.contains(name)) {
        Some(name) => Err(Error::invalid(
            field,
            format!("uses {{{{{name}}}}}, which is not available when pg_cron runs the schedule"),
        )),
        None => Ok(()),
    }
}

/// The expression, if pg_cron interprets it in the same way. pg_cron silently ignores syntax that it does not support.
fn plain_expression(cron: &str) -> Result<String> {
    let nickname = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(cron.trim()));
    let cron = nickname.map_or(cron, |(_, plain)| plain);
    let fields: Vec<&str> = cron.split_ascii_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let problem = format!("pg_cron does not support seconds: use 5 fields instead of {}", fields.len());
        return Err(Error::invalid("cron", problem));
    }
    if let Some((unsupported, _)) = fields.iter().zip(FIELDS).find(|(text, field)| !is_plain(text, *field)) {
        let problem =
            format!("'{unsupported}' is not supported by pg_cron: use numbers, names, lists, ranges a-b and steps */n");
        return Err(Error::invalid("cron", problem));
    }
    let (day, weekday) = (fields[2], fields[4]);
    let is_star_step = |field: &str| field != "*" && field.contains('*');
    if (is_star_step(day) && weekday != "*") || (is_star_step(weekday) && day != "*") {
        let problem =
            format!("'{day}' for the day together with '{weekday}' for the weekday has a different meaning in pg_cron");
        return Err(Error::invalid("cron", problem));
    }
    Ok(fields.join(" "))
}

fn is_plain(text: &str, field: Field) -> bool {
    text.split(',').all(|item| {
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        let is_valid_step = step.is_none_or(|step| digits(step).is_some_and(|step| step > 0));
        let is_range = match range.split_once('-') {
            _ if range == "*" => true,
            Some((from, to)) => number(from, field).is_some_and(|from| Some(from) <= number(to, field)),
            None => step.is_none() && number(range, field).is_some(),
        };
        is_valid_step && is_range
    })
}

fn number(text: &str, (min, max, names): Field) -> Option<u8> {
    let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let number = named.map_or_else(|| digits(text), |index| Some(min + index as u8));
    number.filter(|number| (min..=max).contains(number))
}

fn digits(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl Queue {
    /// Lets pg_cron fire a schedule instead of Windlass. This requires PostgreSQL with the pg_cron extension. From then
    /// on the schedule fires even if no Windlass process runs, and ticks that pg_cron misses are not backfilled.
    ///
    /// Fails if pg_cron would fire at other times (expressions with seconds or unsupported syntax, a different time
    /// zone), or if the schedule uses `{{tick.previous}}` or `{{tick.next}}`.
    pub async fn hand_to_pg_cron(&self, schedule_id: &str) -> Result<()> {
        let id = checked_id(schedule_id)?;
        self.topology().await?;
        let problem = "pg_cron requires PostgreSQL: on SQLite, Windlass runs all schedules";
        let store = self.store().postgres().ok_or_else(|| Error::invalid("runner", problem))?;
        let found = pg_cron_store::schedule(store, self.namespace(), &id, expression, self.now()).await?;
        if found { Ok(()) } else { Err(self.schedule_not_found(&id)) }
    }

    /// Lets Windlass fire a schedule again, from its next tick on. Does nothing if Windlass already fires it.
    pub async fn take_from_pg_cron(&self, schedule_id: &str) -> Result<()> {
        let id = checked_id(schedule_id)?;
        self.topology().await?;
        let Some(store) = self.store().postgres() else {
            return self.schedule(&id).await.map(drop);
        };
        if !pg_cron_store::unschedule(store, self.namespace(), &id, next_tick, self.now()).await? {
            return Err(self.schedule_not_found(&id));
        }
        self.core().schedules_changed.send_replace(());
        Ok(())
    }
}

fn next_tick(cron: &str, timezone: &str, now: Timestamp) -> Result<Option<Timestamp>> {
    Ok(Rule::parse(cron, timezone)?.after(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(cron: &str) -> PgCronSchedule {
        PgCronSchedule {
            cron: cron.into(),
            timezone: "UTC".into(),
            title: Some("{{tick.date}}".into()),
            payload: r#""{{tick.utc}}""#.into(),
            pg_cron_timezone: Some("GMT".into()),
        }
    }

    // C12
    #[test]
    fn expressions_with_the_same_meaning_are_accepted() {
        let table = [
            ("* * * * *", "* * * * *"),
            ("  */5  0-6/2 1,15 * *\t", "*/5 0-6/2 1,15 * *"),
            ("0 9 * * MON-fri", "0 9 * * MON-fri"),
            ("0 9 1 jan,JUL 0,7", "0 9 1 jan,JUL 0,7"),
            ("59 23 31 12 5-7", "59 23 31 12 5-7"),
            ("0 0 */2 * *", "0 0 */2 * *"),
            ("0 0 * * */2", "0 0 * * */2"),
            ("@hourly", "0 * * * *"),
            (" @Weekly", "0 0 * * 0"),
            ("@yearly", "0 0 1 1 *"),
        ];
        for (cron, expected) in table {
            assert_eq!(expression(&schedule(cron)).as_deref(), Ok(expected), "{cron}");
        }
    }

    // C12
    #[test]
    fn expressions_with_a_different_meaning_are_rejected() {
        let fields = ["0 * * * * *", "* * * *", "", "@reboot", "30 seconds"];
        let unsupported =
            ["5/15 * * * *", "0 0 L * *", "0 0 15W * *", "0 0 * * 5#2", "0 0 * * 5L", "0 0 ? * *", "*/0 * * * *"];
        let ranges =
            ["60 * * * *", "* 24 * * *", "0 0 0 * *", "0 22-2 * * *", "0 0 * * sat-sun", "1- * * * *", "0 0 * 0 *"];
        let texts = ["0 0 * monday *", "1,, * * * *", "+1 * * * *", "*5 * * * *", "0 0 * * 5 ; x", "**/2 * * * *"];
        let both = ["0 0 */2 * 1", "0 0 1 * */2", "0 0 1,*/3 * mon"];
        for cron in [&fields[..], &unsupported, &ranges, &texts, &both].concat() {
            let error = expression(&schedule(cron)).unwrap_err();
            assert!(
                error.to_string().starts_with("cron: ") && error.to_string().contains("pg_cron"),
                "{cron}: {error}"
            );
        }
    }

    // C12
    #[test]
    fn time_zone_must_be_that_of_pg_cron() {
        let table = [
            ("UTC", "GMT", true),
            ("Etc/UTC", "utc", true),
            ("Europe/Berlin", "Europe/Berlin", true),
            ("Europe/Berlin", "GMT", false),
            ("UTC", "Europe/London", false),
        ];
        for (windlass, pg_cron, same) in table {
            let schedule = PgCronSchedule {
                timezone: windlass.into(),
                pg_cron_timezone: Some(pg_cron.into()),
                ..schedule("* * * * *")
            };
            let checked = expression(&schedule).map_err(|error| error.to_string());
            assert_eq!(checked.is_ok(), same, "{windlass} {pg_cron} {checked:?}");
            assert!(same || checked.unwrap_err().starts_with(&format!("timezone: pg_cron uses {pg_cron} ")));
        }
    }

    // C12
    #[test]
    fn unsupported_placeholders_and_missing_pg_cron_are_rejected() {
        let payload =
            PgCronSchedule { payload: r#"["{{tick.utc}}", "{{ tick.next }}"]"#.into(), ..schedule("* * * * *") };
        let title = PgCronSchedule { title: Some("since {{tick.previous}}".into()), ..schedule("* * * * *") };
        let absent = PgCronSchedule { pg_cron_timezone: None, ..schedule("* * * * *") };
        for (schedule, expected) in [
            (payload, "payload: uses {{tick.next}}"),
            (title, "title: uses {{tick.previous}}"),
            (absent, "runner: pg_cron is not installed in this database"),
        ] {
            let error = expression(&schedule).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
