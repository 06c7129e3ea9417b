//! Why a handler has not done its work, and what shall follow.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// What a handler returns. Any error that is passed on with `?` means: try again.
pub type Handled = Result<(), HandlerError>;

type AnyError = Box<dyn StdError + Send + Sync>;

/// Why a handler has not done its work.
///
/// Whatever `?` turns into one – any error type, a text – is a failure that may pass: the event is tried
/// again as its policy says. The constructors say something else.
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
///         // Not a failure: the bank is closed until then.
///         503 => Err(HandlerError::snooze(Duration::from_secs(3600))),
///         _ => Err("the bank does not answer")?,
///     }
/// }
/// # assert!(charge(200).is_ok());
/// ```
// It does not implement `Error`: then the conversion from every error type would not be possible.
pub struct HandlerError(pub(super) Failure);

/// The same, as the node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It may work later; after this long, or as the policy says.
    Retry { after: Option<Duration>, error: String },
    /// Not now. Not a failure.
    Snooze { delay: Duration },
    /// It will never work.
    Unrecoverable { error: String },
}

impl HandlerError {
    /// It failed and may work later: what `?` does.
    pub fn retry(error: impl Into<AnyError>) -> HandlerError {
        HandlerError(Failure::Retry { after: None, error: text(error) })
    }

    /// It failed and may work after this much time.
    pub fn retry_after(after: Duration, error: impl Into<AnyError>) -> HandlerError {
        HandlerError(Failure::Retry { after: Some(after), error: text(error) })
    }

    /// It will never work: trying again is of no use.
    pub fn unrecoverable(error: impl Into<AnyError>) -> HandlerError {
        HandlerError(Failure::Unrecoverable { error: text(error) })
    }

    /// Puts the event back for this long. That is no failure, and counts as none.
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

/// An error with its causes, each said once: many errors name their cause themselves.
fn text(error: impl Into<AnyError>) -> String {
    let error = error.into();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
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
    struct Telling(#[source] std::io::Error);

    #[test]
    fn an_error_is_kept_with_its_causes() {
        let refused = || std::io::Error::other("connection refused");
        assert_eq!(text(Outer(refused())), "cannot send: connection refused");
        assert_eq!(text(Telling(refused())), "cannot send: connection refused");
        assert_eq!(text("plain"), "plain");
    }

    #[test]
    fn any_error_passed_on_is_a_retry() {
        fn fails() -> Handled {
            "x".parse::<u8>()?;
            Ok(())
        }
        let Failure::Retry { after: None, error } = fails().unwrap_err().0 else { panic!("not a retry") };
        assert_eq!(error, "invalid digit found in string");
    }
}
