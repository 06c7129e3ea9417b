//! API tokens.

use rusqlite::{Connection, Row};

use super::row;
use super::topology::to_json;
use crate::admin::tokens::{Hash, Token};
use crate::clock::{after, from_micros};
use crate::error::Result;
use crate::store::PreparedToken;

const ADD: &str = "
INSERT INTO api_tokens (token_id, name, secret_hash, scopes, namespaces, created_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

pub(super) fn add(conn: &Connection, new: PreparedToken, now: i64) -> Result<Token> {
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

const ALL: &str = "
SELECT token_id, name, secret_hash, scopes, namespaces, created_at, expires_at
FROM api_tokens ORDER BY created_at, token_id";

pub(super) fn all(conn: &Connection) -> Result<Vec<Token>> {
    let mut select = conn.prepare_cached(ALL)?;
    Ok(select.query_map([], token)?.collect::<rusqlite::Result<_>>()?)
}

/// From the columns of `ALL`.
fn token(row: &Row) -> rusqlite::Result<Token> {
    Ok(Token {
        token_id: row.get(0)?,
        name: row.get(1)?,
        hash: Hash(row.get(2)?),
        scopes: row::parsed(row, 3)?,
        namespaces: row::parsed(row, 4)?,
        created_at: row::instant(row, 5)?,
        expires_at: row::instant_if_any(row, 6)?,
    })
}

const REMOVE: &str = "DELETE FROM api_tokens WHERE token_id = ?1";

pub(super) fn remove(conn: &Connection, token_id: &str) -> Result<bool> {
    Ok(conn.prepare_cached(REMOVE)?.execute([token_id])? > 0)
}
