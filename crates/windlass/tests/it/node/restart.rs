//! The database server crashes and restarts while a node works.

use sqlx::PgConnection;
use tokio::sync::Semaphore;
use windlass::{ClaimRequest, Handler, NewEvent, Node, Policy, Status};
use windlass_testkit::{Database, Kind, postgres};

use super::*;
use crate::bed::run_on_empty;
use crate::server::Server;

const EVENTS: usize = 150;
const CRASHES: usize = 3;

async fn namespace(server: &Server, name: &str, lease_ms: u64) -> Queue {
    // Without retries, the first failure of a handler is final.
    let policy = Policy { lease_ms, max_retries: Some(0), max_attempts: 1_000, ..immediate_retries() };
    let queue = Queue::open(&server.url()).await.unwrap();
    queue.put_namespace(name, Some(policy.into()), None).await.unwrap()
}

/// Publishes events with keys, and repeats failed calls. Each event is stored once, also if a failed call had stored
/// it.
async fn publish_all(queue: Queue, publisher: usize) -> Vec<i64> {
    let mut stored = Vec::new();
    for n in 0..EVENTS {
        let event = || NewEvent::new("t").key(format!("{publisher}-{n}")).group(format!("g{}", n % 20));
        stored.push(loop {
            match queue.publish(event()).await {
                Ok(published) => break published.event.id,
                Err(error) => assert_eq!(error.code(), "database_unavailable", "{error}"),
            }
            tokio::time::sleep(millis(20)).await;
        });
        tokio::time::sleep(millis(2)).await;
    }
    stored
}

async fn write(mut tx: windlass::PgTx, event_id: i64) -> Handled {
    let connection: &mut PgConnection = &mut tx;
    sqlx::query("INSERT INTO effects VALUES ($1)").bind(event_id).execute(&mut *connection).await?;
    tokio::time::sleep(millis(fastrand::u64(..5))).await;
    sqlx::query("SELECT 1").execute(connection).await?;
    Ok(())
}

async fn count(queue: &Queue, status: Status) -> u64 {
    let filter = windlass::ListFilter { status: Some(status), ..Default::default() };
    queue.list(filter).await.map_or(0, |page| page.total)
}

// C10, C7
#[test]
fn postgres_node_survives_database_crashes() {
    run_on_empty(Kind::Postgres, async |_: &Database| {
        let Some(mut server) = Server::start_new().await else { return };
        let (queue, ledger) = (namespace(&server, "ns", 1_000).await, Ledger::default());
        postgres::execute(&server.url(), "CREATE TABLE effects (event_id BIGINT)").await;
        let written = ledger.clone();
        let writes = Handler::in_pg_tx("t", move |event, tx| {
            written.write("began");
            write(tx, event.id)
        });
        let node = start(Node::new(&queue, "n").handler(writes)).await;
        let publishers: Vec<_> = (0..2).map(|n| tokio::spawn(publish_all(queue.clone(), n))).collect();
        for _ in 0..CRASHES {
            let begun = ledger.lines().len();
            eventually("the node handles events", async || ledger.lines().len() > begun + 20).await;
            server.crash();
            server.start().await;
        }
        let mut stored = Vec::new();
        for publisher in publishers {
            stored.extend(publisher.await.unwrap());
        }
        let done = async || count(&queue, Status::Completed).await == stored.len() as u64;
        eventually("all published events are completed", done).await;
        assert_eq!(count_events(&queue).await, stored.len() as u64);
        let effects = postgres::lines(&server.url(), "SELECT event_id::text FROM effects").await;
        assert_eq!(sorted(effects), sorted(stored.iter().map(i64::to_string).collect()));
        node.stop().await;
        queue.close().await;
    });
}

// C10
#[test]
fn postgres_claims_undone_by_a_crash_are_repeated() {
    run_on_empty(Kind::Postgres, async |_: &Database| {
        // Claims are not synced, and the WAL writer does not flush them for this long.
        let Some(mut server) = Server::start_new_with(&["wal_writer_delay=10s"]).await else { return };
        let queue = namespace(&server, "ns", 1_000).await;
        let events = publish_many(&queue, "t", 5).await;
        let claim = async || queue.claim(ClaimRequest::new("w").max(10)).await.unwrap_or_default();
        assert_eq!(claim().await.len(), 5);
        assert_eq!(claim().await.len(), 0);
        server.crash();
        server.start().await;
        let again = Mutex::new(Vec::new());
        eventually("all are claimed again", async || {
            let claimed = ids(&claim().await);
            again.lock().unwrap().extend(claimed);
            again.lock().unwrap().len() == 5
        })
        .await;
        assert_eq!(sorted(again.into_inner().unwrap()), events);
        queue.close().await;
    });
}

// C10
#[test]
fn postgres_results_from_an_outage_are_reported_afterwards() {
    run_on_empty(Kind::Postgres, async |_: &Database| {
        let Some(mut server) = Server::start_new().await else { return };
        let queue = namespace(&server, "ns", 60_000).await;
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let (written, opened) = (ledger.clone(), gate.clone());
        let node = start(Node::new(&queue, "n").on("t", move |_, _| {
            let (ledger, gate) = (written.clone(), opened.clone());
            async move {
                ledger.write("began");
                gate.acquire().await?.forget();
                ledger.write("ended");
                Ok(())
            }
        }))
        .await;
        let events = publish_many(&queue, "t", 5).await;
        ledger.wait(5).await;
        // Claims are not synced, and a crash may undo the last ones. This synced write makes them durable.
        queue.publish(NewEvent::new("later").run_at(queue.clock().now() + chrono::TimeDelta::hours(1))).await.unwrap();
        server.crash();
        gate.add_permits(5);
        ledger.wait(10).await;
        server.start().await;
        for event in &events {
            wait_for_status(&queue, *event, Status::Completed).await;
            assert_eq!(view(&queue, *event).await.attempts, 1);
        }
        assert_eq!((ledger.count("began"), ledger.count("ended")), (5, 5));
        node.stop().await;
        queue.close().await;
    });
}
