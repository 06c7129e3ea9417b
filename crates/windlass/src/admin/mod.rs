//! Administration: namespaces, subscriptions and API tokens.
//!
//! Enforcement of tokens is in the server crate; policies are in `policy/`.

pub(crate) mod namespaces;
pub(crate) mod scopes;
pub(crate) mod subscriptions;
pub(crate) mod tokens;
