//! Fills a large database within a minute, with the rows that publish, claim and finish would have written.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, Executor, PgConnection};
use windlass::{NewEvent, NewNode, NewSchedule, Queue, SearchFilter, SubscriptionSpec, rusqlite};

use crate::AnyError;
use crate::store::Backend;

pub const TYPES: [&str; 8] = [
    "order.paid",
    "order.sent",
    "order.returned",
    "user.created",
    "user.deleted",
    "mail.sent",
    "invoice.printed",
    "photo.resized",
];
pub const TAG: &str = "email";
/// A text that no event has.
pub const NEEDLE: &str = "needle";
/// One in this many events is a dead letter.
pub const DEAD_EVERY: u32 = 10;
/// How many unfinished deliveries are leased.
const LEASED: u32 = 100;
const NODES: u32 = 100;
const SCHEDULES: u32 = 1_000;
/// The period over which the events are spread.
const HISTORY_PERIOD: TimeDelta = TimeDelta::hours(48);
/// The first id. Events with lower ids created the lanes.
const FIRST: u32 = 1_000;

/// The events to create: `total` from the first id on, the last `live` of which are not finished.
struct Plan {
    total: u32,
    live: u32,
    from: DateTime<Utc>,
    step_us: i64,
}

/// Fills the database unless it is filled already.
pub async fn fill(backend: Backend, url: &str, events: u32, pending: u32) -> Result<(), AnyError> {
    let queue = Queue::open(url).await?;
    if queue.search(SearchFilter::default()).await?.next.is_some() {
        eprintln!("{}: using what is there", backend.name());
        return Ok(());
    }
    eprintln!("{}: making {events} events", backend.name());
    let other = queue.put_namespace("other", None, None).await?;
    for queue in [&queue, &other] {
        for (n, event_type) in TYPES.into_iter().enumerate() {
            let event = NewEvent::new(event_type);
            queue.publish(if n % 2 == 0 { event.tags([TAG]) } else { event }).await?;
        }
    }
    queue.add_subscription(SubscriptionSpec::new("audit")).await?;
    for n in 0..NODES {
        queue.register_node(NewNode::new(format!("node-{n}")).event_types(TYPES)).await?;
    }
    for n in 0..SCHEDULES {
        let schedule = NewSchedule::new(format!("schedule {n}"), "0 0 1 1 *", NewEvent::new(TYPES[0]));
        queue.add_schedule(schedule).await?;
    }
    queue.close().await;
    // Every eleventh belongs to another namespace.
    let (total, live) = (events / 10 * 11, pending / 10 * 11);
    let step_us = HISTORY_PERIOD.num_microseconds().unwrap_or(0) / i64::from(total.max(1));
    let plan = Plan { total, live, from: Utc::now() - HISTORY_PERIOD, step_us };
    match backend {
        Backend::Sqlite => fill_sqlite(url.trim_start_matches("sqlite://"), &plan),
        Backend::Postgres => fill_postgres(url, &plan).await,
    }
}

async fn fill_postgres(url: &str, plan: &Plan) -> Result<(), AnyError> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute("SET synchronous_commit = off").await?;
    connection.execute(POSTGRES_KINDS).await?;
    let (first, last) = (i64::from(FIRST), i64::from(FIRST + plan.total) - 1);
    let done = last - i64::from(plan.live);
    for (what, insert) in
        [("events", POSTGRES_EVENTS), ("attempts", POSTGRES_ATTEMPTS), ("dead letters", POSTGRES_DEAD)]
    {
        eprintln!("  {what}");
        let until = if what == "events" { last } else { done };
        let insert = sqlx::query(insert).bind(first).bind(until).bind(plan.from).bind(plan.step_us);
        insert.execute(&mut connection).await?;
    }
    eprintln!("  live ones");
    let insert = sqlx::query(POSTGRES_LIVE).bind(done + 1).bind(last).bind(plan.from).bind(plan.step_us);
    insert.bind(i64::from(LEASED)).execute(&mut connection).await?;
    sqlx::query("SELECT setval('windlass.events_id_seq', $1)").bind(last).execute(&mut connection).await?;
    connection.execute(POSTGRES_LEASES).await?;
    sqlx::query(POSTGRES_SAMPLES).bind(Utc::now()).execute(&mut connection).await?;
    connection.execute("VACUUM ANALYZE").await?;
    connection.execute("CHECKPOINT").await?;
    Ok(connection.close().await?)
}

/// The lanes of each kind of event in both namespaces.
const POSTGRES_KINDS: &str = "
CREATE TEMP TABLE kinds AS
SELECT row_number() OVER (ORDER BY a.lane_id) - 1 AS k, a.event_type, a.tags, a.lane_id, b.lane_id AS other_lane,
       a.subscription_id, b.subscription_id AS other_subscription
