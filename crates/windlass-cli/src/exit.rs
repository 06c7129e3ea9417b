//! Exit codes of the commands, chosen from the error that ended the command.

use std::error::Error;
use std::fmt;

use crate::api::{ApiError, Unreachable};

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const NOT_ALLOWED: u8 = 4;
const UNREACHABLE: u8 = 5;

/// Wrong usage or invalid input.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}

/// A failure that the command has printed itself. Only the exit code is left to set.
#[derive(Debug)]
pub struct AlreadyReported(pub u8);

impl fmt::Display for AlreadyReported {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl Error for AlreadyReported {}

/// Returns the exit code for the error that ended a command.
pub fn code(error: &(dyn Error + 'static)) -> u8 {
    if let Some(AlreadyReported(code)) = error.downcast_ref() {
        return *code;
    }
    if error.is::<UsageError>() {
        return USAGE;
    }
    if error.is::<Unreachable>() {
        return UNREACHABLE;
    }
    if let Some(api_error) = error.downcast_ref::<ApiError>() {
        return code_for_status(api_error.status);
    }
    match error.downcast_ref::<windlass::Error>().map(windlass::Error::code) {
        Some("database_unavailable" | "database_locked") => UNREACHABLE,
        Some("invalid") => USAGE,
        Some(code) if code.ends_with("_not_found") => NOT_FOUND,
        _ => FAILED,
    }
}

fn code_for_status(status: u16) -> u8 {
    match status {
        400 | 413 | 415 | 422 => USAGE,
        401 | 403 => NOT_ALLOWED,
        404 => NOT_FOUND,
        502..=504 => UNREACHABLE,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_map_to_exit_codes() {
        assert_eq!(code(&Unreachable("away".into())), UNREACHABLE);
        assert_eq!(code(&UsageError("no".into())), USAGE);
        assert_eq!(code(&windlass::Error::NodeNotFound { namespace: "a".into(), node_id: "b".into() }), NOT_FOUND);
        assert_eq!(code(&std::io::Error::other("pipe")), FAILED);
        let statuses = [(400, USAGE), (401, NOT_ALLOWED), (404, NOT_FOUND), (409, FAILED), (503, UNREACHABLE)];
        for (status, expected) in statuses {
            assert_eq!(code_for_status(status), expected, "{status}");
        }
    }
}
