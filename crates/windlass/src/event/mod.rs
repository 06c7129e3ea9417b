//! Events: [`NewEvent`] to publish, with its validation, and [`Event`] as stored.
//!
//! Deliveries and leases are in [`delivery`], the rules for names in [`names`]. Publishing is in `queue`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::{DURATION_MAX, Timestamp};
use crate::error::{Error, Result};
use crate::policy::limits::Limits;

pub(crate) mod delivery;
pub(crate) mod names;
pub(crate) mod typed;

/// An event to publish.
///
/// ```
/// use windlass::NewEvent;
///
/// let event = NewEvent::new("user.created")
///     .payload(&serde_json::json!({ "user_id": 42 }))?
///     .tags(["email"])
///     .group("user-42");
/// # Ok::<(), windlass::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub(crate) event_type: String,
    pub(crate) title: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) tags: String,
    pub(crate) payload: Box<RawValue>,
    pub(crate) run_at: Option<Timestamp>,
    pub(crate) delay: Option<Duration>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) expires_in: Option<Duration>,
    pub(crate) group_id: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) priority: i16,
    pub(crate) max_retries: Option<u32>,
    pub(crate) metadata: Option<Box<RawValue>>,
    pub(crate) producer: Option<String>,
    /// The schedule that publishes it.
    pub(crate) scheduled_task_id: Option<String>,
}

/// Whether two events with the same key have the same type and payload, so that the second is a repeated publish.
#[cfg(feature = "postgres")]
pub(crate) fn same_contents(one: &NewEvent, other: &NewEvent) -> bool {
    one.event_type == other.event_type && same_json(one.payload.get(), other.payload.get())
}

/// Whether two JSON texts have the same value, regardless of white space and key order.
pub(crate) fn same_json(one: &str, other: &str) -> bool {
    let value = |json: &str| serde_json::from_str::<serde_json::Value>(json);
    one == other || matches!((value(one), value(other)), (Ok(one), Ok(other)) if one == other)
}

impl NewEvent {
    /// An event of this type, with the payload `null`, ready immediately.
    pub fn new(event_type: impl Into<String>) -> NewEvent {
        NewEvent {
            event_type: event_type.into(),
            title: None,
            description: None,
            tags: String::new(),
            payload: RawValue::NULL.to_owned(),
            run_at: None,
            delay: None,
            expires_at: None,
            expires_in: None,
            group_id: None,
            key: None,
            priority: 0,
            max_retries: None,
            metadata: None,
            producer: None,
            scheduled_task_id: None,
        }
    }

    /// The payload, serialized to JSON.
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Result<NewEvent> {
        self.payload = to_raw("payload", payload)?;
        Ok(self)
    }

    /// The payload as JSON text, which is stored unchanged.
    pub fn payload_raw(mut self, payload: Box<RawValue>) -> NewEvent {
        self.payload = payload;
        self
    }

    /// A one-line description for people.
    pub fn title(mut self, title: impl Into<String>) -> NewEvent {
        self.title = Some(title.into());
        self
    }

    /// A longer description for people.
    pub fn description(mut self, description: impl Into<String>) -> NewEvent {
        self.description = Some(description.into());
        self
    }

    /// Tags, by which subscriptions and claims can filter.
    pub fn tags<T: AsRef<str>>(mut self, tags: impl IntoIterator<Item = T>) -> NewEvent {
        let tags: Vec<T> = tags.into_iter().collect();
        self.tags = tags.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(",");
        self
    }

    /// Tags as one comma-separated text, which is stored unchanged.
    pub fn tags_text(mut self, tags: impl Into<String>) -> NewEvent {
        self.tags = tags.into();
        self
    }

    /// The event is not delivered before this time.
    pub fn run_at(mut self, run_at: Timestamp) -> NewEvent {
        self.run_at = Some(run_at);
        self
    }

    /// The event is not delivered before this much time has passed.
    pub fn delay(mut self, delay: Duration) -> NewEvent {
        self.delay = Some(delay);
        self
    }

    /// The deadline: a delivery that is not started before it becomes EXPIRED.
    pub fn expires_at(mut self, expires_at: Timestamp) -> NewEvent {
        self.expires_at = Some(expires_at);
        self
    }

    /// The deadline, relative to the time at which the event can first be delivered.
    pub fn expires_in(mut self, expires_in: Duration) -> NewEvent {
        self.expires_in = Some(expires_in);
        self
    }

    /// The group: its events are handled one at a time, in publish order.
    pub fn group(mut self, group_id: impl Into<String>) -> NewEvent {
        self.group_id = Some(group_id.into());
        self
    }

    /// The deduplication key. Publishing the same key again within the policy's window stores nothing.
    pub fn key(mut self, key: impl Into<String>) -> NewEvent {
        self.key = Some(key.into());
        self
    }

    /// The priority: higher is delivered first; 0 by default.
    pub fn priority(mut self, priority: i16) -> NewEvent {
        self.priority = priority;
        self
    }

