//! A search reads the rows it returns, and few others.

use sqlx::Executor;

use super::super::search;
use super::{Database, database, explain};

/// A hundred thousand events of one namespace, most of them done, and a few of another between them; as many dead
/// letters and live deliveries of the first, and a few of the second.
pub(super) const MANY: &str = "
INSERT INTO windlass.subscriptions (subscription_id, namespace, subscription, starts_at, created_at)
VALUES (101, 'busy', 'main', now(), now()), (102, 'quiet', 'main', now(), now());
INSERT INTO windlass.lanes (namespace, subscription_id, subscription, event_type, tags, priority)
VALUES ('busy', 101, 'main', 't', '', 0), ('quiet', 102, 'main', 't', '', 0);
INSERT INTO windlass.events (id, namespace, event_type, tags, payload, priority, created_at)
SELECT n, CASE WHEN n % 10000 = 0 THEN 'quiet' ELSE 'busy' END, 't', '', '{}', 0,
       date_trunc('month', now()) + (n % 3) * interval '1 month'
FROM generate_series(1, 100000) n;
INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, finished_at,
    action, retry_count)
SELECT id, CASE namespace WHEN 'busy' THEN 101 ELSE 102 END, 't', 1, namespace, 'main', created_at, 'COMPLETED', 0 FROM windlass.events;
INSERT INTO windlass.dead_letters (event_id, subscription_id, event_type, namespace, subscription, status, reason, attempts,
    retry_count, failed_at, created_at)
SELECT id, CASE namespace WHEN 'busy' THEN 101 ELSE 102 END, 't', namespace, 'main', 'FAILED', 'x', 1, 0, created_at, created_at FROM windlass.events;
INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
    out_of_order, ready_at, attempts_limit, updated_at, created_at)
SELECT id, CASE namespace WHEN 'busy' THEN 101 ELSE 102 END, CASE namespace WHEN 'busy' THEN 1 ELSE 2 END, namespace, 'main',
    't', 0, false, created_at, 20, created_at, created_at
FROM windlass.events";

#[tokio::test]
async fn search_reads_only_the_rows_it_walks() {
    let mut database = database("search").await;
    let Database { hot, plain, .. } = &mut database;
    plain.execute("ALTER TABLE windlass.dead_letters SET (autovacuum_enabled = off); ANALYZE").await.unwrap();
    plain.execute(MANY).await.unwrap();
    let ids = "'{100,200,300}'";
    let none = ["'{}'", "'{}'", "NULL", "NULL", "NULL", "NULL"];
    let like = |last: &'static str| [&["'busy'", ids][..], &none, &[last]].concat();
    // With the number of returned rows and the maximum number of pages: one per row, and the indexes of three months.
    let statements = [
        ("all", search::ALL, vec!["'busy'", "90000", "100"], 100.0, 120),
        ("all of few", search::ALL, vec!["'quiet'", "90000", "100"], 8.0, 60),
        ("told", search::MATCHED, vec!["'busy'", "90000", "100", "'main'"], 100.0, 3_000),
        ("live", search::LIVE, vec!["'busy'", "90000", "100", "'main'", "'PENDING'"], 100.0, 1_000),
        ("ended", search::ENDED, vec!["'busy'", "90000", "100", "'main'", "'CANCELLED'"], 100.0, 3_000),
        ("dead", search::DEAD, vec!["'busy'", "90000", "100", "'main'", "'EXPIRED'"], 100.0, 120),
        ("dead of few", search::DEAD, vec!["'quiet'", "90000", "100", "'main'", "'FAILED'"], 8.0, 30),
        ("free ids", search::PENDING_IDS, vec!["'busy'", "'main'", "100"], 100.0, 200),
        ("free ids of few", search::PENDING_IDS, vec!["'quiet'", "'main'", "100"], 10.0, 40),
        ("matching", search::MATCHING, like("'%nowhere%'"), 0.0, 60),
    ];
    for state in ["analysed while empty", "analysed"] {
        for (name, sql, arguments, rows, most) in &statements {
            let plan = explain(hot, sql, arguments, true).await;
            let blocks = |key: &str| plan[0]["Plan"][key].as_u64().unwrap();
            let buffers = blocks("Shared Hit Blocks") + blocks("Shared Read Blocks");
            assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(*rows), "{name}, {state}");
            assert!(buffers <= *most, "{name}, {state}: {buffers} buffers in {plan:#}");
        }
        plain.execute("ANALYZE").await.unwrap();
    }
    database.drop().await;
}
