//! A PostgreSQL server of a test's own: roles, limits and settings that others must not feel.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::*;
use crate::bed::{Database, Kind, run_on_empty};
use crate::postgres;
use crate::server::Server;
use crate::support::eventually;

const SETTINGS: &[&str] = &["fsync=on", "full_page_writes=on", "max_prepared_transactions=5", "wal_level=logical"];

/// Runs a test on a server of its own, where there can be one.
fn on_own_server(test: impl AsyncFnOnce(&mut Server)) {
    run_on_empty(Kind::Postgres, async |_: &Database| {
        if let Some(mut server) = Server::start_new_with(SETTINGS).await {
            test(&mut server).await;
        }
    });
}

/// The same server, as somebody else.
fn url_as(server: &Server, role: &str) -> String {
    server.url().replace("windlass@", &format!("{role}@"))
}

async fn execute(server: &Server, sql: &str) {
    postgres::execute(&server.url(), sql).await;
}

const ROLE: &str = "
CREATE ROLE clerk LOGIN CONNECTION LIMIT 20;
GRANT USAGE ON SCHEMA windlass TO clerk;
GRANT ALL ON ALL TABLES IN SCHEMA windlass TO clerk;
GRANT ALL ON ALL SEQUENCES IN SCHEMA windlass TO clerk;";

#[test]
fn postgres_a_durable_server_is_fine() {
    on_own_server(async |server| {
        let queue = Queue::open(&server.url()).await.unwrap();
        let findings = queue.diagnose().await.unwrap();
        let amiss: Vec<_> = findings.iter().filter(|finding| finding.level > FindingLevel::Ok).collect();
        assert_eq!(amiss, [] as [&Finding; 0]);
    });
}

#[test]
fn postgres_a_prepared_transaction_is_found_and_ended_by_the_advice() {
    on_own_server(async |server| {
        let (clock, hand) = windlass::Clock::test(from_now(Duration::ZERO));
        let queue = Queue::options(&server.url()).clock(clock).open().await.unwrap();
        execute(server, "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'left behind'").await;
        hand.set(from_now(2 * HOUR));
        let found = finding(&queue, "pinned_xmin").await;
        assert_eq!(found.level, FindingLevel::Problem);
        let said = "dead rows are kept: prepared transaction 'left behind' of windlass for ";
        assert!(found.summary.starts_with(said), "{found:?}");
        execute(server, &statement(&found, "ROLLBACK PREPARED")).await;
        assert_eq!(level(&queue, "pinned_xmin").await, FindingLevel::Ok);
        // A slot that nobody reads is seen, and not yet old.
        execute(server, "SELECT pg_create_logical_replication_slot('idle', 'pgoutput')").await;
        assert_eq!(level(&queue, "pinned_xmin").await, FindingLevel::Ok);
    });
}

#[test]
fn postgres_a_role_without_rights_is_told_what_to_grant() {
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
        // The others were checked all the same.
        assert_eq!(level(&queue, "indexes").await, FindingLevel::Ok);
    });
}

#[test]
fn postgres_connections_that_run_out_are_found() {
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
            (FindingLevel::Problem, "20 of 20 for this role are in use; one windlass process takes up to 15",)
        );
        for connection in others.drain(10..) {
            connection.close().await.unwrap();
        }
        eventually("some are free", async || level(&queue, "connections").await == FindingLevel::Warning).await;
        drop(others);
        eventually("most are free", async || level(&queue, "connections").await == FindingLevel::Ok).await;
    });
}

#[test]
fn postgres_a_server_that_is_away_is_the_finding() {
    on_own_server(async |server| {
        let queue = Queue::open(&server.url()).await.unwrap();
        server.crash();
        let findings = queue.diagnose().await.unwrap();
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].check, findings[0].level), ("database", FindingLevel::Problem));
        assert!(findings[0].advice.as_ref().unwrap().contains("see that the server runs"), "{findings:?}");
        let error = Queue::options(&server.url()).migrate(false).open().await.map(drop).unwrap_err();
        assert_eq!(Finding::unopened(&server.url(), &error).check, "database");
        server.start().await;
        eventually("it answers again", async || level(&queue, "database").await == FindingLevel::Ok).await;
    });
}

#[test]
fn postgres_a_server_that_takes_no_writes_is_found_and_mended_by_the_advice() {
    on_own_server(async |server| {
        let queue = Queue::open(&server.url()).await.unwrap();
        let reopened = async || Queue::options(&server.url()).migrate(false).open().await.unwrap();
        let mut writer = postgres::connect(&server.url()).await;
        execute(server, "ALTER DATABASE postgres SET default_transaction_read_only = on").await;
        let found = finding(&reopened().await, "durability").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "the server takes no writes"));
        // Who was connected before is not concerned.
        assert_eq!(level(&queue, "durability").await, FindingLevel::Ok);
        let mend = statement(&found, "ALTER DATABASE");
        let mend = mend.split(',').next().unwrap().to_owned();
        writer.execute(AssertSqlSafe(mend)).await.unwrap();
        assert_eq!(level(&reopened().await, "durability").await, FindingLevel::Ok);
    });
}