    /// A delivery is not retried when its `retry_count` reaches this number. Overrides the policy.
    pub fn max_retries(mut self, max_retries: u32) -> NewEvent {
        self.max_retries = Some(max_retries);
        self
    }

    /// Metadata that is delivered with the event: a JSON object, such as a trace context.
    pub fn metadata<T: Serialize + ?Sized>(mut self, metadata: &T) -> Result<NewEvent> {
        self.metadata = Some(to_raw("metadata", metadata)?);
        Ok(self)
    }

    /// The publisher, such as a node's id.
    pub fn producer(mut self, producer: impl Into<String>) -> NewEvent {
        self.producer = Some(producer.into());
        self
    }

    /// Validates the event. The error names the field and its limit.
    pub(crate) fn check(&self, limits: &Limits, now: Timestamp) -> Result<()> {
        names::check_type("type", &self.event_type)?;
        if let Some(title) = &self.title {
            names::check_text("title", title, limits.title_bytes_max)?;
        }
        if let Some(description) = &self.description {
            names::check_text("description", description, limits.description_bytes_max)?;
        }
        tag_set("tags", &self.tags, limits)?;
        check_json("payload", self.payload.get(), limits.payload_bytes_max, limits)?;
        if let Some(metadata) = &self.metadata {
            check_json("metadata", metadata.get(), limits.metadata_bytes_max, limits)?;
            if !metadata.get().starts_with('{') {
                return Err(Error::invalid("metadata", "must be a JSON object"));
            }
        }
        for (field, name) in [("group_id", &self.group_id), ("key", &self.key), ("producer", &self.producer)] {
            if let Some(name) = name {
                names::check(field, name)?;
            }
        }
        if self.max_retries.is_some_and(|n| n > MAX_RETRIES_MAX) {
            return Err(Error::invalid("max_retries", format!("must be at most {MAX_RETRIES_MAX}")));
        }
        self.check_times(now)
    }

    fn check_times(&self, now: Timestamp) -> Result<()> {
        if self.run_at.is_some() && self.delay.is_some() {
            return Err(Error::invalid("delay_ms", "give either run_at or a delay, not both"));
        }
        if self.delay.is_some_and(|delay| delay > DURATION_MAX) {
            return Err(Error::invalid("delay_ms", "must be at most 100 years"));
        }
        if self.expires_at.is_some() && self.expires_in.is_some() {
            return Err(Error::invalid("expires_in_ms", "give either expires_at or expires_in_ms, not both"));
        }
        check_expires_in("expires_in_ms", self.expires_in)?;
        for (field, at) in [("run_at", self.run_at), ("expires_at", self.expires_at)] {
            if at.is_some_and(|at| (at - now).abs() > chrono::TimeDelta::days(36_600)) {
                return Err(Error::invalid(field, "must be within 100 years from now"));
            }
        }
        let Some(expires_at) = self.expires_at else { return Ok(()) };
        let starts_at = self.run_at.or_else(|| self.delay.map(|delay| crate::clock::after(now, delay)));
        if starts_at.is_some_and(|starts_at| starts_at >= expires_at) {
            return Err(Error::invalid("expires_at", "must be after run_at: the event could never start"));
        }
        Ok(())
    }
}

/// Checks a relative deadline. It must not be zero, because then the event could never start.
pub(crate) fn check_expires_in(field: &'static str, expires_in: Option<Duration>) -> Result<()> {
    if expires_in.is_some_and(|expires_in| expires_in.as_millis() == 0 || expires_in > DURATION_MAX) {
        return Err(Error::invalid(field, "must be at least 1 ms and at most 100 years"));
    }
    Ok(())
}

/// The largest `max_retries`.
pub(crate) const MAX_RETRIES_MAX: u32 = 10_000;

pub(crate) fn to_raw<T: Serialize + ?Sized>(field: &'static str, value: &T) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(value).map_err(|error| Error::invalid(field, error.to_string()))
}

pub(crate) fn check_json(field: &'static str, json: &str, max: usize, limits: &Limits) -> Result<()> {
    if json.len() > max {
        return Err(Error::TooLarge { field, size: json.len(), max });
    }
    let (depth, decodable) = scan_json(json);
    if depth > limits.payload_depth_max {
        return Err(Error::invalid(field, format!("must not nest deeper than {}", limits.payload_depth_max)));
    }
    if !decodable {
        return Err(Error::invalid(field, "has a \\u escape that is half of a character: a lone surrogate"));
    }
    Ok(())
}

