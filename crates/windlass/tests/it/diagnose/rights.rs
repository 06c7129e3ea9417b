//! Diagnosis of roles, limits and server settings, on PostgreSQL servers that the tests start.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use windlass_testkit::{Database, Kind, postgres};

use super::*;
use crate::bed::run_on_empty;
use crate::server::Server;
use crate::support::eventually;

const SETTINGS: &[&str] = &["fsync=on", "full_page_writes=on", "max_prepared_transactions=5", "wal_level=logical"];

/// Runs a test on its own server, or skips it if PostgreSQL is not installed.
fn on_own_server(test: impl AsyncFnOnce(&mut Server)) {
    run_on_empty(Kind::Postgres, async |_: &Database| {
        if let Some(mut server) = Server::start_new_with(SETTINGS).await {
            test(&mut server).await;
        }
    });
}

/// The URL of the server with another role.
fn url_as(server: &Server, role: &str) -> String {
    server.url().replace("windlass@", &format!("{role}@"))
}

async fn execute(server: &Server, sql: &str) {
    postgres::execute(&server.url(), sql).await;
}

const ROLE: &str = "
CREATE ROLE clerk LOGIN CONNECTION LIMIT 24;
GRANT USAGE ON SCHEMA windlass TO clerk;
GRANT ALL ON ALL TABLES IN SCHEMA windlass TO clerk;
GRANT ALL ON ALL SEQUENCES IN SCHEMA windlass TO clerk;";

#[test]
fn postgres_durable_server_has_no_findings() {
    on_own_server(async |server| {
        let queue = Queue::open(&server.url()).await.unwrap();
        let findings = queue.diagnose().await.unwrap();
        let problems: Vec<_> = findings.iter().filter(|finding| finding.level > FindingLevel::Ok).collect();
        assert_eq!(problems, [] as [&Finding; 0]);
    });
}

#[test]
fn postgres_prepared_transaction_is_found_and_advice_ends_it() {
    on_own_server(async |server| {
        let (clock, test_clock) = windlass::Clock::test(from_now(Duration::ZERO));
        let queue = Queue::options(&server.url()).clock(clock).open().await.unwrap();
        execute(server, "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'left behind'").await;
        test_clock.set(from_now(2 * HOUR));
        let found = finding(&queue, "pinned_xmin").await;
        assert_eq!(found.level, FindingLevel::Problem);
        let expected = "vacuum cannot remove dead rows: prepared transaction 'left behind' of windlass for ";
        assert!(found.summary.starts_with(expected), "{found:?}");
        execute(server, &statement(&found, "ROLLBACK PREPARED")).await;
        assert_eq!(level(&queue, "pinned_xmin").await, FindingLevel::Ok);
        // An unused replication slot is not reported before it is old.
        execute(server, "SELECT pg_create_logical_replication_slot('idle', 'pgoutput')").await;
        assert_eq!(level(&queue, "pinned_xmin").await, FindingLevel::Ok);
    });
}

#[test]
fn postgres_missing_rights_are_reported_with_grants() {
    on_own_server(async |server| {
        Queue::open(&server.url()).await.unwrap().close().await;
        execute(server, ROLE).await;
        execute(server, "REVOKE EXECUTE ON FUNCTION pg_notification_queue_usage() FROM PUBLIC").await;
        let queue = Queue::options(&url_as(server, "clerk")).migrate(false).open().await.unwrap();
        let refused = finding(&queue, "notify_queue").await;
        assert_eq!(refused.level, FindingLevel::Notice);
        assert!(refused.advice.as_ref().unwrap().contains("GRANT pg_monitor TO \"clerk\""), "{refused:?}");
        let hidden = finding(&queue, "pinned_xmin").await;
        assert_eq!(hidden.level, FindingLevel::Notice);
        execute(server, &statement(&hidden, "GRANT")).await;
        assert_eq!(level(&queue, "pinned_xmin").await, FindingLevel::Ok);
        execute(server, "GRANT EXECUTE ON FUNCTION pg_notification_queue_usage() TO clerk").await;
        assert_eq!(level(&queue, "notify_queue").await, FindingLevel::Ok);
        // The other checks ran.
        assert_eq!(level(&queue, "indexes").await, FindingLevel::Ok);
    });
}

#[test]
fn postgres_connection_shortage_is_found() {
    on_own_server(async |server| {
        Queue::open(&server.url()).await.unwrap().close().await;
        execute(server, ROLE).await;
        let url = url_as(server, "clerk");
        let queue = Queue::options(&url).migrate(false).open().await.unwrap();
        assert_eq!(level(&queue, "connections").await, FindingLevel::Ok);
        let mut others: Vec<PgConnection> = Vec::new();
        while let Ok(connection) = PgConnection::connect(&url).await {
            others.push(connection);
        }
        let found = finding(&queue, "connections").await;
        assert_eq!(
            (found.level, &*found.summary),
            (FindingLevel::Problem, "24 of 24 for this role are in use; one windlass process takes up to 17",)
        );
        for connection in others.drain(10..) {
            connection.close().await.unwrap();
        }
        eventually("some connections are free", async || level(&queue, "connections").await == FindingLevel::Warning)
            .await;
        drop(others);
        eventually("most connections are free", async || level(&queue, "connections").await == FindingLevel::Ok).await;
    });
}

#[test]
fn postgres_unreachable_server_is_the_only_finding() {
    on_own_server(async |server| {
        let queue = Queue::open(&server.url()).await.unwrap();
        server.crash();
        let findings = queue.diagnose().await.unwrap();
        assert_eq!(findings.len(), 1);
        assert_eq!((&*findings[0].check, findings[0].level), ("database", FindingLevel::Problem));
        assert!(findings[0].advice.as_ref().unwrap().contains("check that the server runs"), "{findings:?}");
        let error = Queue::options(&server.url()).migrate(false).open().await.map(drop).unwrap_err();
        assert_eq!(Finding::database_unavailable(&server.url(), &error).check, "database");
        server.start().await;
        eventually("the server is available again", async || level(&queue, "database").await == FindingLevel::Ok).await;
    });
}

#[test]
fn postgres_read_only_server_is_found_and_advice_fixes_it() {
    on_own_server(async |server| {
        let queue = Queue::open(&server.url()).await.unwrap();
        let reopened = async || Queue::options(&server.url()).migrate(false).open().await.unwrap();
        let mut writer = postgres::connect(&server.url()).await;
        execute(server, "ALTER DATABASE postgres SET default_transaction_read_only = on").await;
        let found = finding(&reopened().await, "durability").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "the server is read-only"));
        // Existing connections are not affected.
        assert_eq!(level(&queue, "durability").await, FindingLevel::Ok);
        let fix = statement(&found, "ALTER DATABASE");
        let fix = fix.split(',').next().unwrap().to_owned();
        writer.execute(AssertSqlSafe(fix)).await.unwrap();
        assert_eq!(level(&reopened().await, "durability").await, FindingLevel::Ok);
    });
}
