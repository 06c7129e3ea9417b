//! The scopes of API tokens.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A permission of an API token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Publish events.
    Publish,
    /// Claim and finish deliveries. Includes [`Scope::Read`].
    Consume,
    /// Read events, dead letters, subscriptions and counts.
    Read,
    /// Everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 4] = [Scope::Publish, Scope::Consume, Scope::Read, Scope::Admin];

    /// The scope's name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Publish => "publish",
            Scope::Consume => "consume",
            Scope::Read => "read",
            Scope::Admin => "admin",
        }
    }

    /// Whether this scope allows everything that `other` allows.
    pub fn includes(self, other: Scope) -> bool {
        self == other || self == Scope::Admin || (self, other) == (Scope::Consume, Scope::Read)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(name: &str) -> Result<Scope, Error> {
        Scope::ALL.into_iter().find(|scope| scope.as_str() == name).ok_or_else(|| {
            let all = Scope::ALL.map(Scope::as_str).join(", ");
            Error::invalid("scope", format!("'{}' is not one of {all}", name.escape_debug()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_names_match_in_text_and_json() {
        for scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.to_string());
        }
        let error = "Publish".parse::<Scope>().unwrap_err();
        assert_eq!(error.to_string(), "scope: 'Publish' is not one of publish, consume, read, admin");
    }

    #[test]
    fn admin_includes_all_scopes_and_consume_includes_read() {
        let included = |scope: Scope| Scope::ALL.into_iter().filter(|other| scope.includes(*other)).collect::<Vec<_>>();
        assert_eq!(included(Scope::Publish), [Scope::Publish]);
        assert_eq!(included(Scope::Consume), [Scope::Consume, Scope::Read]);
        assert_eq!(included(Scope::Read), [Scope::Read]);
        assert_eq!(included(Scope::Admin), Scope::ALL);
    }
}
