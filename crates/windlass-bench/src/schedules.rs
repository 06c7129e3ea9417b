//! The cost of schedules: a tick with none, few and many schedules due.

use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use serde::Serialize;
use sqlx::{Connection, PgConnection};
use windlass::{Clock, NewEvent, NewSchedule, Queue, rusqlite};

use crate::AnyError;
use crate::store::Backend;

#[derive(Args)]
pub struct Options {
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// The number of schedules.
    #[arg(long, default_value_t = 100_000)]
    schedules: u32,
    /// Measurements of each case; the median counts.
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.store != Some(Backend::Sqlite)
    }
}

/// The number of schedules due at a tick.
const DUE: [usize; 4] = [0, 10, 100, 1_000];

#[derive(Serialize)]
struct Tick {
    store: &'static str,
    schedules: u32,
    due: usize,
    median_ms: f64,
    max_ms: f64,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut ticks = Vec::new();
    for backend in Backend::ALL {
        if options.store.is_none_or(|only| only == backend) {
            measure(options, backend, &mut ticks).await?;
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&ticks)?);
        return Ok(());
    }
    println!("| store | schedules | due | tick, ms (median) | max |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for Tick { store, schedules, due, median_ms, max_ms } in &ticks {
        println!("| {store} | {schedules} | {due} | {median_ms:.2} | {max_ms:.2} |");
    }
    Ok(())
}

async fn measure(options: &Options, backend: Backend, ticks: &mut Vec<Tick>) -> Result<(), AnyError> {
    let database = backend.create_database().await?;
    let (clock, test_clock) = Clock::test(Utc::now());
    let queue = Queue::options(&database.url).clock(clock).open().await?;
    // Creates the schema, the lane and a row to copy.
    let first = queue.add_schedule(NewSchedule::new("0", "0 0 1 1 *", NewEvent::new("tick"))).await?;
    let _ = queue.run_schedule(&first.id).await?;
    eprintln!("{}: creating {} schedules", backend.name(), options.schedules);
    fill(backend, &database.url, options.schedules).await?;
    let later = queue.clock().now() + TimeDelta::days(300);
    for due in DUE {
        let mut times = Vec::new();
        for _ in 0..options.rounds {
            // Each tick is later than the previous one and has `due` schedules due.
            test_clock.advance(std::time::Duration::from_secs(60));
            set_due(backend, &database.url, due, queue.clock().now() - TimeDelta::seconds(1), later).await?;
            let started = Instant::now();
            let fired = queue.fire_schedules_once().await?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
            assert_eq!(fired.fired, due, "each fires once");
        }
        times.sort_by(f64::total_cmp);
        let (median_ms, max_ms) = (times[times.len() / 2], times[times.len() - 1]);
        ticks.push(Tick { store: backend.name(), schedules: options.schedules, due, median_ms, max_ms });
    }
    queue.close().await;
    Ok(())
}

/// Copies the first schedule, which fires once a year, so that no copy becomes due by itself.
async fn fill(backend: Backend, url: &str, schedules: u32) -> Result<(), AnyError> {
    match backend {
        Backend::Sqlite => {
            let connection = rusqlite::Connection::open(url.trim_start_matches("sqlite://"))?;
            connection.execute(SQLITE_FILL, [schedules])?;
            connection.execute_batch("ANALYZE")?;
        }
        Backend::Postgres => {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::query(POSTGRES_FILL).bind(i64::from(schedules)).execute(&mut connection).await?;
            sqlx::query("ANALYZE windlass.schedules").execute(&mut connection).await?;
            connection.close().await?;
        }
    }
    Ok(())
}

const SQLITE_FILL: &str = "
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?1)
INSERT INTO schedules (schedule_id, namespace, name, cron, timezone, event_type, payload, next_at, created_at, updated_at)
SELECT printf('00000000-0000-4000-8000-%012x', n), namespace, n, '* * * * *', timezone, event_type, payload, next_at,
       created_at, updated_at
FROM schedules, numbers";
const POSTGRES_FILL: &str = "
INSERT INTO windlass.schedules (schedule_id, namespace, name, cron, timezone, event_type, payload, next_at, created_at,
    updated_at)
SELECT gen_random_uuid(), namespace, n, '* * * * *', timezone, event_type, payload, next_at, created_at, updated_at
FROM windlass.schedules, generate_series(1, $1 - 1) AS n";

/// Makes `due` schedules due at `at` and postpones all others to `later`.
async fn set_due(
    backend: Backend,
    url: &str,
    due: usize,
    at: DateTime<Utc>,
    later: DateTime<Utc>,
) -> Result<(), AnyError> {
    // A whole minute, as their cron rule requires.
    let at = at - TimeDelta::microseconds(at.timestamp_micros() % 60_000_000);
    match backend {
        Backend::Sqlite => {
            let connection = rusqlite::Connection::open(url.trim_start_matches("sqlite://"))?;
            connection.busy_timeout(std::time::Duration::from_secs(10))?;
            connection.execute(SQLITE_POSTPONE, [later.timestamp_micros()])?;
            connection.execute(SQLITE_DUE, (at.timestamp_micros(), due as i64))?;
        }
        Backend::Postgres => {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::query(POSTGRES_POSTPONE).bind(later).execute(&mut connection).await?;
            sqlx::query(POSTGRES_DUE).bind(at).bind(due as i64).execute(&mut connection).await?;
            connection.close().await?;
        }
    }
    Ok(())
}

const SQLITE_POSTPONE: &str = "UPDATE schedules SET next_at = ?1 WHERE next_at < ?1";
const SQLITE_DUE: &str = "
UPDATE schedules SET next_at = ?1 WHERE schedule_id IN (
    SELECT schedule_id FROM schedules WHERE cron = '* * * * *' ORDER BY schedule_id LIMIT ?2)";
const POSTGRES_POSTPONE: &str = "UPDATE windlass.schedules SET next_at = $1 WHERE next_at < $1";
const POSTGRES_DUE: &str = "
UPDATE windlass.schedules SET next_at = $1 WHERE schedule_id IN (
    SELECT schedule_id FROM windlass.schedules WHERE cron = '* * * * *' ORDER BY schedule_id LIMIT $2)";
