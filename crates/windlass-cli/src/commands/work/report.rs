//! Reports the outcome of an attempt and retries until the queue has recorded it.

use windlass_api::{BoundedList, FinishItem, FinishOutcome, FinishRequest};

use super::claim::{Backoff, is_temporary};
use super::{RESPONSE_TIMEOUT, Worker};
use crate::Result;
use crate::api::responses::Finished;
use crate::api::{ApiError, Unreachable};

/// Number of retries of a report once the shutdown terminates commands.
const SHUTDOWN_RETRIES_MAX: u32 = 4;

/// The queue's reaction to a report.
enum ReportResult {
    Recorded,
    /// The lease is lost, or the event does not exist anymore.
    Lost,
    /// The report is invalid, for this reason.
    Rejected(String),
}

impl Worker {
    /// Reports an outcome and returns whether it is recorded. An unreachable server is retried without a limit, so that
    /// finished work is not repeated.
    pub async fn report(&self, mut item: FinishItem) -> bool {
        let event_id = item.event_id;
        let (mut backoff, mut retries, mut has_details) = (Backoff::short(), 0, true);
        loop {
            match self.send_report(&item).await {
                Ok(ReportResult::Recorded) => return true,
                Ok(ReportResult::Lost) if item.outcome == FinishOutcome::Release => return false,
                Ok(ReportResult::Lost) => {
                    tracing::warn!(
                        event_id,
                        "the lease was lost before the outcome was reported; the outcome is ignored"
                    );
                    return false;
                }
                // Send the outcome without the details, which may be what the queue rejects.
                Ok(ReportResult::Rejected(reason)) if has_details => {
                    tracing::warn!(event_id, reason, "the report was rejected; reporting the outcome without details");
                    (item, has_details) = (without_details(item), false);
                    continue;
                }
                Ok(ReportResult::Rejected(reason)) => {
                    tracing::error!(event_id, reason, "the report was rejected; the lease will expire");
                    return false;
                }
                Err(error) if is_temporary(&*error) => {
                    tracing::warn!(%error, event_id, "could not report the outcome; trying again");
                }
                Err(error) => {
                    tracing::error!(%error, event_id, "could not report the outcome; the lease will expire");
                    return false;
                }
            }
            retries += u32::from(self.shutdown.is_terminating());
            if retries > SHUTDOWN_RETRIES_MAX {
                tracing::error!(event_id, "the outcome is not recorded; the lease will expire");
                return false;
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    async fn send_report(&self, item: &FinishItem) -> Result<ReportResult> {
        let items = BoundedList(vec![item.clone()]);
        let body = FinishRequest { worker_id: None, subscription: None, items };
        match self.post("/events/finish", &body, RESPONSE_TIMEOUT).await {
            Ok(response) => report_result(response.json()?),
            Err(error) => rejection_reason(error).map(ReportResult::Rejected),
        }
    }
}

fn report_result(finished: Finished) -> Result<ReportResult> {
    let result = finished.results.into_iter().next().ok_or("the answer has no result")?;
    Ok(match result.failure {
        None => ReportResult::Recorded,
        // The failure that exhausts the retries is recorded as well.
        Some(failure) if failure.code == "max_retries_exceeded" => ReportResult::Recorded,
        Some(_) if matches!(result.status, 404 | 409) => ReportResult::Lost,
        Some(failure) if result.status >= 500 => return Err(Unreachable(failure.error).into()),
        Some(failure) => ReportResult::Rejected(failure.error),
    })
}

/// Returns the reason if the queue rejected the content of the report. Returns any other error unchanged.
fn rejection_reason(error: Box<dyn std::error::Error + Send + Sync>) -> Result<String> {
    match error.downcast_ref::<ApiError>() {
        Some(api_error) if matches!(api_error.status, 400 | 413 | 422) => Ok(api_error.to_string()),
        _ => Err(error),
    }
}

fn without_details(item: FinishItem) -> FinishItem {
    let FinishItem { event_id, outcome, lease, subscription, retry, delay_ms, .. } = item;
    FinishItem { lease, subscription, retry, delay_ms, ..FinishItem::new(event_id, outcome) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_with_an_unknown_action_is_recorded() {
        let report = r#"{"event_id":1,"status":200,"report":{"action":"TELEPORTED","new":1}}"#;
        let result = |result: &str| {
            report_result(serde_json::from_str(&format!(r#"{{"results":[{result}],"new":1}}"#)).unwrap()).unwrap()
        };
        assert!(matches!(result(report), ReportResult::Recorded));
        let lost = r#"{"event_id":1,"status":409,"failure":{"error":"the lease is lost","code":"new","new":1}}"#;
        assert!(matches!(result(lost), ReportResult::Lost));
    }

    #[test]
    fn rejected_report_is_sent_without_details() {
        for (status, is_rejected) in [(413, true), (400, true), (401, false), (404, false), (503, false)] {
            assert_eq!(rejection_reason(ApiError::new(status, "no").into()).is_ok(), is_rejected, "{status}");
        }
        assert!(rejection_reason(Unreachable("away".into()).into()).is_err());
        let item = r#"{"event_id":1,"outcome":"fail","lease":"7","error_message":"e","detail":{},"retry":false}"#;
        let reduced = serde_json::to_string(&without_details(serde_json::from_str(item).unwrap())).unwrap();
        assert_eq!(reduced, r#"{"event_id":1,"outcome":"fail","lease":"7","retry":false}"#);
    }
}
