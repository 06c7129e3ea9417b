//! A new database or broker for one measurement, and the cost for the database server.

use sqlx::{Connection, Executor, PgConnection, Row};

use super::broker::Broker;
use super::figures::{Figure, Figures};
use super::install::Installed;
use super::systems::{Storage, System};
use crate::AnyError;
use crate::postgres;
use crate::store::{Backend, TempDatabase};

/// A database file or a broker is removed when this is dropped.
pub struct Environment {
    pub url: String,
    pub is_postgres: bool,
    _resource: Resource,
}

#[expect(dead_code, reason = "held until the end")]
enum Resource {
    Database(TempDatabase),
    Broker(Broker),
}

impl Environment {
    pub async fn empty(system: &System, installed: &Installed) -> Result<Environment, AnyError> {
        match system.storage {
            Storage::Postgres => {
                checkpoint().await?;
                Environment::database(Backend::Postgres).await
            }
            Storage::Sqlite => Environment::database(Backend::Sqlite).await,
            Storage::Nats => {
                let broker = Broker::nats(installed.broker()?).await?;
                Ok(Environment {
                    url: format!("nats://{}", broker.address),
                    is_postgres: false,
                    _resource: Resource::Broker(broker),
                })
            }
            Storage::Beanstalkd => {
                let broker = Broker::beanstalkd(installed.broker()?).await?;
                let url = format!("beanstalkd://{}", broker.address);
                Ok(Environment { url, is_postgres: false, _resource: Resource::Broker(broker) })
            }
        }
    }

    async fn database(backend: Backend) -> Result<Environment, AnyError> {
        let database = backend.create_database().await?;
        let is_postgres = backend == Backend::Postgres;
        Ok(Environment { url: database.url.clone(), is_postgres, _resource: Resource::Database(database) })
    }

    /// Also removes a PostgreSQL database, so that pending vacuum work does not disturb the next measurement.
    pub async fn remove(self) -> Result<(), AnyError> {
        if let (true, Some(server), Some((_, name))) = (self.is_postgres, postgres::url(), self.url.rsplit_once('/')) {
            postgres::drop_database(&server, name).await?;
        }
        Ok(())
    }

    /// `None` unless on PostgreSQL.
    pub async fn counters(&self) -> Result<Option<ServerCounters>, AnyError> {
        match self.is_postgres {
            true => Ok(Some(ServerCounters::read(&self.url).await?)),
            false => Ok(None),
        }
    }
}

/// The server's WAL position and transaction id, for all its databases.
#[derive(Clone, Copy)]
pub struct ServerCounters {
    wal_bytes: i64,
    /// Every writing transaction or savepoint uses one.
    transaction_ids: i64,
}

impl ServerCounters {
    async fn read(url: &str) -> Result<ServerCounters, sqlx::Error> {
        let mut connection = PgConnection::connect(url).await?;
        let row = connection
            .fetch_one(
                "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
                        pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
            )
            .await?;
        Ok(ServerCounters { wal_bytes: row.try_get(0)?, transaction_ids: row.try_get(1)? })
    }

    /// The cost per event since `before`.
    pub fn per_event(self, before: ServerCounters, events: usize) -> Figures {
        let per_event = |total: i64| total as f64 / events.max(1) as f64;
        Figures::from([
            (Figure::WalBytes, per_event(self.wal_bytes - before.wal_bytes)),
            (Figure::Transactions, per_event(self.transaction_ids - before.transaction_ids)),
        ])
    }
}

/// Runs a checkpoint, so that no measurement pays for the writes of the previous one. Requires a superuser.
async fn checkpoint() -> Result<(), AnyError> {
    let server = crate::postgres::url().ok_or("WINDLASS_TEST_POSTGRES is not set")?;
    let mut connection = PgConnection::connect(&server).await?;
    if let Err(error) = connection.execute("CHECKPOINT").await {
        eprintln!("cannot run a checkpoint: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_the_increase_per_event() {
        let before = ServerCounters { wal_bytes: 1_000, transaction_ids: 10 };
        let after = ServerCounters { wal_bytes: 31_000, transaction_ids: 13 };
        let expected = Figures::from([(Figure::WalBytes, 300.0), (Figure::Transactions, 0.03)]);
        assert_eq!(after.per_event(before, 100), expected);
    }
}
