//! Hints that are printed below an error: the likely next step, by error code.

use std::error::Error;

use crate::api::{ApiError, Unreachable};

/// Returns the hint for an error, if there is one.
pub fn hint_for(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if error.is::<Unreachable>() {
        return Some("is `windlass serve` running there? --server or WINDLASS_SERVER says which server is asked");
    }
    if let Some(api_error) = error.downcast_ref::<ApiError>() {
        return hint_for_code(&api_error.code);
    }
    error.downcast_ref::<windlass::Error>().and_then(|error| hint_for_code(error.code()))
}

fn hint_for_code(code: &str) -> Option<&'static str> {
    Some(match code {
        "namespace_not_found" => {
            "`windlass namespace list` shows those there are, `windlass namespace create` makes one"
        }
        "subscription_not_found" => "`windlass subscription list` shows those there are",
        "schedule_not_found" => "`windlass schedule list` shows those there are",
        "event_not_found" => {
            "it may be in another namespace (--namespace), or be kept no longer; `windlass list` finds events"
        }
        "dead_letter_not_found" => {
            "`windlass dead-letters list` shows those there are, `windlass get` how the event stands"
        }
        "token_not_found" => "`windlass token list` shows those there are",
        "wrong_status" => "`windlass get` shows how the event stands",
        "no_token" => "give one by --token or WINDLASS_TOKEN; `windlass token create` makes one, where the database is",
        "wrong_token" => "`windlass token list`, where the database is, shows which tokens there are and until when",
        "wrong_scope" | "other_namespace" => "`windlass token create`, where the database is, makes one that may",
        "unknown_path" | "wrong_method" => {
            "is it a Windlass server, and as new as this command (`windlass --version`)?"
        }
        "schema_too_old" => {
            "if another database was meant: --database or WINDLASS_DATABASE names it, --server a server"
        }
        _ => return None,
    })
}
