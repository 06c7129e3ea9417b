//! Outcomes and reports of attempts, and their records.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::error::Error;

/// The result of an attempt, as the worker reports it. The policy decides whether the delivery is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The delivery is completed.
    Done,
    /// The delivery is completed; the errors are kept with the attempt.
    DoneWithErrors,
    /// The attempt failed with a transient error: retry, unless the retries are exhausted.
    Retry {
        /// The delay, instead of the policy's backoff.
        after: Option<Duration>,
    },
    /// The delivery becomes pending again after a delay. Not a failure.
    Snooze {
        /// The delay.
        delay: Duration,
    },
    /// The delivery becomes pending again at its old position, for any worker. Not a failure.
    Release,
    /// The attempt failed with an unrecoverable error: do not retry.
    Dead {
        /// The reason, in a few words.
        reason: String,
    },
    /// The worker has no handler for the event's type.
    Unhandled,
}

impl Outcome {
    /// [`Outcome::Dead`] with the default reason.
    pub fn dead() -> Outcome {
        Outcome::Dead { reason: crate::queue::decide::HANDLER_ERROR.into() }
    }
}

/// What a log entry records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Action {
    /// The event was published. Appears only in the activity feed, not in an event's log.
    Published,
    /// A worker claimed it.
    Picked,
    /// The worker reported that work has started.
    Started,
    /// Completed.
    Completed,
    /// Completed, with errors.
    CompletedWithErrors,
    /// The worker reported a failure.
    Failed,
    /// The worker snoozed it: pending again after a delay.
    Snoozed,
    /// The worker released it.
    Released,
    /// The lease expired.
    Abandoned,
    /// An operator reset it.
    Reset,
    /// Redriven from the dead letters.
    Redriven,
    /// Canceled.
    Cancelled,
    /// Expired: not started before its deadline.
    Expired,
}

impl Action {
    const ALL: [Action; 13] = [
        Action::Published,
        Action::Picked,
        Action::Started,
        Action::Completed,
        Action::CompletedWithErrors,
        Action::Failed,
        Action::Snoozed,
        Action::Released,
        Action::Abandoned,
        Action::Reset,
        Action::Redriven,
        Action::Cancelled,
        Action::Expired,
    ];

    /// The name in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Published => "PUBLISHED",
            Action::Picked => "PICKED",
            Action::Started => "STARTED",
            Action::Completed => "COMPLETED",
            Action::CompletedWithErrors => "COMPLETED_WITH_ERRORS",
            Action::Failed => "FAILED",
            Action::Snoozed => "SNOOZED",
            Action::Released => "RELEASED",
            Action::Abandoned => "ABANDONED",
            Action::Reset => "RESET",
            Action::Redriven => "REDRIVEN",
            Action::Cancelled => "CANCELLED",
            Action::Expired => "EXPIRED",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Action {
    type Err = Error;

    fn from_str(name: &str) -> Result<Action, Error> {
        let found = Action::ALL.into_iter().find(|action| action.as_str() == name);
        found.ok_or_else(|| Error::Database { detail: format!("unknown action '{name}' in event_attempts") })
    }
}

/// The final result of one of several handlers of a delivery, which later attempts do not run again. A handler that is
/// to be retried has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerResult {
    /// The handler's id, unique among the handlers of the event's type.
    pub handler: String,
    /// Whether the handler succeeded. `false`: it failed and is not retried.
    pub succeeded: bool,
    /// The error message.
    pub error: Option<String>,
}

/// A worker's report at the end of an attempt, for [`Queue::finish`](crate::Queue::finish).
#[derive(Debug, Clone)]
pub struct Report {
    pub(crate) outcome: Outcome,
    pub(crate) status_code: Option<i32>,
    pub(crate) execution_time_ms: Option<u64>,
    pub(crate) error: Option<String>,
    pub(crate) detail: Option<Box<RawValue>>,
    pub(crate) handler_results: Vec<HandlerResult>,
}

impl Report {
    /// A report with this outcome and no details.
    pub fn new(outcome: Outcome) -> Report {
        Report {
            outcome,
            status_code: None,
            execution_time_ms: None,
            error: None,
            detail: None,
            handler_results: Vec::new(),
        }
    }

    /// A report of success.
    pub fn done() -> Report {
        Report::new(Outcome::Done)
    }

    /// A report of a transient failure: the delivery is retried.
    pub fn failed(error: impl Into<String>) -> Report {
        Report::new(Outcome::Retry { after: None }).error(error)
    }

    /// A report of an unrecoverable failure: the delivery is not retried.
    pub fn dead(error: impl Into<String>) -> Report {
        Report::new(Outcome::dead()).error(error)
    }

    /// A status code of the worker's choice, such as an HTTP status.
    pub fn status_code(mut self, status_code: i32) -> Report {
        self.status_code = Some(status_code);
        self
    }

    /// The execution time.
    pub fn execution_time_ms(mut self, execution_time_ms: u64) -> Report {
        self.execution_time_ms = Some(execution_time_ms);
        self
    }

    /// The error message.
    pub fn error(mut self, error: impl Into<String>) -> Report {
        self.error = Some(error.into());
        self
    }

    /// Details as JSON.
    pub fn detail(mut self, detail: Box<RawValue>) -> Report {
        self.detail = Some(detail);
        self
    }

    /// The results of finished handlers, if the delivery has several. The next attempt runs only the others: see
    /// [`Queue::handler_results`](crate::Queue::handler_results).
    pub fn handler_results(mut self, results: Vec<HandlerResult>) -> Report {
        self.handler_results = results;
        self
    }
}

/// The record of a finished attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The event's id.
    pub event_id: i64,
    /// The subscription of the delivery.
    pub subscription: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The worker that had the lease.
    pub worker_id: Option<String>,
    /// How the attempt ended.
    pub action: Action,
    /// The worker's status code.
    pub status_code: Option<i32>,
    /// The execution time that the worker reported.
    pub execution_time_ms: Option<u64>,
    /// The error message.
    pub error_message: Option<String>,
    /// When the delivery becomes ready again; `None` if it is not retried.
    pub next_retry_at: Option<Timestamp>,
    /// The number of failures so far.
    pub retry_count: u32,
    /// The delivery is not retried when `retry_count` reaches this number; `None`: no limit.
    pub max_retries: Option<u32>,
    /// When the attempt ended.
    pub finished_at: Timestamp,
}

/// The result of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// The report was recorded.
    Applied(Attempt),
    /// The same report was recorded before; nothing changed.
    Repeated(Attempt),
    /// The lease is not the current one; nothing changed.
    Lost,
}

impl Finished {
    /// The recorded attempt; `None` if the lease was lost.
    pub fn attempt(&self) -> Option<&Attempt> {
        match self {
            Finished::Applied(attempt) | Finished::Repeated(attempt) => Some(attempt),
            Finished::Lost => None,
        }
    }

    /// Whether the lease was lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, Finished::Lost)
    }
}
