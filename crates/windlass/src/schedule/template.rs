//! Values of a tick in a schedule's event: `{{tick.date}}` and the like, in its payload and title.

use std::borrow::Cow;

use chrono::SecondsFormat::Secs;
use serde_json::value::RawValue;

use super::cron::Rule;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::NewEvent;

/// All names there are.
const NAMES: [&str; 9] = [
    "tick.utc",
    "tick.local",
    "tick.date",
    "tick.time",
    "tick.unix",
    "tick.previous",
    "tick.next",
    "schedule.name",
    "schedule.id",
];

/// What the names stand for at one tick.
pub(crate) struct Values<'a> {
    pub rule: &'a Rule,
    pub tick: Timestamp,
    pub schedule_id: &'a str,
    pub name: &'a str,
}

impl Values<'_> {
    fn get(&self, name: &str) -> String {
        let (local, utc) = (self.rule.local(self.tick), |at: Timestamp| at.to_rfc3339_opts(Secs, true));
        match name {
            "tick.utc" => utc(self.tick),
            "tick.local" => local.to_rfc3339_opts(Secs, false),
            "tick.date" => local.format("%Y-%m-%d").to_string(),
            "tick.time" => local.format("%H:%M:%S").to_string(),
            "tick.unix" => self.tick.timestamp().to_string(),
            "tick.previous" => self.rule.before(self.tick).map(utc).unwrap_or_default(),
            "tick.next" => self.rule.after(self.tick).map(utc).unwrap_or_default(),
            "schedule.name" => self.name.to_owned(),
            _ => self.schedule_id.to_owned(),
        }
    }
}

/// Refuses names that look like ours and are not.
pub(crate) fn check(event: &NewEvent) -> Result<()> {
    for (field, text) in [("payload", Some(event.payload.get())), ("title", event.title.as_deref())] {
        if let Some(unknown) = text.and_then(|text| places(text).find(|place| !NAMES.contains(&place.name))) {
            let problem = format!("has no value {{{{{}}}}}; there are {}", unknown.name, NAMES.join(", "));
            return Err(Error::invalid(field, problem));
        }
    }
    Ok(())
}

/// Puts the values in. Inside JSON, names can only stand in strings, so the text need not be parsed.
pub(crate) fn fill(event: &mut NewEvent, values: &Values) -> Result<()> {
    if let Cow::Owned(payload) = filled(event.payload.get(), |name| in_json(&values.get(name))) {
        let parsed = RawValue::from_string(payload);
        event.payload = parsed.map_err(|error| Error::invalid("payload", error.to_string()))?;
    }
    if let Some(title) = &event.title
        && let Cow::Owned(title) = filled(title, |name| values.get(name))
    {
        event.title = Some(title);
    }
    Ok(())
}

/// As it stands between the quotes of a JSON string.
fn in_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn filled(text: &str, value: impl Fn(&str) -> String) -> Cow<'_, str> {
    let (mut filled, mut copied) = (String::new(), 0);
    for place in places(text).filter(|place| NAMES.contains(&place.name)) {
        filled.push_str(&text[copied..place.begin]);
        filled.push_str(&value(place.name));
        copied = place.end;
    }
    if copied == 0 {
        return text.into();
    }
    filled.push_str(&text[copied..]);
    filled.into()
}

/// A `{{name}}` in a text.
struct Place<'a> {
    name: &'a str,
    begin: usize,
    end: usize,
}

/// Every `{{…}}` whose name begins as ours do; others mean something to somebody else.
fn places(text: &str) -> impl Iterator<Item = Place<'_>> {
    text.match_indices("}}").filter_map(|(close, _)| {
        let from = close.saturating_sub(NAME_BYTES_MAX);
        let open = from + text.as_bytes()[from..close].windows(2).rposition(|two| two == b"{{")?;
        let name = text[open + 2..close].trim_matches(' ');
        let ours = name.starts_with("tick.") || name.starts_with("schedule.");
        (ours && !name.contains("}}")).then_some(Place { name, begin: open, end: close + 2 })
    })
}

/// What is longer is no name of ours: nobody has to look for its beginning.
const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_at(tick: &str, event: NewEvent) -> NewEvent {
        let rule = Rule::parse("30 2 * * *", "Europe/Berlin").unwrap();
        let values = Values { rule: &rule, tick: tick.parse().unwrap(), schedule_id: "id-1", name: "a \"b\" \\ ü" };
        check(&event).unwrap();
        let mut event = event;
        fill(&mut event, &values).unwrap();
        event
    }

    fn payload(tick: &str, text: &str) -> String {
        fill_at(tick, NewEvent::new("t").payload_raw(RawValue::from_string(text.to_owned()).unwrap()))
            .payload
            .get()
            .to_owned()
    }

    #[test]
    fn each_name_has_its_value() {
        let tick = "2026-07-01T00:30:00Z";
        let table = [
            ("{{tick.utc}}", "2026-07-01T00:30:00Z"),
            ("{{tick.local}}", "2026-07-01T02:30:00+02:00"),
            ("{{tick.date}}", "2026-07-01"),
            ("{{tick.time}}", "02:30:00"),
            ("{{tick.unix}}", "1782865800"),
            ("{{tick.previous}}", "2026-06-30T00:30:00Z"),
            ("{{tick.next}}", "2026-07-02T00:30:00Z"),
            ("{{schedule.id}}", "id-1"),
            ("{{schedule.name}}", r#"a \"b\" \\ ü"#),
            ("a {{ tick.date }} b {{tick.time}}", "a 2026-07-01 b 02:30:00"),
            ("{{{{tick.date}}}}", "{{2026-07-01}}"),
            ("{{other.name}} {{ tick }} {{tick.date", "{{other.name}} {{ tick }} {{tick.date"),
            ("}} {{x}} {{tick.unix}}", "}} {{x}} 1782865800"),
        ];
        for (given, expected) in table {
            assert_eq!(payload(tick, &format!("\"{given}\"")), format!("\"{expected}\""), "{given}");
        }
        // The local day is not UTC's.
        assert_eq!(payload("2026-07-01T22:30:00Z", r#"["{{tick.date}}"]"#), r#"["2026-07-02"]"#);
        // Nested objects close like names do.
        let nested = r#"{"{{tick.date}}":{"a":{"b":"{{tick.unix}}"}},"c":{"d":{}}}"#;
        assert_eq!(payload(tick, nested), r#"{"2026-07-01":{"a":{"b":"1782865800"}},"c":{"d":{}}}"#);
        let titled = fill_at(tick, NewEvent::new("t").title("{{schedule.name}} of {{tick.date}}"));
        assert_eq!(titled.title.as_deref(), Some("a \"b\" \\ ü of 2026-07-01"));
        assert_eq!(
            fill_at(tick, NewEvent::new("t").description("{{tick.date}}")).description.as_deref(),
            Some("{{tick.date}}")
        );
    }

    #[test]
    fn unknown_names_are_refused() {
        for (field, event) in [
            ("payload", NewEvent::new("t").payload("at {{tick.hour}}").unwrap()),
            ("payload", NewEvent::new("t").payload(&serde_json::json!({ "{{ schedule.cron }}": 1 })).unwrap()),
            ("title", NewEvent::new("t").title("{{tick.}}")),
        ] {
            let error = check(&event).unwrap_err().to_string();
            assert!(error.starts_with(field) && error.contains("there are tick.utc, "), "{error}");
        }
    }
}
