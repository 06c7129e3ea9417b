//! Namespaces, subscriptions and API tokens: what an administrator sets up.

pub(crate) mod namespaces;
pub(crate) mod scopes;
pub(crate) mod subscriptions;
pub(crate) mod tokens;
