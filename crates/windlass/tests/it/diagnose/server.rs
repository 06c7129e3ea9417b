//! Diagnosis of PostgreSQL databases.

use sqlx::{Connection, Executor};
use windlass_testkit::postgres;

use super::*;
use crate::open_transaction::OpenTransaction;
use crate::support::{eventually, publish};

on_postgres! {
    async fn long_transaction_is_found_and_advice_ends_it(bed) {
        let mut forgotten = OpenTransaction::begin(&bed.database).await;
        forgotten.execute("CREATE TABLE forgotten ()").await;
        bed.test_clock.set(from_now(4 * MINUTE));
        assert_eq!(level(&bed.queue, "pinned_xmin").await, FindingLevel::Ok);
        bed.test_clock.set(from_now(6 * MINUTE));
        let found = finding(&bed.queue, "pinned_xmin").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert!(found.summary.starts_with("vacuum cannot remove dead rows: pid "), "{found:?}");
        assert!(found.summary.contains("idle in its transaction) for "), "{found:?}");
        bed.test_clock.set(from_now(HOUR + MINUTE));
        let found = finding(&bed.queue, "pinned_xmin").await;
        assert_eq!(found.level, FindingLevel::Problem);
        bed.database.execute(&statement(&found, "SELECT pg_terminate_backend(")).await;
        eventually("the session is gone", async || level(&bed.queue, "pinned_xmin").await == FindingLevel::Ok).await;
    }

    async fn transaction_of_another_database_is_ignored(bed) {
        let mut elsewhere = postgres::connect(&postgres::server_url()).await;
        elsewhere.execute("BEGIN; CREATE TEMPORARY TABLE elsewhere ()").await.unwrap();
        bed.test_clock.set(from_now(HOUR));
        assert_eq!(level(&bed.queue, "pinned_xmin").await, FindingLevel::Ok);
    }

    async fn dead_rows_are_found_and_advice_removes_them(bed) {
        // Turns autovacuum off, so that it does not remove the rows before the check.
        let dirty = "
            ALTER TABLE windlass.event_queue SET (autovacuum_enabled = off);
            INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
                out_of_order, ready_at, attempts_limit, updated_at, created_at)
            SELECT n, 1, 1, 'default', 'main', 't', 0, false, now(), 1, now(), now() FROM generate_series(1, 25000) n;
            DELETE FROM windlass.event_queue";
        bed.database.execute(dirty).await;
        let off = finding(&bed.queue, "dead_rows").await;
        assert_eq!(off.level, FindingLevel::Problem);
        assert!(off.summary.starts_with("autovacuum is off for event_queue"), "{off:?}");
        // Turns it on again with a high threshold, so that the dead rows stay as with a pinned xmin.
        let on = "ALTER TABLE windlass.event_queue RESET (autovacuum_enabled);
                  ALTER TABLE windlass.event_queue SET (autovacuum_vacuum_threshold = 2000)";
        let mut connection = postgres::connect(&bed.database.url).await;
        connection.execute("BEGIN; LOCK TABLE windlass.event_queue IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
        connection.execute(on).await.unwrap();
        connection.execute("COMMIT; BEGIN; LOCK TABLE windlass.event_queue IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
        let behind = finding(&bed.queue, "dead_rows").await;
        assert_eq!(behind.level, FindingLevel::Warning);
        assert!(behind.summary.contains("event_queue has 25,000 dead and 0 live rows"), "{behind:?}");
        connection.execute("COMMIT").await.unwrap();
        connection.close().await.unwrap();
        bed.database.execute(&statement(&behind, "VACUUM")).await;
        assert_eq!(level(&bed.queue, "dead_rows").await, FindingLevel::Ok);
    }

    async fn invalid_index_is_found_and_advice_rebuilds_it(bed) {
        bed.database.execute("
            UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'windlass.event_queue_lane'::regclass").await;
        let found = finding(&bed.queue, "indexes").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "1 invalid: event_queue_lane"));
        bed.database.execute(&found.advice.unwrap()).await;
        assert_eq!(level(&bed.queue, "indexes").await, FindingLevel::Ok);
    }

    async fn missing_partitioned_index_is_found_and_advice_creates_it(bed) {
        bed.database.execute("DROP INDEX windlass.event_attempts_by_namespace").await;
        let found = finding(&bed.queue, "indexes").await;
        assert_eq!(found.summary, "1 missing: event_attempts_by_namespace");
        bed.database.execute(&found.advice.unwrap()).await;
        assert_eq!(level(&bed.queue, "indexes").await, FindingLevel::Ok);
    }

    async fn unsynced_commits_are_found(bed) {
        let name = postgres::lines(&bed.database.url, "SELECT current_database()::text").await.remove(0);
        bed.database.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
        let found = finding(&bed.second_queue().await, "durability").await;
        assert!(found.summary.contains("synchronous_commit is off"), "{found:?}");
        assert!(found.advice.as_ref().unwrap().contains("SET synchronous_commit = on"), "{found:?}");
        bed.database.execute(&format!("ALTER DATABASE {name} RESET synchronous_commit")).await;
        let found = finding(&bed.second_queue().await, "durability").await;
        assert!(!found.summary.contains("synchronous_commit"), "{found:?}");
    }

    async fn clock_skew_is_found(bed) {
        // The queue uses the test clock, the server its own.
        let found = finding(&bed.queue, "clock_skew").await;
        assert_eq!(found.level, FindingLevel::Problem);
        assert!(found.summary.contains(" days ahead of this machine's"), "{found:?}");
        bed.test_clock.set(from_now(Duration::ZERO));
        let level = level(&bed.queue, "clock_skew").await;
        assert!(level < FindingLevel::Problem, "{level:?}");
        assert_eq!(super::level(&bed.real_time_queue().await, "clock_skew").await, FindingLevel::Ok);
    }

    async fn missing_months_are_found(bed) {
        bed.test_clock.set(from_now(Duration::ZERO));
        assert_eq!(level(&bed.queue, "partitions").await, FindingLevel::Ok);
        let newest = "SELECT max(relname)::text FROM pg_class WHERE relname ~ '^events_\\d{4}_\\d\\d$'";
        let newest = postgres::lines(&bed.database.url, newest).await.remove(0);
        bed.database.execute(&format!("DROP TABLE windlass.{newest}")).await;
        let found = finding(&bed.queue, "partitions").await;
        assert_eq!((found.level, found.summary), (FindingLevel::Notice, format!("1 missing: {newest}")));
        bed.queue.partitions_once().await.unwrap();
        assert_eq!(level(&bed.queue, "partitions").await, FindingLevel::Ok);
    }

    async fn missing_notifications_are_found(bed) {
        eventually("the queue listens", async || level(&bed.queue, "notifications").await == FindingLevel::Ok).await;
        let name = postgres::lines(&bed.database.url, "SELECT current_database()::text").await.remove(0);
        // Existing connections stay open, but the terminated listener cannot reconnect.
        let server = postgres::server_url();
        postgres::execute(&server, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await;
        let terminate = format!(
            "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity
             WHERE datname = '{name}' AND query LIKE 'LISTEN %'"
        );
        assert_eq!(postgres::lines(&server, &terminate).await, ["true"]);
        let found = finding(&bed.queue, "notifications").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert!(found.advice.unwrap().contains("PgBouncer in transaction mode"));
        postgres::execute(&server, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true")).await;
        eventually("the queue listens again", async || level(&bed.queue, "notifications").await == FindingLevel::Ok).await;
    }

    async fn diagnosis_does_not_disturb_other_processes(bed) {
        let other = bed.second_queue().await;
        publish(&bed.queue, "t").await;
        other.diagnose().await.unwrap();
        bed.queue.diagnose().await.unwrap();
        assert_eq!(crate::support::claim_all(&other).await.len(), 1);
    }
}
