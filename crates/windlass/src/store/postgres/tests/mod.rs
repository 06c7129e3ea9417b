//! Query plans on an empty, a full and a just emptied queue, analyzed and not: always by index.

use std::collections::BTreeSet;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use self::statements::statements;
use super::{HOT, PgStore, activity, drop_month, fire, lanes, months, results, retain, schedules, transition, watch};
use crate::clock::Clock;
use crate::event::delivery::{Lease, LiveDelivery};
use crate::maintenance::months::HistoryTable;
use crate::queue::handler_results::InterimResult;
use crate::queue::outcome::HandlerResult;
use crate::store::LaneStore as _;
use crate::topology::lanes::LaneKey;

mod counts;
mod search;
mod statements;

/// A migrated database of its own, with a connection of the hot path and a plain one.
struct Database {
    name: String,
    url: String,
    admin: PgConnection,
    hot: PgConnection,
    plain: PgConnection,
}

impl Database {
    async fn drop(mut self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        self.admin.execute(AssertSqlSafe(drop)).await.unwrap();
    }
}

async fn database(name: &str) -> Database {
    let server = std::env::var("WINDLASS_TEST_POSTGRES")
        .expect("WINDLASS_TEST_POSTGRES is not set: run the tests with `cargo xtask test`");
    let name = format!("windlass_plans_{name}_{}", std::process::id());
    let mut admin = PgConnection::connect(&server).await.unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    PgStore::open(&url, Clock::system(), true, 1).await.unwrap();
    let (mut hot, mut plain) = (PgConnection::connect(&url).await.unwrap(), PgConnection::connect(&url).await.unwrap());
    hot.execute(HOT).await.unwrap();
    // Statistics change only when a test says so.
    plain.execute("ALTER TABLE windlass.event_queue SET (autovacuum_enabled = off)").await.unwrap();
    Database { name, url, admin, hot, plain }
}

/// Ten lanes; every tenth row is leased, every third is out of order.
const FILL: &str = "
INSERT INTO windlass.events (id, namespace, event_type, tags, payload, priority, created_at)
SELECT n, 'default', 't', '', '{}', 0, now() FROM generate_series(1, 20000) n;
INSERT INTO windlass.lanes (namespace, subscription_id, subscription, event_type, tags, priority)
SELECT 'default', 1, 'main', 't', n::text, 0 FROM generate_series(1, 10) n ON CONFLICT DO NOTHING;
UPDATE windlass.subscriptions SET priorities = '{5,-5}';
INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
    out_of_order, ready_at, attempts_limit, updated_at, created_at, lease, worker_id, picked_at, lease_expires_at,
    expires_at, group_id, due_at)
SELECT n, 1, 1 + n % 10, 'default', 'main', 't', CASE WHEN n % 6 = 0 THEN 5 ELSE 0 END, n % 3 = 0,
    now() - interval '1 minute', 20, now(), now(), CASE WHEN n % 10 = 0 THEN 7 END, 'w', now() - interval '1 minute',
    now() - interval '1 second', CASE WHEN n % 7 = 0 THEN now() + interval '10 seconds' END,
    CASE WHEN n % 5 = 0 THEN 'g' || n END, now()
FROM generate_series(1, 20000) n;
INSERT INTO windlass.arrivals (namespace, event_id, created_at, group_id, key)
SELECT 'default', n, now(), 'g' || n, 'k' || n FROM generate_series(1, 20000) n ON CONFLICT DO NOTHING;
INSERT INTO windlass.leases (subscription_id, check_at, claimed_at, lease, namespace, first_id, last_id)
SELECT 1, now() + interval '1 hour', now() - interval '1 minute', 7, 'default', n * 10, n * 10
FROM generate_series(1, 2000) n";

