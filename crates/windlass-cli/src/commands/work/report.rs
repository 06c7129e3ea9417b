//! Reporting how an attempt ended, until it is on record.

use serde::Deserialize;
use serde_json::{Value, json};

use super::claim::{Pause, is_passing};
use super::{ANSWER_MAX, Worker};
use crate::Result;
use crate::api::{Refusal, Unreachable};

/// Once everything shall end, a report is tried so often.
const LAST_TRIES: u32 = 4;

/// What the queue made of a report.
enum Answer {
    OnRecord,
    /// Somebody else may have the event, or it is gone.
    Lost,
    /// It is not acceptable as it is, and why.
    Refused(String),
}

impl Worker {
    /// Whether it is on record. What was done shall not be done again for a server that is away, so it is tried for as
    /// long as it takes.
    pub async fn report(&self, event_id: i64, mut item: Value) -> bool {
        let (mut pause, mut tries, mut whole) = (Pause::short(), 0, true);
        loop {
            match self.send(&item).await {
                Ok(Answer::OnRecord) => return true,
                Ok(Answer::Lost) if item["outcome"] == "release" => return false,
                Ok(Answer::Lost) => {
                    tracing::warn!(event_id, "the lease was lost before the end was reported; it does not count");
                    return false;
                }
                // What cannot be stored of it is left out: its outcome counts.
                Ok(Answer::Refused(why)) if whole => {
                    tracing::warn!(event_id, why, "the report is refused; only its outcome is kept");
                    (item, whole) = (bare(&item), false);
                    continue;
                }
                Ok(Answer::Refused(why)) => {
                    tracing::error!(event_id, why, "the report is refused; the lease runs out");
                    return false;
                }
                Err(error) if is_passing(&*error) => {
                    tracing::warn!(%error, event_id, "could not report the end of an event; trying again");
                }
                Err(error) => {
                    tracing::error!(%error, event_id, "could not report the end of an event; its lease runs out");
                    return false;
                }
            }
            tries += u32::from(self.stop.is_now());
            if tries > LAST_TRIES {
                tracing::error!(event_id, "the end of an event is not on record; its lease runs out");
                return false;
            }
            tokio::time::sleep(pause.next()).await;
        }
    }

    async fn send(&self, item: &Value) -> Result<Answer> {
        #[derive(Deserialize)]
        struct Answered {
            results: Vec<ItemResult>,
        }
        #[derive(Deserialize)]
        struct ItemResult {
            status: u16,
            failure: Option<Failure>,
        }
        #[derive(Deserialize)]
        struct Failure {
            code: String,
            error: String,
        }
        let body = json!({ "items": [item] });
        let answered: Answered = match self.ask("/events/finish", &body, ANSWER_MAX).await {
            Ok(answer) => answer.read()?,
            Err(error) => return unacceptable(error).map(Answer::Refused),
        };
        let result = answered.results.into_iter().next().ok_or("the answer has no result")?;
        Ok(match result.failure {
            None => Answer::OnRecord,
            // The failure that uses up the retries is on record, too.
            Some(failure) if failure.code == "max_retries_exceeded" => Answer::OnRecord,
            Some(_) if matches!(result.status, 404 | 409) => Answer::Lost,
            Some(failure) if result.status >= 500 => return Err(Unreachable(failure.error).into()),
            Some(failure) => Answer::Refused(failure.error),
        })
    }
}

/// Why a report is refused for what is in it; any other error as it is.
fn unacceptable(error: Box<dyn std::error::Error + Send + Sync>) -> Result<String> {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) if matches!(refusal.status, 400 | 413 | 422) => Ok(refusal.to_string()),
        _ => Err(error),
    }
}

fn bare(item: &Value) -> Value {
    let mut bare = json!({});
    for field in ["event_id", "outcome", "lease", "subscription", "retry", "delay_ms"] {
        if let Some(value) = item.get(field) {
            bare[field] = value.clone();
        }
    }
    bare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_is_refused_for_its_contents_goes_without_them() {
        for (status, for_its_contents) in [(413, true), (400, true), (401, false), (404, false), (503, false)] {
            assert_eq!(unacceptable(Refusal::new(status, "no").into()).is_ok(), for_its_contents, "{status}");
        }
        assert!(unacceptable(Unreachable("away".into()).into()).is_err());
        let item = json!({ "event_id": 1, "outcome": "fail", "lease": "7", "retry": false, "detail": {}, "error_message": "e" });
        assert_eq!(bare(&item), json!({ "event_id": 1, "outcome": "fail", "lease": "7", "retry": false }));
    }
}