FROM windlass.lanes a JOIN windlass.lanes b ON b.event_type = a.event_type AND b.tags = a.tags
WHERE a.namespace = 'default' AND b.namespace = 'other' AND a.subscription = 'main' AND b.subscription = 'main'";
const POSTGRES_EVENTS: &str = r#"
INSERT INTO windlass.events (id, namespace, event_type, title, tags, payload, priority, created_at)
SELECT n, CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, k.event_type, 'Event number ' || n, k.tags,
       format('{"order_id":%s,"amount":"99.90","note":"%s"}', n, repeat('x', 150))::json, 0,
       $3 + (n - $1) * $4 * interval '1 microsecond'
FROM generate_series($1, $2) AS n JOIN kinds k ON k.k = n % 8"#;
const POSTGRES_ATTEMPTS: &str = "
INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease, worker_id, picked_at,
    finished_at, action, execution_time_ms, error_message, retry_count, max_retries)
SELECT n, CASE WHEN n % 11 = 10 THEN k.other_subscription ELSE k.subscription_id END, k.event_type, 1,
       CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, 'main', n, 'worker-' || n % 20, t.at, t.at,
       CASE WHEN n % 100 = 0 THEN 'EXPIRED' WHEN n % 10 = 0 THEN 'FAILED' WHEN n % 1000 = 1 THEN 'CANCELLED' ELSE 'COMPLETED' END,
       1, CASE WHEN n % 10 = 0 THEN 'connection refused' END, 0, 3
FROM generate_series($1, $2) AS n JOIN kinds k ON k.k = n % 8
CROSS JOIN LATERAL (SELECT $3 + (n - $1) * $4 * interval '1 microsecond' AS at) AS t";
const POSTGRES_DEAD: &str = "
INSERT INTO windlass.dead_letters (event_id, subscription_id, event_type, namespace, subscription, status, reason, error, attempts, retry_count,
    max_retries, failed_at, created_at)
SELECT n, CASE WHEN n % 11 = 10 THEN k.other_subscription ELSE k.subscription_id END, k.event_type,
       CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, 'main', CASE WHEN n % 100 = 0 THEN 'EXPIRED' ELSE 'FAILED' END,
       CASE WHEN n % 20 = 0 THEN 'Handler error' ELSE 'Too many attempts' END, 'connection refused', 1, 0, 3, t.at, t.at
FROM generate_series($1, $2) AS n JOIN kinds k ON k.k = n % 8
CROSS JOIN LATERAL (SELECT $3 + (n - $1) * $4 * interval '1 microsecond' AS at) AS t WHERE n % 10 = 0";
const POSTGRES_LIVE: &str = "
INSERT INTO windlass.event_queue (event_id, subscription_id, event_type, lane_id, priority,
    out_of_order, namespace, subscription, ready_at, attempts, attempts_limit, max_retries,
    lease, worker_id, picked_at, lease_expires_at, updated_at, created_at)
SELECT n, CASE WHEN n % 11 = 10 THEN k.other_subscription ELSE k.subscription_id END, k.event_type,
       CASE WHEN n % 11 = 10 THEN k.other_lane ELSE k.lane_id END, 0, false,
       CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, 'main', t.at, 0, 20, 3,
       CASE WHEN n < $1 + $5 THEN 7 END, CASE WHEN n < $1 + $5 THEN 'worker-1' END, CASE WHEN n < $1 + $5 THEN t.at END,
       CASE WHEN n < $1 + $5 THEN now() + interval '1 hour' END, t.at, t.at
FROM generate_series($1, $2) AS n JOIN kinds k ON k.k = n % 8
CROSS JOIN LATERAL (SELECT $3 + (n - 1000) * $4 * interval '1 microsecond' AS at) AS t";
const POSTGRES_LEASES: &str = "
INSERT INTO windlass.leases (subscription_id, check_at, claimed_at, lease, namespace, first_id, last_id)
SELECT subscription_id, min(lease_expires_at), min(picked_at), lease, namespace, min(event_id), max(event_id)
FROM windlass.event_queue WHERE lease IS NOT NULL GROUP BY subscription_id, lease, namespace";
const POSTGRES_SAMPLES: &str = "
INSERT INTO windlass.samples (namespace, span_s, at, event_type, published, completed, failed, retried, expired, cancelled,
    depth, oldest_ms, wait, run)
SELECT 'default', 60, date_trunc('minute', $1::timestamptz) - m * interval '1 minute', k.event_type, 100, 80, 10, 5, 1, 1, 10,
       1000, '{0,0,0,5,10,20,5}', '{0,0,0,5,10,20,5}'
FROM generate_series(0, 1439) AS m CROSS JOIN kinds k ON CONFLICT DO NOTHING";

fn fill_sqlite(path: &str, plan: &Plan) -> Result<(), AnyError> {
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch("PRAGMA synchronous = off; PRAGMA cache_size = -1000000")?;
    connection.execute_batch(SQLITE_KINDS)?;
    let (first, last) = (i64::from(FIRST), i64::from(FIRST + plan.total) - 1);
    let (done, from) = (last - i64::from(plan.live), plan.from.timestamp_micros());
    for (what, insert) in [("events", SQLITE_EVENTS), ("attempts", SQLITE_ATTEMPTS), ("dead letters", SQLITE_DEAD)] {
        eprintln!("  {what}");
        let until = if what == "events" { last } else { done };
        connection.execute(insert, (first, until, from, plan.step_us))?;
    }
    eprintln!("  live ones");
    let now = Utc::now();
    let soon = (now + TimeDelta::hours(1)).timestamp_micros();
    connection.execute(SQLITE_LIVE, (done + 1, last, from, plan.step_us, i64::from(LEASED), soon))?;
    connection.execute(SQLITE_SAMPLES, [now.timestamp_micros()])?;
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); ANALYZE")?;
    Ok(())
}

