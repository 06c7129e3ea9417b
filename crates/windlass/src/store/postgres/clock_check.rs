//! The last clock check, stored in the table of retention marks under an empty namespace.

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::maintenance::clock_check::ClockCheck;
use crate::store::ClockCheckStore;

const READ: &str = "
SELECT at, id, subscription_id FROM windlass.retention_marks WHERE namespace = '' AND walk = 'clock' AND keep_ms = 0";

const RECORD: &str = "
INSERT INTO windlass.retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
VALUES ('', 'clock', 0, 0, $1, $2, $3)
ON CONFLICT (namespace, walk, keep_ms) DO UPDATE SET at = excluded.at, id = excluded.id, subscription_id = excluded.subscription_id";

#[async_trait]
impl ClockCheckStore for PgStore {
    async fn clock_check(&self) -> Result<Option<ClockCheck>> {
        let mut connection = self.maintenance.get().await?;
        let row = sqlx::query(READ).fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        let check = |row: &PgRow| {
            let (resume_at, latest) = (get::<i64>(row, "id")?, from_micros(get(row, "subscription_id")?));
            let resume_at = (resume_at != 0).then(|| from_micros(resume_at));
            Ok(ClockCheck { trusted: get::<Timestamp>(row, "at")?, latest, resume_at })
        };
        row.as_ref().map(check).transpose()
    }

    async fn record_clock_check(&self, check: ClockCheck) -> Result<()> {
        let mut connection = self.writes.get().await?;
        let resume_at = check.resume_at.map_or(0, |at| at.timestamp_micros());
        let query = sqlx::query(RECORD).bind(check.trusted).bind(resume_at).bind(check.latest.timestamp_micros());
        query.execute(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(())
    }
}
