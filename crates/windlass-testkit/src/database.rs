//! Temporary databases: an SQLite file in a temporary folder, or a PostgreSQL database with a unique name.

use std::path::{Path, PathBuf};
use std::thread;

use tempfile::TempDir;
use windlass::Queue;

use crate::{block_on, postgres};

const SQLITE_FILE: &str = "windlass.db";

/// The kinds of databases that the tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    Sqlite,
    /// A database of the server at `WINDLASS_TEST_POSTGRES`.
    Postgres,
}

/// A temporary database. It is removed when this is dropped; the connections that are still open are closed then.
pub struct Database {
    /// SQLite or PostgreSQL.
    pub kind: Kind,
    /// The URL to open a queue with.
    pub url: String,
    /// A temporary folder. It contains the SQLite file; tests may write other files into it.
    pub folder: TempDir,
    /// The name of the PostgreSQL database to drop.
    postgres: Option<String>,
}

impl Database {
    /// A database without the Windlass schema. Not to be called in a runtime, because it blocks.
    pub fn empty(kind: Kind) -> Database {
        Database::create(kind, false)
    }

    /// A database with the Windlass schema on PostgreSQL. On SQLite, opening a queue creates it quickly.
    /// Not to be called in a runtime, because it blocks.
    pub fn migrated(kind: Kind) -> Database {
        Database::create(kind, true)
    }

    fn create(kind: Kind, migrated: bool) -> Database {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        match kind {
            Kind::Sqlite => Database { kind, url: sqlite_url(folder.path()), folder, postgres: None },
            Kind::Postgres => {
                let name = block_on(postgres::create_database(migrated));
                Database { kind, url: postgres::url_of(&name), folder, postgres: Some(name) }
            }
        }
    }

    /// The SQLite file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join(SQLITE_FILE)
    }

    /// Opens a queue with the real clock.
    pub async fn open(&self) -> Queue {
        Queue::open(&self.url).await.expect("the queue opens")
    }

    /// Runs SQL that is valid on both kinds.
    pub async fn execute(&self, sql: &str) {
        match self.kind {
            Kind::Sqlite => self.connect_sqlite().execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}")),
            Kind::Postgres => postgres::execute(&self.url, sql).await,
        }
    }

    /// Returns the first column of a query.
    pub async fn select_numbers(&self, sql: &str) -> Vec<i64> {
        match self.kind {
            Kind::Sqlite => {
                let connection = self.connect_sqlite();
                let mut select = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
                let rows = select.query_map([], |row| row.get(0)).and_then(Iterator::collect);
                rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
            }
            Kind::Postgres => {
                let lines = postgres::lines(&self.url, &format!("SELECT i::text FROM ({sql}) AS t(i)")).await;
                lines.iter().map(|line| line.parse().expect("the column has numbers")).collect()
            }
        }
    }

    fn connect_sqlite(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.file()).expect("the SQLite file can be opened")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(name) = self.postgres.take() {
            // In a separate thread, because a runtime may be running in this one. If it panics, the test has printed
            // why, and the next run of the tests drops the database.
            let _ = thread::spawn(move || block_on(postgres::drop_database(&name))).join();
        }
    }
}

/// The URL of an SQLite database in a folder.
pub fn sqlite_url(folder: &Path) -> String {
    format!("sqlite://{}", folder.join(SQLITE_FILE).display())
}
