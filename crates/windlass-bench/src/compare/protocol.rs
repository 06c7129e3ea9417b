//! The protocol between the driver and the adapter of a system: one JSON object per line.

use serde::{Deserialize, Serialize};

/// How a system is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Configured as its documentation recommends, with about ten handlers at a time.
    Recommended,
    /// The best known configuration for draining a backlog.
    Tuned,
    /// Windlass only: claim and finish in batches, without a node.
    Loops,
}

impl Variant {
    pub fn name(self) -> &'static str {
        match self {
            Variant::Recommended => "recommended",
            Variant::Tuned => "tuned",
            Variant::Loops => "loops",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Connects to an empty database or server and creates the schema.
    Open(Open),
    /// Publishes with concurrent callers; each waits for the acknowledgement of its call before the next.
    Publish(Publish),
    /// Runs workers with a handler that does nothing, until this many events are finished.
    Drain(Drain),
    /// Publishes on a fixed schedule and measures from just before each call to the start of the handler.
    Latency(Latency),
    /// Runs publishers and workers concurrently.
    Steady(Steady),
    Close,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    pub url: String,
    pub variant: Variant,
    /// Only sent to Windlass, like the tag sets and groups below: other systems do not support them.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub subscriptions: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Publish {
    pub events: usize,
    pub callers: usize,
    pub batch: usize,
    pub bytes: usize,
    /// 0 for no tags.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tag_sets: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
    /// 0 for no groups.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub groups: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    pub events: usize,
    /// The percentage of events that fail at their first attempt.
    #[serde(default)]
    pub fail_percent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub per_second: u64,
    pub seconds: u64,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    pub seconds: u64,
    pub batch: usize,
    pub publishers: usize,
    pub bytes: usize,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer<T> {
    Ok(T),
    Unsupported(String),
    Error(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    pub version: String,
    /// How the system is set up and what it stores, in one line.
    pub about: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Elapsed {
    pub seconds: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Delays {
    pub micros: Vec<u64>,
}

/// Counts per second.
#[derive(Debug, Serialize, Deserialize)]
pub struct PerSecondCounts {
    pub finished: Vec<u64>,
    pub published: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Closed {}

fn one() -> usize {
    1
}

fn is_one(n: &usize) -> bool {
    *n == 1
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_tagged_objects() {
        let drain = Request::Drain(Drain { events: 10, fail_percent: 0 });
        assert_eq!(serde_json::to_string(&drain).unwrap(), r#"{"do":"drain","events":10,"fail_percent":0}"#);
        let open = r#"{"do":"open","url":"sqlite://a","variant":"tuned"}"#;
        let expected = Open { url: "sqlite://a".into(), variant: Variant::Tuned, subscriptions: 1 };
        assert_eq!(serde_json::from_str::<Request>(open).unwrap(), Request::Open(expected));
        let publish = Publish { events: 5, callers: 1, batch: 1, bytes: 200, tag_sets: 0, mixed: false, groups: 3 };
        let text = r#"{"do":"publish","events":5,"callers":1,"batch":1,"bytes":200,"groups":3}"#;
        assert_eq!(serde_json::to_string(&Request::Publish(publish)).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(r#"{"do":"close"}"#).unwrap(), Request::Close);
    }

    #[test]
    fn answers_are_tagged_by_result() {
        let answer = |text| serde_json::from_str::<Answer<Elapsed>>(text).unwrap();
        assert!(matches!(answer(r#"{"ok":{"seconds":1.5}}"#), Answer::Ok(took) if took.seconds == 1.5));
        assert!(matches!(answer(r#"{"unsupported":"no groups"}"#), Answer::Unsupported(why) if why == "no groups"));
        assert!(matches!(answer(r#"{"error":"gone"}"#), Answer::Error(text) if text == "gone"));
    }
}
