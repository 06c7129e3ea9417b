//! Exit codes: what a script can tell without reading the sentence.

use std::error::Error;
use std::fmt;

use crate::api::{Refusal, Unreachable};

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const NOT_ALLOWED: u8 = 4;
const UNREACHABLE: u8 = 5;

/// What was asked for cannot be done so.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// The command has said itself what is wrong; only the code is left to tell.
#[derive(Debug)]
pub struct Told(pub u8);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl Error for Told {}

/// The code of an error that ends a command.
pub fn code(error: &(dyn Error + 'static)) -> u8 {
    if let Some(Told(code)) = error.downcast_ref() {
        return *code;
    }
    if error.is::<Usage>() {
        return USAGE;
    }
    if error.is::<Unreachable>() {
        return UNREACHABLE;
    }
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return by_status(refusal.status);
    }
    match error.downcast_ref::<windlass::Error>().map(windlass::Error::code) {
        Some("database_unavailable" | "database_locked") => UNREACHABLE,
        Some("invalid") => USAGE,
        Some(code) if code.ends_with("_not_found") => NOT_FOUND,
        _ => FAILED,
    }
}

fn by_status(status: u16) -> u8 {
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
    fn scripts_can_tell_errors_apart() {
        assert_eq!(code(&Unreachable("away".into())), UNREACHABLE);
        assert_eq!(code(&Usage("no".into())), USAGE);
        assert_eq!(code(&windlass::Error::NodeNotFound { namespace: "a".into(), node_id: "b".into() }), NOT_FOUND);
        assert_eq!(code(&std::io::Error::other("pipe")), FAILED);
        let statuses = [(400, USAGE), (401, NOT_ALLOWED), (404, NOT_FOUND), (409, FAILED), (503, UNREACHABLE)];
        for (status, expected) in statuses {
            assert_eq!(by_status(status), expected, "{status}");
        }
    }
}