/// The generic plan of a statement, as JSON. With `analyze` it runs, and is rolled back.
async fn explain(hot: &mut PgConnection, sql: &str, arguments: &[&str], analyze: bool) -> Value {
    let mut tx = hot.begin().await.unwrap();
    tx.execute(AssertSqlSafe(format!("PREPARE statement AS {sql}"))).await.unwrap();
    let options = if analyze { "ANALYZE, BUFFERS, FORMAT JSON" } else { "FORMAT JSON" };
    let arguments = if arguments.is_empty() { String::new() } else { format!("({})", arguments.join(", ")) };
    let explain = format!("EXPLAIN ({options}) EXECUTE statement{arguments}");
    let row = tx.fetch_one(sqlx::raw_sql(AssertSqlSafe(explain))).await.unwrap();
    tx.execute("DEALLOCATE statement").await.unwrap();
    tx.rollback().await.unwrap();
    serde_json::from_str(&row.try_get_unchecked::<String, _>(0).unwrap()).unwrap()
}

/// A node of a plan that reads a table.
struct Read {
    table: String,
    kind: String,
    index: String,
    condition: String,
}

fn reads(plan: &Value, found: &mut Vec<Read>) {
    match plan {
        Value::Array(parts) => parts.iter().for_each(|part| reads(part, found)),
        Value::Object(node) => {
            let text = |key: &str| node.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
            let is_table = node.contains_key("Relation Name") && text("Relation Name") != "events_id_seq";
            if text("Node Type").ends_with("Scan") && is_table {
                let condition = text("Index Cond") + &text("TID Cond");
                found.push(Read {
                    table: text("Relation Name"),
                    kind: text("Node Type"),
                    index: text("Index Name"),
                    condition,
                });
            }
            node.values().for_each(|value| reads(value, found));
        }
        _ => {}
    }
}

fn assert_by_index(what: &str, plan: &Value) {
    let mut found = Vec::new();
    reads(plan, &mut found);
    let reads = |table: &'static str| found.iter().filter(move |read| read.table.starts_with(table));
    let tables = [
        "event_queue",
        "leases",
        "events_",
        "event_attempts_",
        "event_groups",
        "dead_letters",
        "arrivals",
        "departures",
    ];
    assert!(tables.into_iter().flat_map(reads).count() > 0, "{what}: it reads nothing in {plan:#}");
    for Read { kind, index, condition, .. } in tables.into_iter().flat_map(reads) {
        let keyed = condition.contains("ctid") || serves(index, condition);
        assert!(keyed && kind != "Seq Scan", "{what}: {kind} of {index} with condition '{condition}' in {plan:#}");
    }
}

/// Whether the condition names the index's first columns, without a gap: what follows a gap keeps no entry from being
/// read.
fn serves(index: &str, condition: &str) -> bool {
    let columns: &[&str] = match index {
        "event_queue_pkey" => &["subscription_id", "event_id"],
        "arrivals_pkey" => &["namespace", "event_id"],
        "arrivals_by_group" => &["group_id"],
        "arrivals_by_key" => &["key", "event_id"],
        "departures_by_group" => &["namespace", "group_id", "subscription"],
        "event_queue_lane" => &["lane_id", "ready_at", "event_id"],
        "event_queue_out_of_order" => &["subscription_id", "priority", "ready_at", "event_id"],
        "event_queue_deadline" => &["subscription_id", "expires_at", "event_id"],
        "event_queue_lane_deadline" => &["lane_id", "expires_at", "event_id"],
        "leases_by_check" => &["subscription_id", "check_at"],
        "leases_by_claim" => &["subscription_id", "claimed_at"],
        "event_queue_group" => &["group_id", "subscription", "namespace", "isfinite", "due_at", "event_id"],
        "event_groups_pkey" => &["group_id", "subscription", "namespace"],
        "dead_letters_pkey" => &["event_id", "subscription_id"],
        // All of a namespace is too much, here and below.
        "dead_letters_by_event" if condition.contains("event_id") => &["namespace", "subscription", "event_id"],
        "dead_letters_by_time" if condition.contains("event_id") => &["namespace", "failed_at", "event_id"],
        // Indexes of monthly partitions.
        _ if index.starts_with("event_attempts_") && index.ends_with("_event_id_idx") => &["event_id"],
        _ if index.starts_with("events_") && index.ends_with("_pkey") && condition.contains("(id ") => {
            &["namespace", "(id ", "created_at"]
        }
        _ => return false,
    };
    let named: Vec<bool> = columns.iter().map(|column| condition.contains(column)).collect();
    named[0] && named.is_sorted_by(|before, after| before >= after)
}

