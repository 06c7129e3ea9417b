//! The baseline on SQLite: one connection and one transaction per batch. Every commit except the claim's is synced.

use std::time::Instant;

use rusqlite::{Connection, params};

use super::{BATCH, EVENTS, Rates};
use crate::AnyError;
use crate::event::{PAID, order_payload};

const SCHEMA: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA cache_size = -32768;
PRAGMA wal_autocheckpoint = 4096;
CREATE TABLE events (id INTEGER PRIMARY KEY, event_type TEXT NOT NULL, payload TEXT NOT NULL, created_at INTEGER NOT NULL);
CREATE TABLE queue (event_id INTEGER PRIMARY KEY, ready_at INTEGER NOT NULL, lease INTEGER);
CREATE INDEX queue_free ON queue (ready_at, event_id) WHERE lease IS NULL;
CREATE TABLE attempts (id INTEGER PRIMARY KEY, event_id INTEGER NOT NULL, lease INTEGER, finished_at INTEGER NOT NULL);
CREATE INDEX attempts_by_event ON attempts (event_id)";

pub fn measure(file: &str) -> Result<Rates, AnyError> {
    let mut connection = Connection::open(file)?;
    connection.execute_batch(SCHEMA)?;
    let started = Instant::now();
    (0..EVENTS / BATCH).try_for_each(|_| publish(&mut connection))?;
    let published = started.elapsed();
    let started = Instant::now();
    let mut drained = 0;
    while drained < EVENTS {
        let ids = claim(&mut connection)?;
        if ids.is_empty() {
            return Err(format!("{drained} of {EVENTS} events were drained").into());
        }
        finish(&mut connection, &ids)?;
        drained += ids.len();
    }
    Ok(Rates {
        publish: EVENTS as f64 / published.as_secs_f64(),
        drain: EVENTS as f64 / started.elapsed().as_secs_f64(),
    })
}

fn publish(connection: &mut Connection) -> Result<(), AnyError> {
    let payload = serde_json::to_string(&order_payload(12_345))?;
    let tx = connection.transaction()?;
    {
        let mut events =
            tx.prepare_cached("INSERT INTO events (event_type, payload, created_at) VALUES (?1, ?2, ?3)")?;
        let mut queue = tx.prepare_cached("INSERT INTO queue (event_id, ready_at) VALUES (?1, ?2)")?;
        for _ in 0..BATCH {
            events.execute(params![PAID, payload, 1])?;
            queue.execute(params![tx.last_insert_rowid(), 1])?;
        }
    }
    Ok(tx.commit()?)
}

fn claim(connection: &mut Connection) -> Result<Vec<i64>, AnyError> {
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    let tx = connection.transaction()?;
    let ids = {
        let mut next = tx.prepare_cached(
            "SELECT event_id FROM queue INDEXED BY queue_free WHERE lease IS NULL AND ready_at <= 1
             ORDER BY ready_at, event_id LIMIT ?1",
        )?;
        let ids = next.query_map([BATCH as i64], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
        let mut take = tx.prepare_cached("UPDATE queue SET lease = 1 WHERE event_id = ?1")?;
        let mut payload = tx.prepare_cached("SELECT payload FROM events WHERE id = ?1")?;
        for id in &ids {
            take.execute([id])?;
            let _: String = payload.query_row([id], |row| row.get(0))?;
        }
        ids
    };
    tx.commit()?;
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    Ok(ids)
}

fn finish(connection: &mut Connection, ids: &[i64]) -> Result<(), AnyError> {
    let tx = connection.transaction()?;
    {
        let mut end = tx.prepare_cached("DELETE FROM queue WHERE event_id = ?1 AND lease = 1")?;
        let mut record = tx.prepare_cached("INSERT INTO attempts (event_id, lease, finished_at) VALUES (?1, 1, 1)")?;
        for id in ids {
            end.execute([id])?;
            record.execute([id])?;
        }
    }
    Ok(tx.commit()?)
}
