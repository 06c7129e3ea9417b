//! Describes common cron expressions in words. Others have no description, because a partial one would mislead.

/// For example "Monday to Friday at 06:00"; `None` if the expression has no short description.
pub(super) fn describe(cron: &str) -> Option<String> {
    let fields: Vec<&str> = cron.split_ascii_whitespace().collect();
    match fields[..] {
        ["@hourly"] => Some("every hour at minute 0".into()),
        ["@daily" | "@midnight"] => Some("every day at 00:00".into()),
        ["@weekly"] => Some("Sunday at 00:00".into()),
        ["@monthly"] => Some("on day 1 of the month at 00:00".into()),
        ["@yearly" | "@annually"] => Some("on 1 January at 00:00".into()),
        [second, "*", "*", "*", "*", "*"] if second != "0" => every(second, 60, "second"),
        ["0", ref rest @ ..] if rest.len() == 5 => of_five(rest),
        ref five if five.len() == 5 => of_five(five),
        _ => None,
    }
}

fn of_five(fields: &[&str]) -> Option<String> {
    let &[minute, hour, day, month, weekday] = fields else { return None };
    let days = match (day, month, weekday) {
        ("*", "*", "*") => String::new(),
        ("*", "*", weekday) => weekdays(weekday)?,
        (day, "*", "*") => format!("on day {} of the month", number(day, 1..=31)?),
        (day, month, "*") => format!("on {} {}", number(day, 1..=31)?, name(month, 1, &MONTHS)?),
        _ => return None,
    };
    match (minute, hour) {
        (minute, "*") if number(minute, 0..=59).is_none() => join(&days, &every(minute, 60, "minute")?),
        (minute, "*") => join(&days, &format!("every hour at minute {}", number(minute, 0..=59)?)),
        (minute, hour) if hour.starts_with("*/") => {
            join(&days, &format!("{} at minute {}", every(hour, 24, "hour")?, number(minute, 0..=59)?))
        }
        (minute, hours) => {
            let minute = number(minute, 0..=59)?;
            let hours = hours.split(',').map(|hour| number(hour, 0..=23));
            let times = hours.map(|hour| Some(format!("{:02}:{minute:02}", hour?))).collect::<Option<Vec<_>>>()?;
            let days = if days.is_empty() { "every day" } else { &days };
            join(days, &format!("at {}", listed(&times)))
        }
    }
}

fn join(days: &str, time: &str) -> Option<String> {
    Some(format!("{days} {time}").trim_start().to_owned())
}

/// `*`, or `*/n` if `n` divides the range evenly.
fn every(field: &str, of: u32, unit: &str) -> Option<String> {
    if field == "*" {
        return Some(format!("every {unit}"));
    }
    let step = number(field.strip_prefix("*/")?, 1..=of)?;
    match step {
        1 => Some(format!("every {unit}")),
        step if of.is_multiple_of(step) => Some(format!("every {step} {unit}s")),
        _ => None,
    }
}

fn number(text: &str, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && range.contains(number))
}

const WEEKDAYS: [&str; 8] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A name, given by number or by its first three letters.
fn name(text: &str, first: u32, names: &[&'static str]) -> Option<&'static str> {
    let last = first + names.len() as u32 - 1;
    match number(text, first..=last) {
        Some(number) => names.get((number - first) as usize).copied(),
        None => names.iter().copied().find(|name| name[..3].eq_ignore_ascii_case(text)),
    }
}

fn weekdays(field: &str) -> Option<String> {
    if let Some((from, to)) = field.split_once('-') {
        return Some(format!("{} to {}", name(from, 0, &WEEKDAYS)?, name(to, 0, &WEEKDAYS)?));
    }
    let names = field.split(',').map(|day| name(day, 0, &WEEKDAYS).map(str::to_owned)).collect::<Option<Vec<_>>>()?;
    Some(listed(&names))
}

/// "a", "a and b", "a, b and c".
fn listed(items: &[String]) -> String {
    match items {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        items => items.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_expressions_have_a_description() {
        let table = [
            ("* * * * *", "every minute"),
            ("*/5 * * * *", "every 5 minutes"),
            ("*/5 * * * 1-5", "Monday to Friday every 5 minutes"),
            ("15 * * * *", "every hour at minute 15"),
            ("0 */6 * * *", "every 6 hours at minute 0"),
            ("0 6 * * *", "every day at 06:00"),
            ("0 2,14 * * *", "every day at 02:00 and 14:00"),
            ("0 6 * * MON-FRI", "Monday to Friday at 06:00"),
            ("30 4 * * sun,3,6", "Sunday, Wednesday and Saturday at 04:30"),
            ("0 0 1 * *", "on day 1 of the month at 00:00"),
            ("0 9 29 2 *", "on 29 February at 09:00"),
            ("0 9 1 DEC *", "on 1 December at 09:00"),
            ("0 30 4 * * 7", "Sunday at 04:30"),
            ("*/10 * * * * *", "every 10 seconds"),
            ("@daily", "every day at 00:00"),
        ];
        for (cron, words) in table {
            assert_eq!(describe(cron).as_deref(), Some(words), "{cron}");
        }
    }

    #[test]
    fn uncommon_expressions_have_no_description() {
        let others = [
            "",
            "x",
            "@noon",
            "*/7 * * * *",
            "0 */5 * * *",
            "0-30/10 8-17 * * 1-5",
            "0 0 1 * 1",
            "0 0 L * *",
            "0 9 * * MON#1",
            "15 0 6 * * *",
            "0 24 * * *",
            "0 6 * * 8",
            "+5 * * * *",
            "0 6 1,15 * *",
            "0 6 * 8 *",
        ];
        for cron in others {
            assert_eq!(describe(cron), None, "{cron}");
        }
    }
}