async fn assert_all_by_index(hot: &mut PgConnection, state: &str) {
    for (name, sql, arguments) in statements() {
        assert_by_index(&format!("{name}, {state}"), &explain(hot, sql, &arguments, true).await);
    }
}

// B4
#[tokio::test]
async fn hot_path_uses_indexes_with_any_statistics() {
    let mut database = database("states").await;
    let Database { hot, plain, .. } = &mut database;
    assert_all_by_index(hot, "empty").await;
    plain.execute("ANALYZE").await.unwrap();
    assert_all_by_index(hot, "empty, analysed").await;
    plain.execute(FILL).await.unwrap();
    assert_all_by_index(hot, "full, analysed while empty").await;
    plain
        .execute("DELETE FROM windlass.event_queue; DELETE FROM windlass.leases; DELETE FROM windlass.events; DELETE FROM windlass.arrivals; ANALYZE")
        .await
        .unwrap();
    assert_all_by_index(hot, "emptied, analysed only while empty").await;
    plain.execute(FILL).await.unwrap();
    assert_all_by_index(hot, "full, analysed while emptied").await;
    plain.execute("ANALYZE").await.unwrap();
    assert_all_by_index(hot, "full, analysed").await;
    plain
        .execute("DELETE FROM windlass.event_queue; DELETE FROM windlass.leases; DELETE FROM windlass.arrivals")
        .await
        .unwrap();
    assert_all_by_index(hot, "emptied, analysed while full").await;
    plain.execute("ANALYZE").await.unwrap();
    assert_all_by_index(hot, "emptied, analysed").await;
    database.drop().await;
}

/// How many pages a statement touches.
async fn pages(hot: &mut PgConnection, sql: &str, arguments: &[&str]) -> u64 {
    let plan = explain(hot, sql, arguments, true).await;
    let blocks = |key: &str| plan[0]["Plan"][key].as_u64().unwrap();
    blocks("Shared Hit Blocks") + blocks("Shared Read Blocks")
}

// Dropping a month blocks the table, so the rows to keep must be found quickly.
#[tokio::test]
async fn rows_to_keep_of_a_month_are_found_by_index() {
    let mut database = database("month").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute("ANALYZE").await.unwrap();
    plain.execute(FILL).await.unwrap();
    let month = "SELECT relname::text FROM pg_class WHERE oid = (SELECT tableoid FROM windlass.events LIMIT 1)";
    let month: String = plain.fetch_one(month).await.unwrap().get(0);
    for state in ["analysed while empty", "analysed"] {
        let ends = drop_month::ends_of(HistoryTable::Events, &month);
        let rows = format!("SELECT count(*) FROM {}", drop_month::rows_of(HistoryTable::Events, &month));
        let events = ["'{default,default}'", "'{10,20000}'"];
        for (sql, arguments) in [(&ends, &[][..]), (&rows, &events)] {
            // Run twice: the first run also reads system tables.
            pages(hot, sql, arguments).await;
            let touched = pages(hot, sql, arguments).await;
            assert!(touched < 40, "{state}: {touched} pages for {sql}");
        }
        plain.execute("ANALYZE").await.unwrap();
    }
    database.drop().await;
}

/// A million deliveries in one lane, and ten in another.
const CROWD: &str = "
INSERT INTO windlass.lanes (namespace, subscription_id, subscription, event_type, tags, priority)
VALUES ('default', 1, 'main', 't', 'common', 0), ('default', 1, 'main', 't', 'rare', 0);
INSERT INTO windlass.events (id, namespace, event_type, tags, payload, priority, created_at)
SELECT n, 'default', 't', '', '{}', 0, now() FROM generate_series(1, 10) n;
INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
    out_of_order, ready_at, attempts_limit, updated_at, created_at)
SELECT n, 1, CASE WHEN n <= 10 THEN 2 ELSE 1 END, 'default', 'main', 't', 0, false, now() - interval '1 minute', 20, now(),
    now()
FROM generate_series(1, 1000010) n";

