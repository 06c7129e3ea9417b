//! What the database remembers of its clock, in the table of marks. It belongs to no namespace.

use rusqlite::{Connection, OptionalExtension};

use crate::clock::from_micros;
use crate::error::Result;
use crate::maintenance::clock_check::Seen;

const SEEN: &str = "
SELECT at, id, subscription_id FROM retention_marks WHERE namespace = '' AND walk = 'clock' AND keep_ms = 0";

pub(super) fn seen(conn: &Connection) -> Result<Option<Seen>> {
    let seen = conn.prepare_cached(SEEN)?.query_row([], |row| {
        let (believed, resume_at, latest): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let resume_at = (resume_at != 0).then(|| from_micros(resume_at));
        Ok(Seen { believed: from_micros(believed), latest: from_micros(latest), resume_at })
    });
    Ok(seen.optional()?)
}

const NOTE: &str = "
INSERT INTO retention_marks (namespace, walk, keep_ms, rules, at, id, subscription_id)
VALUES ('', 'clock', 0, 0, ?1, ?2, ?3)
ON CONFLICT DO UPDATE SET at = excluded.at, id = excluded.id, subscription_id = excluded.subscription_id";

pub(super) fn note(conn: &Connection, seen: Seen) -> Result<()> {
    let resume_at = seen.resume_at.map_or(0, |at| at.timestamp_micros());
    let row = (seen.believed.timestamp_micros(), resume_at, seen.latest.timestamp_micros());
    conn.prepare_cached(NOTE)?.execute(row)?;
    Ok(())
}
