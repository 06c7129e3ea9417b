//! API tokens for the HTTP API: creation, verification and revocation.
//!
//! The text of a token is `wl_<id>_<secret>`. The database finds a token by its id and stores only a hash of the
//! secret. The secret has 256 random bits and cannot be guessed, so a plain SHA-256 is sufficient.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::admin::scopes::Scope;
use crate::clock::{DURATION_MAX, Timestamp};
use crate::error::{Error, Result};
use crate::event::names;
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::store::PreparedToken;

const PREFIX: &str = "wl_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// A token as stored in the database, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Token {
    /// The id: the public part of the token's text.
    pub token_id: String,
    /// A human-readable name, for example of the client.
    pub name: String,
    /// What the token allows.
    pub scopes: Vec<Scope>,
    /// The namespaces the token is valid in; empty means all.
    pub namespaces: Vec<String>,
    /// When the token was created.
    pub created_at: Timestamp,
    /// When the token expires; `None` means never.
    pub expires_at: Option<Timestamp>,
    #[serde(skip)]
    pub(crate) hash: SecretHash,
}

/// The SHA-256 of a secret. Debug output does not show it.
#[derive(Clone, PartialEq)]
pub(crate) struct SecretHash(pub Vec<u8>);

impl SecretHash {
    fn of(secret: &str) -> SecretHash {
        SecretHash(Sha256::digest(secret).to_vec())
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("…")
    }
}

impl Token {
    /// Whether one of the token's scopes includes this one; see [`Scope::includes`].
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|own| own.includes(scope))
    }

    /// Whether the token is valid in this namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|own| own == namespace)
    }

    /// Whether the token has expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The id in a token's text; `None` if the text is malformed.
    pub fn id_of(text: &str) -> Option<&str> {
        split(text).map(|(token_id, _)| token_id)
    }

    /// Whether this is the text of this token. The secret is compared in constant time.
    pub fn matches(&self, text: &str) -> bool {
        match split(text) {
            Some((token_id, secret)) if token_id == self.token_id => {
                SecretHash::of(secret).0.ct_eq(&self.hash.0).into()
            }
            _ => false,
        }
    }
}