// H15, B4
#[tokio::test]
async fn claim_does_not_read_a_million_events_with_other_tags() {
    let mut database = database("crowd").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute(CROWD).await.unwrap();
    let (_, sql, mut arguments) = statements().swap_remove(0);
    (arguments[4], arguments[8]) = ("'{2}'", "'{0}'");
    (arguments[9], arguments[10]) = ("'{2000-01-01}'", "'{0}'");
    // Once more, because the first run also reads tables of the system.
    explain(hot, sql, &arguments, true).await;
    let plan = explain(hot, sql, &arguments, true).await;
    let taken = plan[0]["Plan"]["Actual Rows"].as_f64().unwrap();
    let buffers = plan[0]["Plan"]["Shared Hit Blocks"].as_u64().unwrap()
        + plan[0]["Plan"]["Shared Read Blocks"].as_u64().unwrap();
    assert_eq!(taken, 10.0);
    // For ten deliveries: found, locked, changed, and read with their events.
    assert!(buffers < 100, "{buffers} buffers in {plan:#}");
    database.drop().await;
}

/// A hundred thousand delayed deliveries.
const DELAYED: &str = "
INSERT INTO windlass.lanes (namespace, subscription_id, subscription, event_type, tags, priority)
VALUES ('default', 1, 'main', 't', '', 0);
INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
    out_of_order, ready_at, attempts_limit, updated_at, created_at)
SELECT n, 1, 1, 'default', 'main', 't', 0, true, now() + interval '1 day', 20, now(), now()
FROM generate_series(1, 100000) n";

#[tokio::test]
async fn poll_reads_nothing_before_the_settled_event() {
    let mut database = database("delayed").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute(DELAYED).await.unwrap();
    let arguments = ["'default'", "'{}'", "'{1}'", "NULL", "'{100000}'"];
    explain(hot, watch::POLL_READY, &arguments, true).await;
    let plan = explain(hot, watch::POLL_READY, &arguments, true).await;
    let buffers = plan[0]["Plan"]["Shared Hit Blocks"].as_u64().unwrap()
        + plan[0]["Plan"]["Shared Read Blocks"].as_u64().unwrap();
    assert!(buffers < 100, "{buffers} buffers in {plan:#}");
    database.drop().await;
}

/// A hundred thousand events and attempts of one namespace, and a few of another, of which one is new.
const PAST: &str = "
INSERT INTO windlass.events (namespace, event_type, tags, payload, priority, created_at)
SELECT CASE WHEN n % 10000 = 0 THEN 'quiet' ELSE 'busy' END, 't', '', '{}', 0, now() - interval '1 minute'
FROM generate_series(1, 100000) n;
INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, finished_at,
    action, retry_count)
SELECT n, 1, 't', 1, CASE WHEN n % 10000 = 0 THEN 'quiet' ELSE 'busy' END, 'main',
       timestamptz '2100-01-01' + n * interval '1 millisecond', 'COMPLETED', 0
FROM generate_series(1, 100000) n";

#[tokio::test]
async fn recent_activity_is_found_without_reading_old_rows() {
    let mut database = database("past").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute(PAST).await.unwrap();
    for state in ["not analysed", "analysed", "analysed when there was one namespace"] {
        let statements = [
            ("published", activity::PUBLISHED, ["'quiet'", "90000", "100"].to_vec()),
            ("ended", activity::ENDED, ["'quiet'", "'2100-01-01 00:01:35'", "0", "100"].to_vec()),
        ];
        for (name, sql, arguments) in statements {
            let plan = explain(hot, sql, &arguments, true).await;
            let blocks = |key: &str| plan[0]["Plan"][key].as_u64().unwrap();
            let buffers = blocks("Shared Hit Blocks") + blocks("Shared Read Blocks");
            assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(1.0), "{name}, {state}");
            assert!(buffers < 40, "{name}, {state}: {buffers} buffers in {plan:#}");
        }
        if state == "analysed" {
            plain.execute("UPDATE windlass.events SET namespace = 'busy' WHERE namespace = 'quiet'").await.unwrap();
        }
        plain.execute("VACUUM ANALYZE windlass.events, windlass.event_attempts").await.unwrap();
        if state == "analysed" {
            plain.execute("UPDATE windlass.events SET namespace = 'quiet' WHERE id = 100000").await.unwrap();
        }
    }
    database.drop().await;
}

