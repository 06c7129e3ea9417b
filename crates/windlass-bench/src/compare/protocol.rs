//! What the driver asks of the adapter of a system, one JSON object a line, and what it is answered.

use serde::{Deserialize, Serialize};

/// How a system is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// As its documentation says, with about ten handlers at once.
    Recommended,
    /// The best configuration we know for draining a backlog.
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
    /// Connects to an empty database or server, and makes the schema.
    Open(Open),
    /// So many concurrent callers, each waiting for the acknowledgement of its call before the next.
    Publish(Publish),
    /// Workers with a handler that does nothing, until so many are finished.
    Drain(Drain),
    /// From just before each call to the start of the handler, on a fixed schedule.
    Latency(Latency),
    /// Publishers and workers at once.
    Steady(Steady),
    Close,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    pub url: String,
    pub variant: Variant,
    /// For Windlass only, as the tag sets and groups below: others are not asked for what they do not know.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub subscriptions: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Publish {
    pub events: usize,
    pub callers: usize,
    pub batch: usize,
    pub bytes: usize,
    /// 0: no tags.
    #[serde(default, skip_serializing_if = "is_none")]
    pub tag_sets: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
    /// 0: no groups.
    #[serde(default, skip_serializing_if = "is_none")]
    pub groups: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    pub events: usize,
    /// So many of 100 fail at their first attempt.
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

/// To every request.
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
    /// How it is set up and what it keeps, in a line.
    pub about: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Took {
    pub seconds: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Delays {
    pub micros: Vec<u64>,
}

/// How many in each second.
#[derive(Debug, Serialize, Deserialize)]
pub struct Seconds {
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

fn is_none(n: &usize) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_objects_that_say_what_to_do() {
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
    fn answers_say_how_it_went() {
        let answer = |text| serde_json::from_str::<Answer<Took>>(text).unwrap();
        assert!(matches!(answer(r#"{"ok":{"seconds":1.5}}"#), Answer::Ok(took) if took.seconds == 1.5));
        assert!(matches!(answer(r#"{"unsupported":"no groups"}"#), Answer::Unsupported(why) if why == "no groups"));
        assert!(matches!(answer(r#"{"error":"gone"}"#), Answer::Error(text) if text == "gone"));
    }
}
