//! API tokens.

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::get;
use crate::admin::scopes::Scope;
use crate::admin::tokens::{SecretHash, Token};
use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::store::{PreparedToken, TokenStore};

const ADD: &str = "
INSERT INTO windlass.api_tokens (token_id, name, secret_hash, scopes, namespaces, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, coalesce($6, now()), coalesce($6, now()) + $7 * interval '1 microsecond')
RETURNING token_id, name, secret_hash, scopes, namespaces, created_at, expires_at";

const ALL: &str = "
SELECT token_id, name, secret_hash, scopes, namespaces, created_at, expires_at
FROM windlass.api_tokens ORDER BY created_at, token_id";

const REMOVE: &str = "DELETE FROM windlass.api_tokens WHERE token_id = $1";

#[async_trait]
impl TokenStore for PgStore {
    async fn add_token(&self, new: &PreparedToken, now: Option<Timestamp>) -> Result<Token> {
        let mut connection = self.writes.get().await?;
        let add = sqlx::query(ADD)
            .bind(&new.token_id)
            .bind(&new.name)
            .bind(&new.hash.0)
            .bind(new.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>())
            .bind(&new.namespaces)
            .bind(now)
            .bind(new.expires_in.map(micros));
        let row = add.fetch_one(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        token(&row)
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        let mut connection = self.reads.get().await?;
        let rows = sqlx::query(ALL).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        rows.iter().map(token).collect()
    }

    async fn remove_token(&self, token_id: &str) -> Result<bool> {
        let mut connection = self.writes.get().await?;
        let removed = sqlx::query(REMOVE).bind(token_id).execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(removed.rows_affected() > 0)
    }
}

fn token(row: &PgRow) -> Result<Token> {
    let scopes = get::<Vec<String>>(row, "scopes")?;
    Ok(Token {
        token_id: get(row, "token_id")?,
        name: get(row, "name")?,
        scopes: scopes.iter().map(|scope| scope.parse()).collect::<Result<Vec<Scope>>>()?,
        namespaces: get(row, "namespaces")?,
        created_at: get(row, "created_at")?,
        expires_at: get(row, "expires_at")?,
        hash: SecretHash(get(row, "secret_hash")?),
    })
}