/// The statements of retention on a history in which it has reached the last few of a hundred thousand attempts.
fn of_retention() -> Vec<(&'static str, &'static str, Vec<&'static str>, u64)> {
    let events = "'{9,99}'";
    let mark = "date_trunc('month', now()) + interval '99990 milliseconds'";
    vec![
        ("attempts", retain::ATTEMPTS, vec!["'busy'", mark, "99990", "0", "'2099-01-01'", "1000"], 60),
        ("dead letters", retain::DEAD_LETTERS, vec!["'busy'", mark, "99990", "0", "'2099-01-01'", "1000"], 20),
        ("leftovers", retain::LEFTOVERS, vec!["'busy'", "7", "now()", "1000"], 40),
        ("lock", retain::LOCK, vec!["'busy'", events], 60),
        ("letters", retain::DELETE_LETTERS, vec!["'busy'", events, "'{1,1}'", "'{2020-01-01,2020-01-01}'"], 60),
        (
            "delete attempts",
            retain::DELETE_ATTEMPTS,
            vec!["'busy'", events, "'{main,main}'", "'{2099-01-01,2099-01-01}'"],
            120,
        ),
        ("delete events", retain::DELETE_EVENTS, vec!["'busy'", "'{100001,100002}'"], 120),
        ("settle", retain::SETTLE, vec!["'busy'", events, "'{main,main}'", "'{2099-01-01,2099-01-01}'"], 20),
        ("hold events", transition::HOLD_EVENTS, vec!["'busy'", "'{100001,100002}'", "'{2026-01-01,2026-01-01}'"], 120),
    ]
}

/// A history of three months, with events that nothing else refers to, and dead letters.
const HISTORY: &str = "
INSERT INTO windlass.events (namespace, event_type, tags, payload, priority, created_at)
SELECT 'busy', 't', '', '{}', 0, date_trunc('month', now()) + (n % 3) * interval '1 month' FROM generate_series(1, 100002) n;
INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, finished_at,
    action, retry_count)
SELECT n, 1, 't', 1, 'busy', 'main', date_trunc('month', now()) + n * interval '1 millisecond', 'COMPLETED', 0
FROM generate_series(1, 100000) n;
INSERT INTO windlass.dead_letters (event_id, subscription_id, event_type, namespace, subscription, status, reason, attempts,
    retry_count, failed_at, created_at)
SELECT n, 2, 't', 'busy', 'second', 'FAILED', 'x', 1, 0, date_trunc('month', now()) + n * interval '1 millisecond', now()
FROM generate_series(100, 20000) n;
INSERT INTO windlass.retention_leftovers (event_id, subscription, namespace, since, rules, look_at)
SELECT n, 'main', 'busy', now(), 7, now() + interval '1 day' FROM generate_series(1, 20000) n";

// C13
#[tokio::test]
async fn retention_reads_only_expired_rows() {
    let mut database = database("retention").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute("ALTER TABLE windlass.dead_letters SET (autovacuum_enabled = off)").await.unwrap();
    for state in ["empty", "analysed while empty", "analysed"] {
        for (name, sql, arguments, most) in of_retention() {
            let plan = explain(hot, sql, &arguments, true).await;
            let blocks = |key: &str| plan[0]["Plan"][key].as_u64().unwrap();
            let buffers = blocks("Shared Hit Blocks") + blocks("Shared Read Blocks");
            assert!(buffers <= most, "{name}, {state}: {buffers} buffers in {plan:#}");
            if name == "attempts" && state != "empty" {
                assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(10.0), "{state}");
            }
        }
        plain.execute("ANALYZE").await.unwrap();
        if state == "empty" {
            plain.execute(HISTORY).await.unwrap();
        }
    }
    database.drop().await;
}

/// How often the default partition was scanned.
async fn scans(connection: &mut PgConnection) -> i64 {
    connection.execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relid = 'windlass.events_default'::regclass";
    connection.fetch_one(scans).await.unwrap().get(0)
}