const SQLITE_KINDS: &str = "
CREATE TEMP TABLE kinds AS
SELECT row_number() OVER (ORDER BY a.lane_id) - 1 AS k, a.event_type, a.tags, a.lane_id, b.lane_id AS other_lane,
       a.subscription_id, b.subscription_id AS other_subscription
FROM lanes a JOIN lanes b ON b.event_type = a.event_type AND b.tags = a.tags
WHERE a.namespace = 'default' AND b.namespace = 'other' AND a.subscription = 'main' AND b.subscription = 'main'";
const SQLITE_EVENTS: &str = r#"
WITH RECURSIVE numbers(n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
INSERT INTO events (id, namespace, event_type, title, tags, payload, priority, created_at)
SELECT n, CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, k.event_type, 'Event number ' || n, k.tags,
       '{"order_id":' || n || ',"amount":"99.90","note":"' || hex(zeroblob(75)) || '"}', 0, ?3 + (n - ?1) * ?4
FROM numbers CROSS JOIN kinds k ON k.k = n % 8"#;
const SQLITE_ATTEMPTS: &str = "
WITH RECURSIVE numbers(n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
INSERT INTO event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease, worker_id, picked_at, finished_at,
    action, execution_time_ms, error_message, retry_count, max_retries)
SELECT n, CASE WHEN n % 11 = 10 THEN k.other_subscription ELSE k.subscription_id END, k.event_type, 1,
       CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, 'main', n, 'worker-' || n % 20, ?3 + (n - ?1) * ?4,
       ?3 + (n - ?1) * ?4,
       CASE WHEN n % 100 = 0 THEN 'EXPIRED' WHEN n % 10 = 0 THEN 'FAILED' WHEN n % 1000 = 1 THEN 'CANCELLED' ELSE 'COMPLETED' END,
       1, CASE WHEN n % 10 = 0 THEN 'connection refused' END, 0, 3
FROM numbers CROSS JOIN kinds k ON k.k = n % 8";
const SQLITE_DEAD: &str = "
WITH RECURSIVE numbers(n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
INSERT INTO dead_letters (event_id, subscription_id, event_type, namespace, subscription, status, reason, error, attempts, retry_count,
    max_retries, failed_at, created_at)
SELECT n, CASE WHEN n % 11 = 10 THEN k.other_subscription ELSE k.subscription_id END, k.event_type,
       CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, 'main', CASE WHEN n % 100 = 0 THEN 'EXPIRED' ELSE 'FAILED' END,
       CASE WHEN n % 20 = 0 THEN 'Handler error' ELSE 'Too many attempts' END, 'connection refused', 1, 0, 3,
       ?3 + (n - ?1) * ?4, ?3 + (n - ?1) * ?4
FROM numbers CROSS JOIN kinds k ON k.k = n % 8 WHERE n % 10 = 0";
const SQLITE_LIVE: &str = "
WITH RECURSIVE numbers(n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
INSERT INTO event_queue (event_id, subscription_id, event_type, lane_id, priority,
    out_of_order, namespace, subscription, ready_at, attempts, attempts_limit, max_retries, lease,
    worker_id, picked_at, lease_expires_at, updated_at, created_at)
SELECT n, CASE WHEN n % 11 = 10 THEN k.other_subscription ELSE k.subscription_id END, k.event_type,
       CASE WHEN n % 11 = 10 THEN k.other_lane ELSE k.lane_id END, 0, false,
       CASE WHEN n % 11 = 10 THEN 'other' ELSE 'default' END, 'main', ?3 + (n - 1000) * ?4, 0, 20, 3,
       CASE WHEN n < ?1 + ?5 THEN 7 END, CASE WHEN n < ?1 + ?5 THEN 'worker-1' END,
       CASE WHEN n < ?1 + ?5 THEN ?3 + (n - 1000) * ?4 END, CASE WHEN n < ?1 + ?5 THEN ?6 END,
       ?3 + (n - 1000) * ?4, ?3 + (n - 1000) * ?4
FROM numbers CROSS JOIN kinds k ON k.k = n % 8";
const SQLITE_SAMPLES: &str = "
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1439)
INSERT OR IGNORE INTO samples (namespace, span_s, at, event_type, published, completed, failed, retried, expired, cancelled,
    depth, oldest_ms, wait, run)
SELECT 'default', 60, (?1 / 60000000 - n) * 60000000, k.event_type, 100, 80, 10, 5, 1, 1, 10, 1000, '[0,0,0,5,10,20,5]',
       '[0,0,0,5,10,20,5]'
FROM numbers CROSS JOIN kinds k";
