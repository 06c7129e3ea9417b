//! The stores that are measured, each on a new database.

use clap::ValueEnum;
use tempfile::TempDir;

use crate::AnyError;
use crate::postgres;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Backend {
    Sqlite,
    Postgres,
}

impl Backend {
    pub const ALL: [Backend; 2] = [Backend::Sqlite, Backend::Postgres];

    pub fn name(self) -> &'static str {
        match self {
            Backend::Sqlite => "SQLite",
            Backend::Postgres => "PostgreSQL",
        }
    }

    pub async fn create_database(self) -> Result<TempDatabase, AnyError> {
        let folder = tempfile::tempdir()?;
        let url = match self {
            Backend::Sqlite => format!("sqlite://{}", folder.path().join("bench.db").display()),
            Backend::Postgres => {
                let server = postgres::url().ok_or("WINDLASS_TEST_POSTGRES is not set")?;
                postgres::fresh_database(&server).await?
            }
        };
        Ok(TempDatabase { url, _folder: folder })
    }
}

/// A new, empty database. An SQLite file is removed when this is dropped.
pub struct TempDatabase {
    pub url: String,
    _folder: TempDir,
}