// A scan of the default partition while a month is created would block the table.
#[tokio::test]
async fn future_month_is_added_without_reading_the_default_partition() {
    let mut database = database("months").await;
    let plain = &mut database.plain;
    let part = |month: &str| (HistoryTable::Events, month.parse().unwrap());
    let fill = "INSERT INTO windlass.events (namespace, event_type, tags, payload, priority, created_at)
        SELECT 'default', 't', '', '{}', 0, timestamptz '2119-12-31 23:59:59Z' FROM generate_series(1, 100)";
    plain.execute(fill).await.unwrap();
    let before = scans(plain).await;
    months::add(plain, part("2120_02")).await.unwrap();
    assert_eq!(scans(plain).await, before + 1);
    // Twice: also after an interrupted attempt.
    for _ in 0..2 {
        months::exclude_month(plain, part("2120_01")).await.unwrap();
    }
    let before = scans(plain).await;
    months::add(plain, part("2120_01")).await.unwrap();
    assert_eq!(scans(plain).await, before);
    // Rows that violate the constraint are still accepted.
    assert!(months::exclude_month(plain, part("2119_12")).await.is_err());
    assert!(plain.execute(fill).await.is_err());
    months::include_month(plain, part("2119_12")).await.unwrap();
    months::include_month(plain, part("2119_12")).await.unwrap();
    plain.execute(fill).await.unwrap();
    let rules = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conname LIKE 'not_events_%'";
    assert_eq!(plain.fetch_one(rules).await.unwrap().get::<i64, _>(0), 0);
    database.drop().await;
}

fn held(lease: i64) -> LiveDelivery {
    LiveDelivery {
        event_id: 10,
        subscription_id: 1,
        lane_id: 1,
        event_type: "t".into(),
        lease: Some(Lease(lease)),
        attempts: 1,
        attempts_limit: 20,
        retry_count: 0,
        max_retries: None,
        subscription: "main".into(),
        group_id: None,
        picked_at: None,
    }
}

fn interim(lease: i64, handler: &str) -> InterimResult {
    InterimResult { live: held(lease), result: HandlerResult { handler: handler.into(), succeeded: true, error: None } }
}

// Q12
#[tokio::test]
async fn interim_result_requires_the_lease_and_locks_the_delivery() {
    let mut database = database("note").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute(FILL).await.unwrap();
    let mut tx = hot.begin().await.unwrap();
    assert_eq!(results::store_interim(&mut tx, "other", &[interim(7, "h")], None).await, Ok(vec![false]));
    let both = [interim(8, "g"), interim(7, "h")];
    assert_eq!(results::store_interim(&mut tx, "default", &both, None).await, Ok(vec![false, true]));
    assert_eq!(results::store_interim(&mut tx, "default", &both, None).await, Ok(vec![false, true]));
    // Until the transaction ends, the delivery cannot be claimed or released, …
    plain.execute("SET lock_timeout = '50ms'").await.unwrap();
    assert!(plain.execute("UPDATE windlass.event_queue SET lease = NULL WHERE event_id = 10").await.is_err());
    // … and another handler of it does not wait.
    assert_eq!(results::store_interim(plain, "default", &[interim(7, "i")], None).await, Ok(vec![true]));
    tx.commit().await.unwrap();
    let count = plain.fetch_one("SELECT count(*) FROM windlass.handler_results").await.unwrap();
    assert_eq!(count.get::<i64, _>(0), 2);
    database.drop().await;
}

// Q12
#[tokio::test]
async fn interim_result_waits_for_a_concurrent_lease_renewal() {
    let mut database = database("renewed").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute(FILL).await.unwrap();
    let mut renewal = plain.begin().await.unwrap();
    renewal.execute("UPDATE windlass.event_queue SET lease_expires_at = now() WHERE event_id = 10").await.unwrap();
    let renewed = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        renewal.commit().await.unwrap();
    };
    let results = [interim(7, "h")];
    let (noted, ()) = tokio::join!(results::store_interim(hot, "default", &results, None), renewed);
    assert_eq!(noted, Ok(vec![true]));
    database.drop().await;
}

// C11
#[tokio::test]
async fn schedule_changed_since_it_was_read_is_not_fired() {
    let database = database("changed").await;
    let (clock, hand) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
    let queue = crate::Queue::options(&database.url).clock(clock).open().await.unwrap();
    queue.changed_schedules_do_not_fire(&hand).await;
    queue.close().await;
    database.drop().await;
}

