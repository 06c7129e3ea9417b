//! Who runs a schedule: Windlass itself, or pg_cron.

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::schedule::{Rule, checked_id};
use crate::store::postgres::hand_over;

/// A schedule, and the pg_cron that shall run it.
#[derive(Debug, Clone)]
pub(crate) struct HandOver {
    pub cron: String,
    pub timezone: String,
    pub title: Option<String>,
    pub payload: String,
    /// The time zone that pg_cron goes by; `None`: there is no pg_cron in this database.
    pub pg_cron_timezone: Option<String>,
}

const NOT_INSTALLED: &str = "pg_cron is not installed in this database: add it to shared_preload_libraries, set \
                             cron.database_name to this database, restart the server, and run CREATE EXTENSION pg_cron";

/// What only Windlass can say of a tick.
const BY_WINDLASS_ONLY: [&str; 2] = ["tick.previous", "tick.next"];

/// Names of the time zone that is nobody's.
const UTC: [&str; 10] =
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

/// The smallest and the largest number of a field, and the names for them, from the smallest on.
type Field = (u8, u8, &'static [&'static str]);
const FIELDS: [Field; 5] = [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, MONTHS), (0, 7, DAYS)];

/// What pg_cron is given for a schedule; an error says why it cannot run it.
pub(crate) fn expression(schedule: &HandOver) -> Result<String> {
    let Some(theirs) = &schedule.pg_cron_timezone else { return Err(Error::invalid("runner", NOT_INSTALLED)) };
    if !same_zone(&schedule.timezone, theirs) {
        let problem = format!(
            "pg_cron goes by {theirs} (its setting cron.timezone), and cannot run a schedule that goes by {}",
            schedule.timezone
        );
        return Err(Error::invalid("timezone", problem));
    }
    check_template("payload", &schedule.payload)?;
    check_template("title", schedule.title.as_deref().unwrap_or_default())?;
    plain_expression(&schedule.cron)
}

fn same_zone(one: &str, other: &str) -> bool {
    let is_utc = |zone: &str| UTC.iter().any(|name| name.eq_ignore_ascii_case(zone));
    one.eq_ignore_ascii_case(other) || (is_utc(one) && is_utc(other))
}

fn check_template(field: &'static str, template: &str) -> Result<()> {
    let mut names = template.split("}}").filter_map(|text| Some(text.rsplit_once("{{")?.1.trim_matches(' ')));
    match names.find(|name| BY_WINDLASS_ONLY.contains(name)) {
        Some(name) => {
            Err(Error::invalid(field, format!("uses {{{{{name}}}}}, which is not known where pg_cron runs it")))
        }
        None => Ok(()),
    }
}

/// The expression, if it is one of those that mean the same to pg_cron: it skips what it does not know.
fn plain_expression(cron: &str) -> Result<String> {
    let nickname = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(cron.trim()));
    let cron = nickname.map_or(cron, |(_, plain)| plain);
    let fields: Vec<&str> = cron.split_ascii_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let problem = format!("pg_cron knows no seconds: give 5 fields instead of {}", fields.len());
        return Err(Error::invalid("cron", problem));
    }
    if let Some((odd, _)) = fields.iter().zip(FIELDS).find(|(text, field)| !is_plain(text, *field)) {
        let problem =
            format!("'{odd}' is not the same to pg_cron: use numbers, names, lists, ranges a-b and steps */n");
        return Err(Error::invalid("cron", problem));
    }
    let (day, weekday) = (fields[2], fields[4]);
    let is_starred = |field: &str| field != "*" && field.contains('*');
    if (is_starred(day) && weekday != "*") || (is_starred(weekday) && day != "*") {
        let problem =
            format!("'{day}' for the day together with '{weekday}' for the weekday is not the same to pg_cron");
        return Err(Error::invalid("cron", problem));
    }
    Ok(fields.join(" "))
}

fn is_plain(text: &str, field: Field) -> bool {
    text.split(',').all(|item| {
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        let steps_well = step.is_none_or(|step| digits(step).is_some_and(|step| step > 0));
        let is_range = match range.split_once('-') {
            _ if range == "*" => true,
            Some((from, to)) => number(from, field).is_some_and(|from| Some(from) <= number(to, field)),
            None => step.is_none() && number(range, field).is_some(),
        };
        steps_well && is_range
    })
}

fn number(text: &str, (min, max, names): Field) -> Option<u8> {
    let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let number = named.map_or_else(|| digits(text), |place| Some(min + place as u8));
    number.filter(|number| (min..=max).contains(number))
}

