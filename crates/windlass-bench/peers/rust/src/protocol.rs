//! What the driver asks and what is answered: one JSON object a line.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The error is for people.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, AnyError>;

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    Open {
        url: String,
        variant: Variant,
    },
    Publish {
        events: u64,
        callers: u64,
        batch: u64,
        bytes: usize,
    },
    Drain {
        events: u64,
        #[serde(default)]
        fail_percent: u64,
    },
    Latency {
        per_second: u64,
        seconds: u64,
        bytes: usize,
    },
    Steady {
        seconds: u64,
        batch: u64,
        publishers: u64,
        bytes: usize,
    },
    Close,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    Recommended,
    Tuned,
}

impl Variant {
    pub fn choose<T>(self, recommended: T, tuned: T) -> T {
        match self {
            Self::Recommended => recommended,
            Self::Tuned => tuned,
        }
    }
}

/// What every event carries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Payload {
    /// Microseconds of this process's clock, just before the event was published.
    pub at: u64,
    pub n: u64,
    pub fill: String,
}

impl Payload {
    /// `bytes` long as JSON, near enough: `at` and `n` are taken for ten digits together.
    pub fn new(at: u64, n: u64, bytes: usize) -> Self {
        const AROUND_FILL: usize = r#"{"at":,"n":,"fill":""}"#.len() + 10;
        Self { at, n, fill: "x".repeat(bytes.saturating_sub(AROUND_FILL).max(1)) }
    }
}

pub fn answer(done: Result<Value>) -> String {
    match done {
        Ok(value) => json!({ "ok": value }),
        Err(error) => match error.downcast_ref::<Unsupported>() {
            Some(Unsupported(why)) => json!({ "unsupported": why }),
            None => json!({ "error": error.to_string() }),
        },
    }
    .to_string()
}

/// The peer cannot do it, for this reason.
#[derive(Debug)]
pub struct Unsupported(pub &'static str);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for Unsupported {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_about_as_long_as_asked_for() {
        for bytes in [200, 2000, 20_000] {
            let length = serde_json::to_string(&Payload::new(12_345_678, 1234, bytes)).map(|json| json.len());
            assert!(length.is_ok_and(|length| length.abs_diff(bytes) < 10));
        }
        assert_eq!(Payload::new(0, 0, 0).fill, "x");
    }

    #[test]
    fn an_error_is_an_answer() {
        assert_eq!(answer(Err(Unsupported("no retries").into())), r#"{"unsupported":"no retries"}"#);
        assert_eq!(answer(Err("no such table".into())), r#"{"error":"no such table"}"#);
        assert_eq!(answer(Ok(json!({ "seconds": 1.5 }))), r#"{"ok":{"seconds":1.5}}"#);
    }

    #[test]
    fn requests_are_read_with_what_may_be_left_out_and_what_is_not_for_peers() {
        let drain = serde_json::from_str(r#"{"do":"drain","events":5}"#);
        assert!(matches!(drain, Ok(Request::Drain { events: 5, fail_percent: 0 })));
        let open = serde_json::from_str(r#"{"do":"open","url":"x","variant":"tuned","subscriptions":3}"#);
        assert!(matches!(open, Ok(Request::Open { variant: Variant::Tuned, .. })));
    }
}