/// A hundred thousand schedules of one namespace, of which a few are due, and as many of another.
const SCHEDULES: &str = "
INSERT INTO windlass.schedules (schedule_id, namespace, name, cron, timezone, event_type, payload, next_at, created_at,
    updated_at)
SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, CASE WHEN n % 2 = 0 THEN 'default' ELSE 'other' END,
    'n' || n, '* * * * *', 'UTC', 't', '{}',
    CASE WHEN n <= 20 THEN timestamptz '2025-01-01' ELSE timestamptz '2125-01-01' END, '2025-01-01', '2025-01-01'
FROM generate_series(1, 200000) n";

// C11
#[tokio::test]
async fn due_schedules_are_found_without_reading_others() {
    let mut database = database("schedules").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute("ALTER TABLE windlass.schedules SET (autovacuum_enabled = off); ANALYZE").await.unwrap();
    plain.execute(SCHEDULES).await.unwrap();
    let ids = "'{00000000-0000-4000-8000-000000000002,00000000-0000-4000-8000-000000000004}'";
    let twice = "'{2025-01-01,2025-01-01}'";
    let (nobody, middle) = ("'00000000-0000-0000-0000-000000000000'", "'00000000-0000-4000-8000-000000100000'");
    let statements = [
        ("next ticks", schedules::NEXT_TICKS, vec!["NULL"], 2.0),
        ("first", schedules::FIRST, vec!["'default'", "NULL", "NULL", nobody], 1.0),
        ("due", schedules::DUE, vec!["'default'", "'2026-01-01'", "1000", "1000000", "NULL", nobody], 10.0),
        (
            "due after others",
            schedules::DUE,
            vec!["'default'", "'2126-01-01'", "3", "1000000", "'2125-01-01'", middle],
            3.0,
        ),
        ("lock", fire::LOCK, vec!["'default'", ids, twice, twice], 2.0),
        ("move", fire::MOVE, vec!["'default'", "NULL", ids, twice, twice, "'{1,2}'"], 2.0),
    ];
    for state in ["analysed while empty", "analysed"] {
        for (name, sql, arguments, rows) in &statements {
            let plan = explain(hot, sql, arguments, true).await;
            let blocks = |key: &str| plan[0]["Plan"][key].as_u64().unwrap();
            let buffers = blocks("Shared Hit Blocks") + blocks("Shared Read Blocks");
            assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(*rows), "{name}, {state}");
            assert!(buffers < 60, "{name}, {state}: {buffers} buffers in {plan:#}");
        }
        plain.execute("ANALYZE").await.unwrap();
    }
    database.drop().await;
}

#[tokio::test]
async fn lanes_are_numbered_in_the_order_of_their_commits() {
    let mut database = database("lanes").await;
    let store = PgStore::open(&database.url, Clock::system(), false, 1).await.unwrap();
    let lane =
        |tag: &str| LaneKey { subscription_id: 1, event_type: "t".into(), tags: vec![tag.to_owned()], priority: 0 };
    let first = store.add_lanes("default", &["c", "a"].map(lane)).await.unwrap();
    let second = store.add_lanes("default", &["d", "a", "b"].map(lane)).await.unwrap();
    assert_eq!(second[1], first[1], "the lane exists");
    let listed: Vec<i64> = store.lanes_after("default", 0).await.unwrap().iter().map(|lane| lane.lane_id).collect();
    let all: BTreeSet<i64> = first.iter().chain(&second).copied().collect();
    assert_eq!(listed.iter().copied().collect::<BTreeSet<i64>>(), all);
    // A lane that is committed late is numbered late.
    let (mut late, mut early) = (database.hot.begin().await.unwrap(), database.plain.begin().await.unwrap());
    let late_id = lanes::insert_lanes(&mut late, "default", &[lane("late")], None).await.unwrap();
    let early_id = lanes::insert_lanes(&mut early, "default", &[lane("early")], None).await.unwrap();
    early.commit().await.unwrap();
    late.commit().await.unwrap();
    let newest: Vec<i64> = store.lanes_after("default", 4).await.unwrap().iter().map(|lane| lane.lane_id).collect();
    assert!(late_id < early_id);
    assert_eq!(newest, [early_id, late_id].concat());
    drop(store);
    database.drop().await;
}
