//! Kinds of reasons why deliveries become dead letters. The reasons themselves are free text.

use serde::Serialize;

use crate::queue::decide::{
    EXPIRED, HANDLER_ERROR, MAX_ATTEMPTS_EXCEEDED, MAX_RETRIES_EXCEEDED, NO_HANDLER, Transition,
};
use crate::store::DeliveryChange;

/// The kind of reason why a delivery became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadReason {
    /// The retries are exhausted.
    MaxRetries,
    /// The attempts are exhausted: its workers crash or never report an outcome.
    MaxAttempts,
    /// The handler reported an unrecoverable error.
    HandlerError,
    /// No handler accepts its type.
    NoHandler,
    /// It was not started before its deadline.
    Expired,
    /// Any other reason reported by a worker.
    Other,
}

impl DeadReason {
    /// All kinds.
    pub const ALL: [DeadReason; 6] = [
        DeadReason::MaxRetries,
        DeadReason::MaxAttempts,
        DeadReason::HandlerError,
        DeadReason::NoHandler,
        DeadReason::Expired,
        DeadReason::Other,
    ];

    /// The name used in JSON and as a label.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadReason::MaxRetries => "max_retries",
            DeadReason::MaxAttempts => "max_attempts",
            DeadReason::HandlerError => "handler_error",
            DeadReason::NoHandler => "no_handler",
            DeadReason::Expired => "expired",
            DeadReason::Other => "other",
        }
    }

    /// The exact reasons that stores count separately, besides those that start with [`NO_HANDLER`].
    pub(crate) const KNOWN: [&'static str; 4] = [MAX_RETRIES_EXCEEDED, MAX_ATTEMPTS_EXCEEDED, HANDLER_ERROR, EXPIRED];

    pub(crate) fn from_text(reason: &str) -> DeadReason {
        match reason {
            MAX_RETRIES_EXCEEDED => DeadReason::MaxRetries,
            MAX_ATTEMPTS_EXCEEDED => DeadReason::MaxAttempts,
            HANDLER_ERROR => DeadReason::HandlerError,
            EXPIRED => DeadReason::Expired,
            other if other.starts_with(NO_HANDLER) => DeadReason::NoHandler,
            _ => DeadReason::Other,
        }
    }

    /// The reason of a change that makes a dead letter.
    pub(super) fn of(change: &DeliveryChange) -> Option<DeadReason> {
        match &change.transition {
            Transition::DeadLetter { reason, .. } => Some(DeadReason::from_text(reason)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_kind() {
        let table = [
            (MAX_RETRIES_EXCEEDED, DeadReason::MaxRetries),
            (MAX_ATTEMPTS_EXCEEDED, DeadReason::MaxAttempts),
            (HANDLER_ERROR, DeadReason::HandlerError),
            ("No handler for event order.paid", DeadReason::NoHandler),
            (EXPIRED, DeadReason::Expired),
            ("no such user: 42", DeadReason::Other),
            ("", DeadReason::Other),
        ];
        for (reason, kind) in table {
            assert_eq!(DeadReason::from_text(reason), kind, "{reason}");
        }
        for reason in DeadReason::ALL {
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{}\"", reason.as_str()));
        }
    }
}
