//! Errors of handlers, and how the delivery continues after them.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// The result of a handler. Any error returned with `?` means that the event is retried.
pub type Handled = Result<(), HandlerError>;

type AnyError = Box<dyn StdError + Send + Sync>;

/// The error of a handler. It decides how the delivery continues.
///
/// Any error type, or a string, converts with `?` into a temporary failure: the event is retried according to its
/// policy. Use a constructor for anything else.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Handled, HandlerError};
///
/// fn charge(status: u16) -> Handled {
///     match status {
///         200 => Ok(()),
///         404 => Err(HandlerError::unrecoverable("no such card")),
///         429 => Err(HandlerError::retry_after(Duration::from_secs(30), "asked to slow down")),
///         // Not a failure: the bank is closed for an hour.
///         503 => Err(HandlerError::snooze(Duration::from_secs(3600))),
///         _ => Err("the bank does not answer")?,
///     }
/// }
/// # assert!(charge(200).is_ok());
/// ```
// Does not implement `Error`: that would conflict with the conversion from every error type.
pub struct HandlerError(pub(super) Failure);

/// The kind of error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// Temporary failure: retry after this delay, or with the policy's backoff.
    Retry { after: Option<Duration>, error: String },
    /// Try later. Not a failure.
    Snooze { delay: Duration },
    /// Permanent failure: retrying is useless.
    Unrecoverable { error: String },
}

impl HandlerError {
    /// A temporary failure: the event is retried with the policy's backoff. This is what `?` does.
    pub fn retry(error: impl Into<AnyError>) -> HandlerError {
        HandlerError(Failure::Retry { after: None, error: text(error) })
    }

    /// A temporary failure: the event is retried after this delay.
    pub fn retry_after(after: Duration, error: impl Into<AnyError>) -> HandlerError {
        HandlerError(Failure::Retry { after: Some(after), error: text(error) })
    }

    /// A permanent failure: the event is not retried for this handler.
    pub fn unrecoverable(error: impl Into<AnyError>) -> HandlerError {
        HandlerError(Failure::Unrecoverable { error: text(error) })
    }

    /// Delivers the event again after this delay, without counting a failure.
    pub fn snooze(delay: Duration) -> HandlerError {
        HandlerError(Failure::Snooze { delay })
    }
}

impl<E: Into<AnyError>> From<E> for HandlerError {
    fn from(error: E) -> HandlerError {
        HandlerError::retry(error)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The message of an error and its causes. A cause that the message already ends with is not repeated.
fn text(error: impl Into<AnyError>) -> String {
    let error = error.into();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let message = next.to_string();
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot send")]
    struct Outer(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot send: {0}")]
    struct IncludesCause(#[source] std::io::Error);

    #[test]
    fn error_message_includes_each_cause_once() {
        let refused = || std::io::Error::other("connection refused");
        assert_eq!(text(Outer(refused())), "cannot send: connection refused");
        assert_eq!(text(IncludesCause(refused())), "cannot send: connection refused");
        assert_eq!(text("plain"), "plain");
    }

    #[test]
    fn error_returned_with_question_mark_is_retried() {
        fn fails() -> Handled {
            "x".parse::<u8>()?;
            Ok(())
        }
        let Failure::Retry { after: None, error } = fails().unwrap_err().0 else { panic!("not a retry") };
        assert_eq!(error, "invalid digit found in string");
    }
}