/// Splits a token's text into id and secret. Strict: no trimming, and case matters.
fn split(text: &str) -> Option<(&str, &str)> {
    let (token_id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    (is_hex(token_id, ID_BYTES) && is_hex(secret, SECRET_BYTES)).then_some((token_id, secret))
}

fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Random bytes from the operating system, in hexadecimal digits.
fn random_hex<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Error::RandomUnavailable { detail: error.to_string() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A token to create.
///
/// ```
/// use std::time::Duration;
/// use windlass::{NewToken, Scope};
///
/// let new = NewToken::new([Scope::Publish])
///     .name("web shop")
///     .namespaces(["orders"])
///     .expires_in(Duration::from_secs(90 * 24 * 3600));
/// ```
#[derive(Debug, Clone)]
pub struct NewToken {
    name: Option<String>,
    scopes: Vec<Scope>,
    namespaces: Vec<String>,
    expires_in: Option<Duration>,
}

impl NewToken {
    /// A token with these scopes, valid in all namespaces, without expiry.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> NewToken {
        NewToken { name: None, scopes: scopes.into_iter().collect(), namespaces: Vec::new(), expires_in: None }
    }

    /// Sets a human-readable name. The default is the list of scopes.
    pub fn name(mut self, name: impl Into<String>) -> NewToken {
        self.name = Some(name.into());
        self
    }

    /// Limits the token to these namespaces, which need not exist yet. An empty list means all namespaces.
    pub fn namespaces<T: Into<String>>(mut self, namespaces: impl IntoIterator<Item = T>) -> NewToken {
        self.namespaces = namespaces.into_iter().map(Into::into).collect();
        self
    }

    /// Limits the token's lifetime, to at most a hundred years.
    pub fn expires_in(mut self, lifetime: Duration) -> NewToken {
        self.expires_in = Some(lifetime);
        self
    }

    fn check(&self, limits: &Limits) -> Result<()> {
        if self.scopes.is_empty() {
            let all = Scope::ALL.map(Scope::as_str).join(", ");
            return Err(Error::invalid("scopes", format!("must have at least one of {all}")));
        }
        if let Some(name) = &self.name {
            names::check("name", name)?;
        }
        let (count, max) = (self.namespaces.len(), limits.token_namespaces_max);
        if count > max {
            return Err(Error::invalid("namespaces", format!("has {count} namespaces; the limit is {max}")));
        }
        self.namespaces.iter().try_for_each(|namespace| names::check_identifier("namespaces", namespace))?;
        match self.expires_in {
            // Both databases store microseconds.
            Some(lifetime) if lifetime.as_micros() == 0 => Err(Error::invalid("expires_in", "must be more than zero")),
            Some(lifetime) if lifetime > DURATION_MAX => Err(Error::invalid("expires_in", "must be at most 100 years")),
            _ => Ok(()),
        }
    }

    /// Adds the id and the hash of the secret, and removes duplicate scopes and namespaces.
    fn prepare(mut self, token_id: String, hash: SecretHash) -> PreparedToken {
        self.scopes.sort();
        self.scopes.dedup();
        self.namespaces.sort();
        self.namespaces.dedup();
        let scope_names = || self.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(",");
        PreparedToken {
            token_id,
            name: self.name.unwrap_or_else(scope_names),
            scopes: self.scopes,
            namespaces: self.namespaces,
            hash,
            expires_in: self.expires_in,
        }
    }
}

/// A new token with its secret. The secret cannot be shown again.
#[derive(Clone)]
pub struct CreatedToken {
    /// The stored token.
    pub token: Token,
    /// The token's text, to be sent as `authorization: Bearer …`.
    pub secret: String,
}

impl fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("CreatedToken").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Queue {
    /// Creates a token for the HTTP API. Tokens belong to the whole database, not to this queue's namespace.
    pub async fn create_token(&self, new: NewToken) -> Result<CreatedToken> {
        new.check(self.limits())?;
        let max = self.limits().tokens_max;
        if self.tokens().await?.len() >= max {
            return Err(Error::invalid("token", format!("a database has at most {max} tokens; revoke one first")));
        }
        let (token_id, secret) = (random_hex::<ID_BYTES>()?, random_hex::<SECRET_BYTES>()?);
        let prepared = new.prepare(token_id, SecretHash::of(&secret));
        let token = self.store().add_token(&prepared, self.now()).await?;
        let secret = format!("{PREFIX}{}_{secret}", token.token_id);
        Ok(CreatedToken { token, secret })
    }

    /// All tokens of the database, including expired ones, oldest first.
    pub async fn tokens(&self) -> Result<Vec<Token>> {
        self.store().tokens().await
    }

    /// Removes a token.
    pub async fn revoke_token(&self, token_id: &str) -> Result<()> {
        // A malformed id is not queried: PostgreSQL rejects some texts.
        if is_hex(token_id, ID_BYTES) && self.store().remove_token(token_id).await? {
            return Ok(());
        }
        Err(Error::TokenNotFound { token_id: token_id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789ab";

    fn secret() -> String {
        "0123456789abcdef".repeat(4)
    }

    fn token() -> Token {
        let new = NewToken::new([Scope::Read, Scope::Publish, Scope::Read]).namespaces(["b", "a", "b"]);
        let PreparedToken { token_id, name, scopes, namespaces, hash, .. } =
            new.prepare(ID.into(), SecretHash::of(&secret()));
        Token { token_id, name, scopes, namespaces, created_at: Timestamp::UNIX_EPOCH, expires_at: None, hash }
    }

    #[test]
    fn token_matches_only_its_own_text() {
        let (token, text) = (token(), format!("wl_{ID}_{}", secret()));
        assert_eq!(Token::id_of(&text), Some(ID));
        assert!(token.matches(&text));
        let other_secret = format!("wl_{ID}_{}", secret().replace('0', "1"));
        let other_id = format!("wl_{}_{}", ID.replace('0', "1"), secret());
        for other in [other_secret, other_id] {
            assert!(Token::id_of(&other).is_some() && !token.matches(&other), "{other}");
        }
    }

    #[test]
    fn malformed_text_has_no_id() {
        let (token, text) = (token(), format!("wl_{ID}_{}", secret()));
        let mut malformed: Vec<String> = (0..text.len()).map(|end| text[..end].to_owned()).collect();
        malformed.extend([text.to_uppercase(), text.replace('a', "A"), text.replace('a', "g"), text.replace('_', "-")]);
        malformed.extend([format!(" {text}"), format!("{text}\n"), format!("{text}0"), format!("Bearer {text}")]);
        malformed.extend([format!("wl_{}_{ID}", secret()), format!("wl__{}", secret()), text.replace('a', "ä")]);
        for text in malformed {
            assert_eq!(Token::id_of(&text), None, "{text:?}");
            assert!(!token.matches(&text), "{text:?}");
        }
    }

    #[test]
    fn hash_is_sha256() {
        let hash: String = SecretHash::of("abc").0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn duplicates_are_removed_and_scopes_are_the_default_name() {
        let token = token();
        assert_eq!((token.name.as_str(), token.namespaces.join(" ")), ("publish,read", "a b".into()));
        assert_eq!(token.scopes, [Scope::Publish, Scope::Read]);
        assert!(token.covers("a") && !token.covers("c") && !token.covers(""));
        assert!(Token { namespaces: Vec::new(), ..token }.covers("c"));
    }

    #[test]
    fn debug_output_hides_the_secret_and_its_hash() {
        let created = CreatedToken { token: token(), secret: format!("wl_{ID}_{}", secret()) };
        let shown = format!("{created:?}");
        assert!(shown.contains(ID) && shown.contains("hash: …"), "{shown}");
        assert!(!shown.contains(&secret()), "{shown}");
    }

    #[test]
    fn secrets_are_unique() {
        let (one, two) = (random_hex::<SECRET_BYTES>().unwrap(), random_hex::<SECRET_BYTES>().unwrap());
        assert!(is_hex(&one, SECRET_BYTES) && is_hex(&two, SECRET_BYTES) && one != two);
    }
}
