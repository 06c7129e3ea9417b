//! Databases that cannot be used. Calls return a clear error, store nothing in part, and succeed again afterwards.

use windlass::{ClaimRequest, Error, ListFilter, NewEvent, Queue, Report, schema_version};
use windlass_testkit::{Database, Kind};

use crate::support::*;

async fn open_error_code(url: &str) -> &'static str {
    Queue::open(url).await.map(drop).expect_err("the database cannot be opened").code()
}

#[tokio::test]
async fn a_bad_url_is_refused() {
    let bad = ["", "windlass.db", "mysql://me:secret@host/db", "sqlite://", "sqlite:", "postgres", "http://host/"];
    for url in bad {
        let error = Queue::open(url).await.map(drop).unwrap_err();
        assert_eq!(error.code(), "database_url", "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(schema_version(url).await.unwrap_err().code(), "database_url");
    }
    let error = Queue::open("postgres://me:secret@host:notaport/db").await.map(drop).unwrap_err();
    assert_eq!(error.code(), "database_url", "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

mod sqlite {
    use std::fs;
    use std::io::{Seek, SeekFrom, Write};

    use super::*;
    use crate::bed::{Bed, run, run_on_empty};

    #[test]
    fn non_database_file_is_refused_and_unchanged() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            let text = "This is no database. ".repeat(1_000);
            fs::write(database.file(), &text).unwrap();
            assert_eq!(open_error_code(&database.url).await, "database");
            assert_eq!(fs::read_to_string(database.file()).unwrap(), text);
        });
    }

    #[test]
    fn file_that_cannot_be_created_is_refused() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            let folder = database.folder.path().display();
            assert_eq!(
                open_error_code(&format!("sqlite://{folder}/no/such/folder/x.db")).await,
                "database_unavailable"
            );
            assert_eq!(open_error_code(&format!("sqlite://{folder}")).await, "database_unavailable");
        });
    }

    #[test]
    fn reading_schema_version_creates_no_file() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            assert_eq!(schema_version(&database.url).await.unwrap().found, 0);
            assert!(!database.file().exists());
        });
    }

    /// Sets the file format version that SQLite needs to write. Above 2 it only reads. Unlike file permissions, this
    /// also applies to root.
    fn set_write_version(database: &Database, version: u8) {
        let mut file = fs::OpenOptions::new().write(true).open(database.file()).unwrap();
        file.seek(SeekFrom::Start(18)).unwrap();
        file.write_all(&[version]).unwrap();
    }

    #[test]
    fn read_only_database_is_reported() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            let queue = database.open().await;
            let event = publish(&queue, "t").await;
            queue.close().await;
            drop(queue);
            set_write_version(database, 3);
            let opened = Queue::open(&database.url).await;
            let error = match opened {
                Ok(queue) => {
                    assert_eq!(queue.claim(ClaimRequest::new("w")).await.unwrap_err().code(), "database_read_only");
                    let error = queue.publish(NewEvent::new("t")).await.unwrap_err();
                    assert_eq!(queue.get(event.id).await.unwrap().event.id, event.id);
                    queue.close().await;
                    error
                }
                Err(error) => error,
            };
            assert_eq!(error.code(), "database_read_only", "{error}");
            set_write_version(database, 2);
            let queue = database.open().await;
            assert_eq!(claim_one(&queue).await.event.id, event.id);
            assert_eq!(count_events(&queue).await, 1);
        });
    }

    #[test]
    fn lock_timeout_is_reported() {
        run(Kind::Sqlite, async |bed: &Bed| {
            let queue = &bed.queue;
            publish(queue, "held").await;
            let held = claim_one(queue).await;
            let event = publish(queue, "t").await;
            let locker = rusqlite::Connection::open(bed.database.file()).unwrap();
            locker.execute_batch("BEGIN IMMEDIATE").unwrap();
            let (published, seen) = tokio::join!(queue.publish(NewEvent::new("t")), queue.get(event.id));
            // Reads need no lock.
            assert_eq!(seen.unwrap().event.id, event.id);
            let error = published.unwrap_err();
            assert_eq!(error.code(), "database_locked", "{error}");
            assert!(error.is_temporary());
            locker.execute_batch("ROLLBACK").unwrap();
            assert_eq!(count_events(queue).await, 2);
            done(queue, &held).await;
            assert_eq!(claim_one(queue).await.event.id, event.id);
            publish(queue, "t").await;
        });
    }

    #[test]
    fn short_lock_is_waited_for() {
        run(Kind::Sqlite, async |bed: &Bed| {
            let locker = rusqlite::Connection::open(bed.database.file()).unwrap();
            locker.execute_batch("BEGIN IMMEDIATE").unwrap();
            let queue = bed.queue.clone();
            let publishing = tokio::spawn(async move { publish(&queue, "t").await });
            tokio::task::spawn_blocking(move || locker.execute_batch("COMMIT").unwrap()).await.unwrap();
            let event = publishing.await.unwrap();
            assert_eq!(claim_one(&bed.queue).await.event.id, event.id);
        });
    }

    #[test]
    fn damaged_database_is_an_error() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            let queue = database.open().await;
            publish_many(&queue, "t", 500).await;
            queue.close().await;
            drop(queue);
            let length = fs::metadata(database.file()).unwrap().len();
            let mut file = fs::OpenOptions::new().write(true).open(database.file()).unwrap();
            file.seek(SeekFrom::Start(4_096)).unwrap();
            file.write_all(&vec![0xa5; length as usize - 4_096]).unwrap();
            match Queue::open(&database.url).await {
                Ok(queue) => assert_eq!(queue.list(ListFilter::default()).await.unwrap_err().code(), "database"),
                Err(error) => assert_eq!(error.code(), "database", "{error}"),
            }
        });
    }
}

