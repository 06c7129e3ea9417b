//! A transaction of the application: on a connection that the test opens to the queue's database.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use windlass::{NewEvent, Published, Queue, Result};
use windlass_testkit::{Database, Kind, postgres};

/// An open transaction. Dropping it rolls it back.
pub enum OpenTransaction {
    Sqlite(rusqlite::Connection),
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
}

impl OpenTransaction {
    /// On SQLite, the transaction does not lock anything yet.
    pub async fn begin(database: &Database) -> OpenTransaction {
        match database.kind {
            Kind::Sqlite => {
                let connection = rusqlite::Connection::open(database.file()).unwrap();
                connection.execute_batch("BEGIN").unwrap();
                OpenTransaction::Sqlite(connection)
            }
            Kind::Postgres => {
                let pool = sqlx::PgPool::connect(&database.url).await.unwrap();
                OpenTransaction::Postgres(pool.begin().await.unwrap())
            }
        }
    }

    pub async fn publish(&mut self, queue: &Queue, event: NewEvent) -> Result<Published> {
        match self {
            OpenTransaction::Sqlite(connection) => queue.publish_in(&*connection, event),
            OpenTransaction::Postgres(tx) => queue.publish_in(tx, event).await,
        }
    }

    pub async fn publish_all(&mut self, queue: &Queue, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        match self {
            OpenTransaction::Sqlite(connection) => queue.publish_all_in(&*connection, events),
            OpenTransaction::Postgres(tx) => queue.publish_all_in(&mut **tx, events).await,
        }
    }

    pub async fn execute(&mut self, sql: &str) {
        match self {
            OpenTransaction::Sqlite(connection) => connection.execute_batch(sql).unwrap(),
            OpenTransaction::Postgres(tx) => drop(tx.execute(AssertSqlSafe(sql.to_owned())).await.unwrap()),
        }
    }

    pub async fn commit(self) {
        match self {
            OpenTransaction::Sqlite(connection) => connection.execute_batch("COMMIT").unwrap(),
            OpenTransaction::Postgres(tx) => tx.commit().await.unwrap(),
        }
    }

    pub async fn rollback(self) {
        match self {
            OpenTransaction::Sqlite(connection) => connection.execute_batch("ROLLBACK").unwrap(),
            OpenTransaction::Postgres(tx) => tx.rollback().await.unwrap(),
        }
    }
}

/// Runs a query that returns one number, on a connection of its own.
pub async fn query_number(database: &Database, sql: &str) -> i64 {
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
