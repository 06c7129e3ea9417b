//! How an attempt ended, and what is recorded of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::error::Error;

/// How an attempt ended, as the worker saw it. The policy decides what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done.
    Done,
    /// It is done; the errors are kept with the attempt.
    DoneWithErrors,
    /// It failed and may work later.
    Retry {
        /// Instead of the policy's backoff.
        after: Option<Duration>,
    },
    /// Not now: put it back for later. Not a failure.
    Snooze {
        /// For how long.
        delay: Duration,
    },
    /// Put it back where it was, for anybody. Not a failure.
    Release,
    /// It will never work.
    Dead {
        /// Why, in a few words.
        reason: String,
    },
    /// No handler knows this type.
    Unhandled,
}

impl Outcome {
    /// It will never work, for the usual reason.
    pub fn dead() -> Outcome {
        Outcome::Dead { reason: crate::queue::decide::HANDLER_ERROR.into() }
    }
}

/// What an entry of the log says happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Action {
    /// The event was published. No entry of an event's log: only the feed of activity tells it.
    Published,
    /// A worker claimed it.
    Picked,
    /// The worker said that it began.
    Started,
    /// Done.
    Completed,
    /// Done, with errors.
    CompletedWithErrors,
    /// A failure was reported.
    Failed,
    /// Put back for later by its worker.
    Snoozed,
    /// Put back by its worker.
    Released,
    /// The lease ran out.
    Abandoned,
    /// Taken from its worker by hand.
    Reset,
    /// Brought back from the dead letters.
    Redriven,
    /// Called off.
    Cancelled,
    /// Not started before its deadline.
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

    /// Its name in the API and in the database.
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

/// What one of several handlers came to. The next attempt need not run it again; a handler that is to be tried again
/// has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerResult {
    /// Its name, unique among the handlers of the event's type.
    pub handler: String,
    /// It is done; if not, it failed for good.
    pub succeeded: bool,
    /// What went wrong.
    pub error: Option<String>,
}

/// What a worker reports at the end of an attempt.
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
    /// A report of this outcome, with nothing more to say.
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

    /// It is done.
    pub fn done() -> Report {
        Report::new(Outcome::Done)
    }

    /// It failed and may work later.
    pub fn failed(error: impl Into<String>) -> Report {
        Report::new(Outcome::Retry { after: None }).error(error)
    }

    /// It will never work.
    pub fn dead(error: impl Into<String>) -> Report {
        Report::new(Outcome::dead()).error(error)
    }

    /// A number of the worker's own, such as an HTTP status.
    pub fn status_code(mut self, status_code: i32) -> Report {
        self.status_code = Some(status_code);
        self
    }

    /// How long it took.
    pub fn execution_time_ms(mut self, execution_time_ms: u64) -> Report {
        self.execution_time_ms = Some(execution_time_ms);
        self
    }

    /// What went wrong, for people.
    pub fn error(mut self, error: impl Into<String>) -> Report {
        self.error = Some(error.into());
        self
    }

    /// More about it, as JSON.
    pub fn detail(mut self, detail: Box<RawValue>) -> Report {
        self.detail = Some(detail);
        self
    }

    /// What has finished of the handlers that share the delivery, so that the next attempt runs only the others:
    /// see [`Queue::handler_results`](crate::Queue::handler_results).
    pub fn handler_results(mut self, results: Vec<HandlerResult>) -> Report {
        self.handler_results = results;
        self
    }
}

/// An attempt that has ended, as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The event.
    pub event_id: i64,
    /// For whom.
    pub subscription: String,
    /// Which acquisition it was.
    pub attempt: u32,
    /// Who held it.
    pub worker_id: Option<String>,
    /// How it ended.
    pub action: Action,
    /// A number of the worker's own.
    pub status_code: Option<i32>,
    /// How long it took, as reported.
    pub execution_time_ms: Option<u64>,
    /// What went wrong.
    pub error_message: Option<String>,
    /// When it may be tried again; `None` when it will not be.
    pub next_retry_at: Option<Timestamp>,
    /// Failures reported so far.
    pub retry_count: u32,
    /// The failure that brings `retry_count` to this is the last.
    pub max_retries: Option<u32>,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// What became of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// It was recorded now.
    Applied(Attempt),
    /// The same had been recorded before; nothing was changed.
    Repeated(Attempt),
    /// The lease is not the current one; nothing was changed.
    Lost,
}

impl Finished {
    /// The attempt that is on record, unless the lease was lost.
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
