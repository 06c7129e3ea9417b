//! The last clock check, stored in the table of retention marks under an empty namespace.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use super::SqliteStore;
use super::writer::Durability;
use crate::clock::from_micros;
use crate::error::Result;
use crate::maintenance::clock_check::ClockCheck;
use crate::store::ClockCheckStore;

const READ: &str = "
SELECT at, id, subscription_id FROM retention_marks WHERE namespace = '' AND walk = 'clock' AND keep_ms = 0";

#[async_trait]
impl ClockCheckStore for SqliteStore {
    async fn clock_check(&self) -> Result<Option<ClockCheck>> {
        self.read(move |conn| {
            let check = conn.prepare_cached(READ)?.query_row([], |row| {
                let (believed, resume_at, latest): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                let resume_at = (resume_at != 0).then(|| from_micros(resume_at));
                Ok(ClockCheck { trusted: from_micros(believed), latest: from_micros(latest), resume_at })
            });
            Ok(check.optional()?)
        })
        .await
    }

    async fn record_clock_check(&self, check: ClockCheck) -> Result<()> {
        self.writer.write(Durability::Relaxed, None, move |conn: &Connection, _| note(conn, check)).await
    }
}

const RECORD: &str = "
INSERT INTO retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
VALUES ('', 'clock', 0, 0, ?1, ?2, ?3)
ON CONFLICT DO UPDATE SET at = excluded.at, id = excluded.id, subscription_id = excluded.subscription_id";

fn note(conn: &Connection, check: ClockCheck) -> Result<()> {
    let resume_at = check.resume_at.map_or(0, |at| at.timestamp_micros());
    let row = (check.trusted.timestamp_micros(), resume_at, check.latest.timestamp_micros());
    conn.prepare_cached(RECORD)?.execute(row)?;
    Ok(())
}
