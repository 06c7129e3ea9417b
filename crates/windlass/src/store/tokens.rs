//! API tokens. They belong to the whole database, not to a namespace.

use std::time::Duration;

use async_trait::async_trait;

use crate::admin::scopes::Scope;
use crate::admin::tokens::{SecretHash, Token};
use crate::clock::Timestamp;
use crate::error::Result;

/// A validated token, ready to be stored. It contains the hash of the secret, not the secret.
#[derive(Debug, Clone)]
pub(crate) struct PreparedToken {
    pub token_id: String,
    pub name: String,
    pub scopes: Vec<Scope>,
    pub namespaces: Vec<String>,
    pub hash: SecretHash,
    /// `None`: never.
    pub expires_in: Option<Duration>,
}

#[async_trait]
pub(crate) trait TokenStore {
    /// The id is random, so it is taken to be new.
    async fn add_token(&self, token: &PreparedToken, now: Option<Timestamp>) -> Result<Token>;

    /// All tokens, the oldest first.
    async fn tokens(&self) -> Result<Vec<Token>>;

    /// Returns whether the token existed.
    async fn remove_token(&self, token_id: &str) -> Result<bool>;
}