mod postgres {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use sqlx::{AssertSqlSafe, Executor};
    use windlass::{Action, Policy, Status};
    use windlass_testkit::postgres as server;

    use super::*;
    use crate::bed::{Bed, run, run_on_empty};

    const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'windlass'";

    /// Whether a call failed because its connection was terminated. Panics on any other error.
    fn is_unavailable<T>(result: &Result<T, Error>) -> bool {
        match result {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.code(), "database_unavailable", "{error}");
                true
            }
        }
    }

    /// Repeats a call until it does not meet one of the few broken connections.
    async fn retry_call<T>(call: impl AsyncFn() -> Result<T, Error>) -> T {
        for _ in 0..10 {
            let result = call().await;
            if !is_unavailable(&result) {
                return result.unwrap();
            }
        }
        panic!("broken connections are not replaced");
    }

    #[test]
    fn unreachable_server_is_reported() {
        run_on_empty(Kind::Postgres, async |_: &Database| {
            assert_eq!(open_error_code("postgres://windlass@127.0.0.1:1/windlass").await, "database_unavailable");
            assert_eq!(open_error_code(&server::url_of("no_such_database")).await, "database_unavailable");
        });
    }

    #[test]
    fn refused_connections_are_a_temporary_error() {
        run(Kind::Postgres, async |bed: &Bed| {
            let name = bed.database.url.rsplit('/').next().unwrap().split('?').next().unwrap();
            let accept = async |on: bool| {
                server::execute(&server::server_url(), &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {on}")).await;
            };
            accept(false).await;
            let error = Queue::open(&bed.database.url).await.map(drop).unwrap_err();
            assert_eq!((error.code(), error.is_temporary()), ("database_unavailable", true), "{error}");
            accept(true).await;
            publish(&Queue::open(&bed.database.url).await.unwrap(), "t").await;
        });
    }

    #[test]
    fn read_only_database_is_reported() {
        run(Kind::Postgres, async |bed: &Bed| {
            let event = publish(&bed.queue, "t").await;
            let name = bed.database.url.rsplit('/').next().unwrap();
            let read_only = |on| format!("ALTER DATABASE {name} SET default_transaction_read_only = {on}");
            bed.database.execute(&read_only("on")).await;
            let queue = Queue::options(&bed.database.url).migrate(false).open().await.unwrap();
            let error = queue.publish(NewEvent::new("t")).await.unwrap_err();
            assert_eq!(error.code(), "database_read_only", "{error}");
            assert_eq!(queue.claim(ClaimRequest::new("w")).await.unwrap_err().code(), "database_read_only");
            assert_eq!(queue.get(event.id).await.unwrap().event.id, event.id);
            bed.database.execute(&format!("BEGIN; SET TRANSACTION READ WRITE; {}; COMMIT", read_only("off"))).await;
            assert_eq!(claim_one(&bed.queue).await.event.id, event.id);
            assert_eq!(count_events(&bed.queue).await, 1);
        });
    }

    #[test]
    fn connections_lost_between_calls_are_replaced() {
        run(Kind::Postgres, async |bed: &Bed| {
            let queue = &bed.queue;
            let waiting = tokio::spawn({
                let queue = queue.clone();
                async move { queue.claim(ClaimRequest::new("waits").types(["never"]).wait(secs(5))).await }
            });
            publish_many(queue, "t", 5).await;
            let held = claim_all(queue).await;
            for (round, delivery) in held.iter().enumerate() {
                server::lines(&bed.database.url, TERMINATE).await;
                let finished = retry_call(async || queue.finish(delivery, Report::done()).await).await;
                assert!(!finished.is_lost(), "round {round}");
                retry_call(async || queue.publish(NewEvent::new("t").key(format!("{round}"))).await).await;
                let view = retry_call(async || queue.get(delivery.event.id).await).await;
                assert_eq!(view.deliveries[0].status, Status::Completed);
                retry_call(async || queue.claim(ClaimRequest::new("w").types(["none"])).await).await;
            }
            let got = retry_call(async || queue.claim(ClaimRequest::new("w").max(100)).await).await;
            assert_eq!(got.len(), held.len());
            is_unavailable(&waiting.await.unwrap());
        });
    }

    // Wherever a call is interrupted, a publish is stored as a whole or not at all, and a finish is applied once.
    #[test]
    fn connections_lost_during_calls_leave_no_partial_state() {
        run(Kind::Postgres, async |bed: &Bed| {
            let policy = Policy { lease_ms: 500, max_attempts: 1_000, ..Policy::default() };
            bed.namespace(policy).await;
            let queue = bed.real_time_queue().await.in_namespace("ns").unwrap();
            let stopped = Arc::new(AtomicBool::new(false));
            let (url, until) = (bed.database.url.clone(), stopped.clone());
            let terminator = tokio::spawn(async move {
                let mut connection = server::connect(&url).await;
                while !until.load(Ordering::SeqCst) {
                    connection.execute(AssertSqlSafe(TERMINATE)).await.unwrap();
                    tokio::time::sleep(millis(fastrand::u64(10..40))).await;
                }
            });
            let workers: Vec<_> = (0..4)
                .map(|n| {
                    let queue = queue.clone();
                    tokio::spawn(async move { publish_and_finish(queue, n).await })
                })
                .collect();
            let mut failures = 0;
            for worker in workers {
                failures += worker.await.unwrap();
            }
            stopped.store(true, Ordering::SeqCst);
            terminator.await.unwrap();
            assert!(failures > 0, "no call ever failed: the test shows nothing");

            // Each key was stored once, and each event has a delivery that can still be completed.
            let page = retry_call(async || queue.list(ListFilter { limit: 1_000, ..Default::default() }).await).await;
            assert_eq!(page.total, 4 * 15);
            assert!(page.items.iter().all(|view| view.deliveries.len() == 1));
            eventually("all events are completed", async || {
                let request = || ClaimRequest::new("last").max(100).wait(millis(600));
                for delivery in retry_call(async || queue.claim(request()).await).await {
                    drop(retry_call(async || queue.finish(&delivery, Report::done()).await).await);
                }
                let done = || ListFilter { status: Some(Status::Completed), ..Default::default() };
                retry_call(async || queue.list(done()).await).await.total == 4 * 15
            })
            .await;
            for view in page.items {
                let trail = trail(&queue, view.event.id).await;
                assert_eq!(trail.iter().filter(|action| **action == Action::Completed).count(), 1, "{trail:?}");
            }
        });
    }

    /// Publishes 15 events, repeats failed calls, and finishes claimed events. Returns the number of failed calls.
    async fn publish_and_finish(queue: Queue, worker: usize) -> usize {
        let mut failures = 0;
        for n in 0..15 {
            let event = || NewEvent::new("t").key(format!("{worker}-{n}")).group(format!("g{worker}"));
            while is_unavailable(&queue.publish(event()).await) {
                failures += 1;
            }
            let claimed = queue.claim(ClaimRequest::new(format!("w{worker}")).max(3)).await;
            failures += usize::from(is_unavailable(&claimed));
            for delivery in claimed.unwrap_or_default() {
                while is_unavailable(&queue.finish(&delivery, Report::done()).await) {
                    failures += 1;
                }
            }
        }
        failures
    }

    #[test]
    fn closed_queue_leaves_no_connection() {
        run(Kind::Postgres, async |bed: &Bed| {
            let connections = "SELECT count(*)::text FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name = 'windlass'";
            publish(&bed.queue, "t").await;
            claim_one(&bed.queue).await;
            bed.queue.close().await;
            eventually("all connections are closed", async || {
                server::lines(&bed.database.url, connections).await == ["0"]
            })
            .await;
        });
    }

    // A claim starts at the position where the last one ended. An event that commits behind it is only delayed.
    #[test]
    fn event_that_commits_late_is_claimed() {
        run(Kind::Postgres, async |bed: &Bed| {
            let queue = bed.real_time_queue().await;
            publish_many(&queue, "t", 2).await;
            let template = claim_one(&queue).await.event.id;
            let mut late = server::connect(&bed.database.url).await;
            let insert = format!(
                "BEGIN;
                 CREATE TEMPORARY TABLE copy AS SELECT * FROM windlass.events WHERE id = {template};
                 UPDATE copy SET id = nextval('windlass.events_id_seq'), created_at = now();
                 INSERT INTO windlass.events SELECT * FROM copy;
                 INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
                     out_of_order, ready_at, attempts_limit,
                                                   updated_at, created_at)
                 SELECT c.id, q.subscription_id, q.lane_id, q.namespace, q.subscription, q.event_type, 0, false, now(), q.attempts_limit, now(), now()
                 FROM copy c, windlass.event_queue q WHERE q.event_id = {template};"
            );
            late.execute(AssertSqlSafe(insert)).await.unwrap();
            let newer = publish_many(&queue, "t", 3).await;
            assert_eq!(claim_all(&queue).await.len(), 1 + newer.len());
            late.execute("COMMIT").await.unwrap();
            let found = claim_one_soon(&queue).await.event.id;
            assert!(template < found && found < newer[0], "{found}");
        });
    }
}
