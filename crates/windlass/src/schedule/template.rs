//! Placeholders such as `{{tick.date}}` in the payload and title of a schedule's event.

use std::borrow::Cow;

use chrono::SecondsFormat::Secs;
use serde_json::value::RawValue;

use super::cron::Rule;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::NewEvent;

/// All placeholder names.
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

/// The values of the placeholders at one tick.
pub(crate) struct TickValues<'a> {
    pub rule: &'a Rule,
    pub tick: Timestamp,
    pub schedule_id: &'a str,
    pub name: &'a str,
}

impl TickValues<'_> {
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

/// Rejects unknown placeholder names that start with `tick.` or `schedule.`.
pub(crate) fn check(event: &NewEvent) -> Result<()> {
    for (field, text) in [("payload", Some(event.payload.get())), ("title", event.title.as_deref())] {
        if let Some(unknown) = text.and_then(|text| placeholders(text).find(|found| !NAMES.contains(&found.name))) {
            let problem =
                format!("has the unknown placeholder {{{{{}}}}}; use one of {}", unknown.name, NAMES.join(", "));
            return Err(Error::invalid(field, problem));
        }
    }
    Ok(())
}

/// Replaces the placeholders. In JSON they can only occur inside strings, so the payload is not parsed.
pub(crate) fn fill(event: &mut NewEvent, values: &TickValues) -> Result<()> {
    if let Cow::Owned(payload) = filled(event.payload.get(), |name| escape_json(&values.get(name))) {
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

/// Escapes a text for the inside of a JSON string.
fn escape_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn filled(text: &str, value: impl Fn(&str) -> String) -> Cow<'_, str> {
    let (mut filled, mut copied) = (String::new(), 0);
    for found in placeholders(text).filter(|found| NAMES.contains(&found.name)) {
        filled.push_str(&text[copied..found.start]);
        filled.push_str(&value(found.name));
        copied = found.end;
    }
    if copied == 0 {
        return text.into();
    }
    filled.push_str(&text[copied..]);
    filled.into()
}

/// A `{{name}}` in a text.
struct Placeholder<'a> {
    name: &'a str,
    start: usize,
    end: usize,
}

/// Every `{{…}}` whose name starts with `tick.` or `schedule.`. Others belong to other template languages.
fn placeholders(text: &str) -> impl Iterator<Item = Placeholder<'_>> {
    text.match_indices("}}").filter_map(|(close, _)| {
        let from = close.saturating_sub(NAME_BYTES_MAX);
        let open = from + text.as_bytes()[from..close].windows(2).rposition(|two| two == b"{{")?;
        let name = text[open + 2..close].trim_matches(' ');
        let has_prefix = name.starts_with("tick.") || name.starts_with("schedule.");
        (has_prefix && !name.contains("}}")).then_some(Placeholder { name, start: open, end: close + 2 })
    })
}

/// Longer names cannot be placeholders. The limit bounds the search for the opening braces.
const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_at(tick: &str, event: NewEvent) -> NewEvent {
        let rule = Rule::parse("30 2 * * *", "Europe/Berlin").unwrap();
        let values =
            TickValues { rule: &rule, tick: tick.parse().unwrap(), schedule_id: "id-1", name: "a \"b\" \\ ü" };
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
    fn placeholders_are_replaced() {
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
        // The closing braces of nested objects are not placeholders.
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
    fn unknown_placeholders_are_rejected() {
        for (field, event) in [
            ("payload", NewEvent::new("t").payload("at {{tick.hour}}").unwrap()),
            ("payload", NewEvent::new("t").payload(&serde_json::json!({ "{{ schedule.cron }}": 1 })).unwrap()),
            ("title", NewEvent::new("t").title("{{tick.}}")),
        ] {
            let error = check(&event).unwrap_err().to_string();
            assert!(error.starts_with(field) && error.contains("use one of tick.utc, "), "{error}");
        }
    }
}
