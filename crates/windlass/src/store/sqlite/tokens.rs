//! API tokens.

use async_trait::async_trait;
use rusqlite::{Connection, Row};

use super::topology::to_json;
use super::{SqliteStore, row};
use crate::admin::tokens::{SecretHash, Token};
use crate::clock::{Timestamp, after, from_micros};
use crate::error::Result;
use crate::store::{PreparedToken, TokenStore};

const ALL: &str = "
SELECT token_id, name, secret_hash, scopes, namespaces, created_at, expires_at
FROM api_tokens ORDER BY created_at, token_id";

const REMOVE: &str = "DELETE FROM api_tokens WHERE token_id = ?1";

#[async_trait]
impl TokenStore for SqliteStore {
    async fn add_token(&self, token: &PreparedToken, now: Option<Timestamp>) -> Result<Token> {
        let token = token.clone();
        self.write(now, move |conn, now| add(conn, token, now)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read(move |conn| {
            let mut select = conn.prepare_cached(ALL)?;
            Ok(select.query_map([], token)?.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn remove_token(&self, token_id: &str) -> Result<bool> {
        let token_id = token_id.to_owned();
        self.write(None, move |conn, _| Ok(conn.prepare_cached(REMOVE)?.execute([&token_id])? > 0)).await
    }
}

const ADD: &str = "
INSERT INTO api_tokens (token_id, name, secret_hash, scopes, namespaces, created_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

fn add(conn: &Connection, new: PreparedToken, now: i64) -> Result<Token> {
    let created_at = from_micros(now);
    let token = Token {
        token_id: new.token_id,
        name: new.name,
        scopes: new.scopes,
        namespaces: new.namespaces,
        created_at,
        expires_at: new.expires_in.map(|span| after(created_at, span)),
        hash: new.hash,
    };
    let (scopes, namespaces, expires_at) =
        (to_json(&token.scopes)?, to_json(&token.namespaces)?, row::micros(token.expires_at));
    let values = (&token.token_id, &token.name, &token.hash.0, scopes, namespaces, now, expires_at);
    conn.prepare_cached(ADD)?.execute(values)?;
    Ok(token)
}

/// From the columns of `ALL`.
fn token(row: &Row) -> rusqlite::Result<Token> {
    Ok(Token {
        token_id: row.get(0)?,
        name: row.get(1)?,
        hash: SecretHash(row.get(2)?),
        scopes: row::parse_json(row, 3)?,
        namespaces: row::parse_json(row, 4)?,
        created_at: row::timestamp(row, 5)?,
        expires_at: row::timestamp_or_null(row, 6)?,
    })
}
