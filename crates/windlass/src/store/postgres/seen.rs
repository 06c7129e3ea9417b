//! What the database remembers of its clock, in the table of marks. It belongs to no namespace.

use sqlx::postgres::PgRow;

use super::PgStore;
use super::error::from_sqlx;
use super::row::get;
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::maintenance::clock_check::Seen;

const SEEN: &str = "
SELECT at, id, subscription_id FROM windlass.retention_marks WHERE namespace = '' AND walk = 'clock' AND keep_ms = 0";

pub(super) async fn seen(store: &PgStore) -> Result<Option<Seen>> {
    let mut connection = store.maintenance.get().await?;
    let row = sqlx::query(SEEN).fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    let seen = |row: &PgRow| {
        let (resume_at, latest) = (get::<i64>(row, "id")?, from_micros(get(row, "subscription_id")?));
        let resume_at = (resume_at != 0).then(|| from_micros(resume_at));
        Ok(Seen { believed: get::<Timestamp>(row, "at")?, latest, resume_at })
    };
    row.as_ref().map(seen).transpose()
}

const NOTE: &str = "
INSERT INTO windlass.retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
VALUES ('', 'clock', 0, 0, $1, $2, $3)
ON CONFLICT (namespace, walk, keep_ms) DO UPDATE SET at = excluded.at, id = excluded.id, subscription_id = excluded.subscription_id";

pub(super) async fn note(store: &PgStore, seen: Seen) -> Result<()> {
    let mut connection = store.writes.get().await?;
    let resume_at = seen.resume_at.map_or(0, |at| at.timestamp_micros());
    let query = sqlx::query(NOTE).bind(seen.believed).bind(resume_at).bind(seen.latest.timestamp_micros());
    query.execute(&mut *connection).await.map_err(from_sqlx)?;
    connection.done();
    Ok(())
}
