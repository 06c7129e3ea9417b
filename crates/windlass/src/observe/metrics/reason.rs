//! Why deliveries become dead letters, in a few kinds: reasons themselves may be any text.

use serde::Serialize;

use crate::queue::decide::{
    EXPIRED, HANDLER_ERROR, MAX_ATTEMPTS_EXCEEDED, MAX_RETRIES_EXCEEDED, NO_HANDLER, Transition,
};
use crate::store::DeliveryChange;

/// A kind of reason for which a delivery is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadReason {
    /// It failed as often as it may.
    MaxRetries,
    /// It was taken as often as it may be: its workers die, or never report.
    MaxAttempts,
    /// Its handler said that it will never work.
    HandlerError,
    /// No handler knows its type.
    NoHandler,
    /// It could not start before its deadline.
    Expired,
    /// Whatever else a worker said.
    Other,
}

impl DeadReason {
    /// All of them.
    pub const ALL: [DeadReason; 6] = [
        DeadReason::MaxRetries,
        DeadReason::MaxAttempts,
        DeadReason::HandlerError,
        DeadReason::NoHandler,
        DeadReason::Expired,
        DeadReason::Other,
    ];

    /// Its name.
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

    /// The reasons that stores tell from others: these words, and those that begin with [`NO_HANDLER`].
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

    /// Of a change that gives a delivery up.
    pub(super) fn of(change: &DeliveryChange) -> Option<DeadReason> {
        match &change.transition {
            Transition::Bury { reason, .. } => Some(DeadReason::from_text(reason)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_of_some_kind() {
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