/// The nesting depth of valid JSON, and whether its strings are valid Unicode. Does not allocate.
fn scan_json(json: &str) -> (usize, bool) {
    let bytes = json.as_bytes();
    let (mut depth, mut deepest, mut in_string, mut decodable, mut at) = (0usize, 0usize, false, true, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if bytes.get(at + 1) == Some(&b'u') => match code_unit(&bytes[at..]) {
                0xd800..0xdc00 if matches!(code_unit(bytes.get(at + 6..).unwrap_or_default()), 0xdc00..0xe000) => {
                    at += 11
                }
                0xd800..0xe000 => (decodable, at) = (false, at + 5),
                _ => at += 5,
            },
            b'\\' => at += 1,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    (deepest, decodable)
}

/// The code unit of a `\uXXXX` at the beginning; 0 if there is none.
fn code_unit(bytes: &[u8]) -> u32 {
    let Some([b'\\', b'u', digits @ ..]) = bytes.get(..6) else { return 0 };
    let digits = digits.iter().map(|digit| char::from(*digit).to_digit(16));
    digits.fold(0, |number, digit| number * 16 + digit.unwrap_or(0))
}

/// The distinct tags of a comma-separated text, trimmed and sorted.
pub(crate) fn tag_set(field: &'static str, tags: &str, limits: &Limits) -> Result<Vec<String>> {
    names::check_text(field, tags, limits.tags_bytes_max)?;
    let trim = |text: &'_ str| text.trim_matches(|c: char| c.is_ascii_whitespace()).to_owned();
    if trim(tags).is_empty() {
        return Ok(Vec::new());
    }
    let set: BTreeSet<String> = tags.split(',').map(trim).collect();
    if set.len() > limits.tags_max {
        return Err(Error::invalid(field, format!("has {} tags; the limit is {}", set.len(), limits.tags_max)));
    }
    for tag in &set {
        names::check(field, tag)?;
    }
    Ok(set.into_iter().collect())
}

/// A stored event, which never changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// The id: unique across all namespaces, and larger for events that are published later.
    pub id: i64,
    /// The event's namespace.
    pub namespace: String,
    /// The event type, by which events are routed.
    #[serde(rename = "type")]
    pub event_type: String,
    /// A one-line description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A longer description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The tags, comma-separated, as published.
    pub tags: String,
    /// The payload: JSON, exactly as published.
    pub payload: Box<RawValue>,
    /// The group, whose events are handled one at a time and in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// The deduplication key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The priority: higher is delivered first.
    pub priority: i16,
    /// The publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The id of the schedule that published it: a UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_task_id: Option<String>,
    /// The event is not delivered before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The deadline: a delivery that is not started before it becomes EXPIRED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Metadata that is delivered with the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<RawValue>>,
    /// When it was published.
    pub created_at: Timestamp,
}

impl Event {
    /// The payload as a Rust value.
    pub fn payload<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_str(self.payload.get()).map_err(|error| Error::invalid("payload", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_nesting_outside_strings() {
        assert_eq!(scan_json("1").0, 0);
        assert_eq!(scan_json(r#"{"a":[1,{"b":[]}]}"#).0, 4);
        assert_eq!(scan_json(r#"["[[[\"[["]"#).0, 1);
    }

    #[test]
    fn lone_surrogate_is_detected() {
        for valid in [r#""\u0041\ud83d\ude00x""#, r#""\\ud800""#, r#""\n""#, "1"] {
            assert!(scan_json(valid).1, "{valid}");
        }
        for invalid in [r#""\ud800""#, r#"{"\udc00":1}"#, r#""\ud800\ud800""#, r#""\ud83dx\ude00""#] {
            assert!(!scan_json(invalid).1, "{invalid}");
        }
    }

    #[test]
    fn tags_are_trimmed_sorted_and_deduplicated() {
        let limits = Limits::default();
        assert_eq!(tag_set("tags", "b, a,b", &limits).unwrap(), ["a", "b"]);
        assert!(tag_set("tags", "", &limits).unwrap().is_empty());
        assert!(tag_set("tags", "a,,b", &limits).is_err());
        let many = (0..33).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(tag_set("tags", &many, &limits).unwrap_err().to_string(), "tags: has 33 tags; the limit is 32");
    }

    #[test]
    fn validation_error_names_the_field() {
        let (limits, now) = (Limits::default(), "2025-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let hour = chrono::TimeDelta::hours(1);
        let text = |text: &str| serde_json::value::to_raw_value(text).unwrap();
        let cases = [
            ("type", NewEvent::new("")),
            ("type", NewEvent::new("a\u{7}b")),
            ("type", NewEvent::new("x".repeat(201))),
            ("title", NewEvent::new("t").title("x".repeat(1_001))),
            ("description", NewEvent::new("t").description("a\0b")),
            ("tags", NewEvent::new("t").tags(["a\tb"])),
            ("payload", NewEvent::new("t").payload_raw(text(&"x".repeat(1 << 20)))),
            ("metadata", NewEvent::new("t").metadata(&1).unwrap()),
            ("group_id", NewEvent::new("t").group("")),
            ("key", NewEvent::new("t").key("k".repeat(201))),
            ("max_retries", NewEvent::new("t").max_retries(10_001)),
            ("expires_at", NewEvent::new("t").run_at(now + hour).expires_at(now + hour)),
            ("delay_ms", NewEvent::new("t").run_at(now).delay(Duration::from_secs(1))),
            ("delay_ms", NewEvent::new("t").delay(Duration::MAX)),
        ];
        for (field, event) in cases {
            let error = event.check(&limits, now).unwrap_err();
            assert!(error.to_string().starts_with(field), "{field}: {error}");
        }
    }
}
