//! A test's own connection to the queue's database, with a transaction that the test begins and ends.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use windlass::{NewEvent, Published, Queue, Result};

use crate::bed::{Database, Kind};
use crate::postgres;

/// An open transaction. Dropped, it is rolled back.
pub enum Own {
    Sqlite(rusqlite::Connection),
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
}

impl Own {
    /// On SQLite it does not lock anything yet.
    pub async fn begin(database: &Database) -> Own {
        match database.kind {
            Kind::Sqlite => {
                let connection = rusqlite::Connection::open(database.file()).unwrap();
                connection.execute_batch("BEGIN").unwrap();
                Own::Sqlite(connection)
            }
            Kind::Postgres => {
                let pool = sqlx::PgPool::connect(&database.url).await.unwrap();
                Own::Postgres(pool.begin().await.unwrap())
            }
        }
    }

    pub async fn publish(&mut self, queue: &Queue, event: NewEvent) -> Result<Published> {
        match self {
            Own::Sqlite(connection) => queue.publish_in(&*connection, event),
            Own::Postgres(tx) => queue.publish_in(tx, event).await,
        }
    }

    pub async fn publish_all(&mut self, queue: &Queue, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        match self {
            Own::Sqlite(connection) => queue.publish_all_in(&*connection, events),
            Own::Postgres(tx) => queue.publish_all_in(&mut **tx, events).await,
        }
    }

    pub async fn execute(&mut self, sql: &str) {
        match self {
            Own::Sqlite(connection) => connection.execute_batch(sql).unwrap(),
            Own::Postgres(tx) => drop(tx.execute(AssertSqlSafe(sql.to_owned())).await.unwrap()),
        }
    }

    pub async fn commit(self) {
        match self {
            Own::Sqlite(connection) => connection.execute_batch("COMMIT").unwrap(),
            Own::Postgres(tx) => tx.commit().await.unwrap(),
        }
    }

    pub async fn rollback(self) {
        match self {
            Own::Sqlite(connection) => connection.execute_batch("ROLLBACK").unwrap(),
            Own::Postgres(tx) => tx.rollback().await.unwrap(),
        }
    }
}

/// The one number that a statement answers with, as everyone else sees it.
pub async fn number(database: &Database, sql: &str) -> i64 {
    match database.kind {
        Kind::Sqlite => {
            let connection = rusqlite::Connection::open(database.file()).unwrap();
            connection.query_row(sql, [], |row| row.get(0)).unwrap()
        }
        Kind::Postgres => {
            let mut connection: PgConnection = postgres::connect(&database.url).await;
            let row = connection.fetch_one(AssertSqlSafe(sql.to_owned())).await.unwrap();
            connection.close().await.unwrap();
            row.get(0)
        }
    }
}