fn digits(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl Queue {
    /// Has pg_cron run a schedule, instead of Windlass: on PostgreSQL, where that extension is installed. From then on
    /// its events come also while no process of Windlass runs, and ticks that pg_cron misses are not made up for.
    ///
    /// Refused is what pg_cron would run at other times: expressions with seconds or of a kind that it does not know,
    /// and time zones other than its own; and schedules that use `{{tick.previous}}` or `{{tick.next}}`.
    pub async fn hand_to_pg_cron(&self, schedule_id: &str) -> Result<()> {
        let id = checked_id(schedule_id)?;
        self.topology().await?;
        let problem = "pg_cron is a part of PostgreSQL: on SQLite, Windlass runs all schedules";
        let store = self.store().postgres().ok_or_else(|| Error::invalid("runner", problem))?;
        let handed = hand_over::hand(store, self.namespace(), &id, expression, self.now()).await?;
        if handed { Ok(()) } else { Err(self.no_schedule(&id)) }
    }

    /// Has Windlass run a schedule again, from the next tick on. One that it runs is left as it is.
    pub async fn take_from_pg_cron(&self, schedule_id: &str) -> Result<()> {
        let id = checked_id(schedule_id)?;
        self.topology().await?;
        let Some(store) = self.store().postgres() else {
            return self.schedule(&id).await.map(drop);
        };
        if !hand_over::take(store, self.namespace(), &id, next_tick, self.now()).await? {
            return Err(self.no_schedule(&id));
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

    fn schedule(cron: &str) -> HandOver {
        HandOver {
            cron: cron.into(),
            timezone: "UTC".into(),
            title: Some("{{tick.date}}".into()),
            payload: r#""{{tick.utc}}""#.into(),
            pg_cron_timezone: Some("GMT".into()),
        }
    }

    // C12
    #[test]
    fn expressions_that_mean_the_same_to_pg_cron_are_handed_over() {
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
    fn expressions_that_pg_cron_would_take_for_others_are_refused() {
        let fields = ["0 * * * * *", "* * * *", "", "@reboot", "30 seconds"];
        let odd = ["5/15 * * * *", "0 0 L * *", "0 0 15W * *", "0 0 * * 5#2", "0 0 * * 5L", "0 0 ? * *", "*/0 * * * *"];
        let ranges =
            ["60 * * * *", "* 24 * * *", "0 0 0 * *", "0 22-2 * * *", "0 0 * * sat-sun", "1- * * * *", "0 0 * 0 *"];
        let texts = ["0 0 * monday *", "1,, * * * *", "+1 * * * *", "*5 * * * *", "0 0 * * 5 ; x", "**/2 * * * *"];
        let both = ["0 0 */2 * 1", "0 0 1 * */2", "0 0 1,*/3 * mon"];
        for cron in [&fields[..], &odd, &ranges, &texts, &both].concat() {
            let error = expression(&schedule(cron)).unwrap_err();
            assert!(
                error.to_string().starts_with("cron: ") && error.to_string().contains("pg_cron"),
                "{cron}: {error}"
            );
        }
    }

    // C12
    #[test]
    fn a_time_zone_must_be_that_of_pg_cron() {
        let table = [
            ("UTC", "GMT", true),
            ("Etc/UTC", "utc", true),
            ("Europe/Berlin", "Europe/Berlin", true),
            ("Europe/Berlin", "GMT", false),
            ("UTC", "Europe/London", false),
        ];
        for (ours, theirs, same) in table {
            let schedule =
                HandOver { timezone: ours.into(), pg_cron_timezone: Some(theirs.into()), ..schedule("* * * * *") };
            let said = expression(&schedule).map_err(|error| error.to_string());
            assert_eq!(said.is_ok(), same, "{ours} {theirs} {said:?}");
            assert!(same || said.unwrap_err().starts_with(&format!("timezone: pg_cron goes by {theirs} ")));
        }
    }

    // C12
    #[test]
    fn what_pg_cron_cannot_know_is_not_asked_of_it() {
        let payload = HandOver { payload: r#"["{{tick.utc}}", "{{ tick.next }}"]"#.into(), ..schedule("* * * * *") };
        let title = HandOver { title: Some("since {{tick.previous}}".into()), ..schedule("* * * * *") };
        let absent = HandOver { pg_cron_timezone: None, ..schedule("* * * * *") };
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
