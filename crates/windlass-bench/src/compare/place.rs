//! An empty database or broker for one measurement, and what it costs the database.

use sqlx::{Connection, Executor, PgConnection, Row};

use super::broker::Broker;
use super::figures::{Figure, Figures};
use super::install::Installed;
use super::systems::{Place, System};
use crate::AnyError;
use crate::postgres;
use crate::store::{Backend, Fresh};

/// A file or a broker is removed when this is dropped.
pub struct Home {
    pub url: String,
    pub is_postgres: bool,
    _kept: Kept,
}

#[expect(dead_code, reason = "held until the end")]
enum Kept {
    Database(Fresh),
    Broker(Broker),
}

impl Home {
    pub async fn empty(system: &System, installed: &Installed) -> Result<Home, AnyError> {
        match system.place {
            Place::Postgres => {
                checkpoint().await?;
                Home::database(Backend::Postgres).await
            }
            Place::Sqlite => Home::database(Backend::Sqlite).await,
            Place::Nats => {
                let broker = Broker::nats(installed.broker()?).await?;
                Ok(Home { url: format!("nats://{}", broker.address), is_postgres: false, _kept: Kept::Broker(broker) })
            }
            Place::Beanstalkd => {
                let broker = Broker::beanstalkd(installed.broker()?).await?;
                let url = format!("beanstalkd://{}", broker.address);
                Ok(Home { url, is_postgres: false, _kept: Kept::Broker(broker) })
            }
        }
    }

    async fn database(backend: Backend) -> Result<Home, AnyError> {
        let database = backend.fresh().await?;
        let is_postgres = backend == Backend::Postgres;
        Ok(Home { url: database.url.clone(), is_postgres, _kept: Kept::Database(database) })
    }

    /// Removes a database, too: what vacuum has left to do there must not disturb the next measurement.
    pub async fn remove(self) -> Result<(), AnyError> {
        if let (true, Some(server), Some((_, name))) = (self.is_postgres, postgres::url(), self.url.rsplit_once('/')) {
            postgres::drop_database(&server, name).await?;
        }
        Ok(())
    }

    /// None elsewhere than on PostgreSQL.
    pub async fn meter(&self) -> Result<Option<Meter>, AnyError> {
        match self.is_postgres {
            true => Ok(Some(Meter::read(&self.url).await?)),
            false => Ok(None),
        }
    }
}

/// What the server has written so far, for all its databases.
#[derive(Clone, Copy)]
pub struct Meter {
    wal_bytes: i64,
    /// Each transaction that writes, and each savepoint that does, takes one.
    transaction_ids: i64,
}

impl Meter {
    async fn read(url: &str) -> Result<Meter, sqlx::Error> {
        let mut connection = PgConnection::connect(url).await?;
        let row = connection
            .fetch_one(
                "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
                        pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
            )
            .await?;
        Ok(Meter { wal_bytes: row.try_get(0)?, transaction_ids: row.try_get(1)? })
    }

    /// What each of so many events has cost since `before`.
    pub fn per_event(self, before: Meter, events: usize) -> Figures {
        let each = |bytes: i64| bytes as f64 / events.max(1) as f64;
        Figures::from([
            (Figure::WalBytes, each(self.wal_bytes - before.wal_bytes)),
            (Figure::Transactions, each(self.transaction_ids - before.transaction_ids)),
        ])
    }
}

/// So that no measurement pays for what the one before has written. Only a superuser may.
async fn checkpoint() -> Result<(), AnyError> {
    let server = crate::postgres::url().ok_or("WINDLASS_TEST_POSTGRES is not set")?;
    let mut connection = PgConnection::connect(&server).await?;
    if let Err(error) = connection.execute("CHECKPOINT").await {
        eprintln!("without a checkpoint: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_what_was_added_for_each_event() {
        let before = Meter { wal_bytes: 1_000, transaction_ids: 10 };
        let after = Meter { wal_bytes: 31_000, transaction_ids: 13 };
        let expected = Figures::from([(Figure::WalBytes, 300.0), (Figure::Transactions, 0.03)]);
        assert_eq!(after.per_event(before, 100), expected);
    }
}
