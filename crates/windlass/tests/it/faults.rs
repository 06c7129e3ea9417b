//! Databases that cannot be used: a clear error, nothing half done, and it works again afterwards.

use windlass::{ClaimRequest, Error, ListFilter, NewEvent, Queue, Report, schema_version};

use crate::support::*;

async fn code_of_opening(url: &str) -> &'static str {
    Queue::open(url).await.map(drop).expect_err("it cannot be opened").code()
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
    use crate::bed::{Bed, Database, Kind, run, run_on_empty};

    #[test]
    fn a_file_that_is_no_database_is_refused_and_left_alone() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            let text = "This is no database. ".repeat(1_000);
            fs::write(database.file(), &text).unwrap();
            assert_eq!(code_of_opening(&database.url).await, "database");
            assert_eq!(fs::read_to_string(database.file()).unwrap(), text);
        });
    }

    #[test]
    fn a_file_that_cannot_be_made_is_refused() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            let folder = database.folder.path().display();
            assert_eq!(
                code_of_opening(&format!("sqlite://{folder}/no/such/folder/x.db")).await,
                "database_unavailable"
            );
            assert_eq!(code_of_opening(&format!("sqlite://{folder}")).await, "database_unavailable");
        });
    }

    #[test]
    fn a_version_is_read_without_making_a_file() {
        run_on_empty(Kind::Sqlite, async |database: &Database| {
            assert_eq!(schema_version(&database.url).await.unwrap().found, 0);
            assert!(!database.file().exists());
        });
    }

    /// Sets the version that SQLite must know to write to the file; above 2, it only reads. Unlike a
    /// file's permissions, this holds for root too.
    fn set_write_version(database: &Database, version: u8) {
        let mut file = fs::OpenOptions::new().write(true).open(database.file()).unwrap();
        file.seek(SeekFrom::Start(18)).unwrap();
        file.write_all(&[version]).unwrap();
    }

    #[test]
    fn a_read_only_database_says_so() {
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
            assert_eq!(take(&queue).await.event.id, event.id);
            assert_eq!(total(&queue).await, 1);
        });
    }

    #[test]
    fn a_locked_database_is_waited_for_and_then_reported() {
        run(Kind::Sqlite, async |bed: &Bed| {
            let queue = &bed.queue;
            publish(queue, "held").await;
            let held = take(queue).await;
            let event = publish(queue, "t").await;
            let locker = rusqlite::Connection::open(bed.database.file()).unwrap();
            locker.execute_batch("BEGIN IMMEDIATE").unwrap();
            let (published, seen) = tokio::join!(queue.publish(NewEvent::new("t")), queue.get(event.id));
            // Readers need no lock.
            assert_eq!(seen.unwrap().event.id, event.id);
            let error = published.unwrap_err();
            assert_eq!(error.code(), "database_locked", "{error}");
            assert!(error.is_temporary());
            locker.execute_batch("ROLLBACK").unwrap();
            assert_eq!(total(queue).await, 2);
            done(queue, &held).await;
            assert_eq!(take(queue).await.event.id, event.id);
            publish(queue, "t").await;
        });
    }

    #[test]
    fn a_lock_that_is_soon_released_is_not_noticed() {
        run(Kind::Sqlite, async |bed: &Bed| {
            let locker = rusqlite::Connection::open(bed.database.file()).unwrap();
            locker.execute_batch("BEGIN IMMEDIATE").unwrap();
            let queue = bed.queue.clone();
            let publishing = tokio::spawn(async move { publish(&queue, "t").await });
            tokio::task::spawn_blocking(move || locker.execute_batch("COMMIT").unwrap()).await.unwrap();
            let event = publishing.await.unwrap();
            assert_eq!(take(&bed.queue).await.event.id, event.id);
        });
    }

    #[test]
    fn a_damaged_database_is_an_error_and_no_panic() {
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

    use super::*;
    use crate::bed::{Bed, Database, Kind, run, run_on_empty};
    use crate::postgres as server;

    const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'windlass'";

    /// A call that may fail while its connection is taken away, but only so.
    fn unavailable<T>(result: &Result<T, Error>) -> bool {
        match result {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.code(), "database_unavailable", "{error}");
                true
            }
        }
    }

    /// The answer of a call that is made again for as long as it meets broken connections, of which
    /// there are only a few.
    async fn soon<T>(call: impl AsyncFn() -> Result<T, Error>) -> T {
        for _ in 0..10 {
            let answer = call().await;
            if !unavailable(&answer) {
                return answer.unwrap();
            }
        }
        panic!("broken connections are not replaced");
    }

    #[test]
    fn a_server_that_is_not_there_is_reported() {
        run_on_empty(Kind::Postgres, async |_: &Database| {
            assert_eq!(code_of_opening("postgres://windlass@127.0.0.1:1/windlass").await, "database_unavailable");
            assert_eq!(code_of_opening(&server::url_of("no_such_database")).await, "database_unavailable");
        });
    }

    #[test]
    fn a_database_that_accepts_no_connections_is_temporarily_unavailable() {
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
    fn a_read_only_database_says_so() {
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
            assert_eq!(take(&bed.queue).await.event.id, event.id);
            assert_eq!(total(&bed.queue).await, 1);
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
            let held = take_all(queue).await;
            for (round, delivery) in held.iter().enumerate() {
                server::lines(&bed.database.url, TERMINATE).await;
                let finished = soon(async || queue.finish(delivery, Report::done()).await).await;
                assert!(!finished.is_lost(), "round {round}");
                soon(async || queue.publish(NewEvent::new("t").key(format!("{round}"))).await).await;
                let view = soon(async || queue.get(delivery.event.id).await).await;
                assert_eq!(view.deliveries[0].status, Status::Completed);
                soon(async || queue.claim(ClaimRequest::new("w").types(["none"])).await).await;
            }
            let got = soon(async || queue.claim(ClaimRequest::new("w").max(100)).await).await;
            assert_eq!(got.len(), held.len());
            unavailable(&waiting.await.unwrap());
        });
    }

    // Whatever the moment: a publish is stored whole or not at all, and a finish happens once.
    #[test]
    fn connections_lost_in_mid_call_leave_nothing_half_done() {
        run(Kind::Postgres, async |bed: &Bed| {
            let policy = Policy { lease_ms: 500, max_attempts: 1_000, ..Policy::default() };
            bed.namespace(policy).await;
            let queue = bed.real_time().await.in_namespace("ns").unwrap();
            let over = Arc::new(AtomicBool::new(false));
            let (url, until) = (bed.database.url.clone(), over.clone());
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
            over.store(true, Ordering::SeqCst);
            terminator.await.unwrap();
            assert!(failures > 0, "no call ever failed: the test shows nothing");

            // Each key was stored once, and each event has its delivery, which can still be brought to its end.
            let page = soon(async || queue.list(ListFilter { limit: 1_000, ..Default::default() }).await).await;
            assert_eq!(page.total, 4 * 15);
            assert!(page.items.iter().all(|view| view.deliveries.len() == 1));
            eventually("all are done", async || {
                let request = || ClaimRequest::new("last").max(100).wait(millis(600));
                for delivery in soon(async || queue.claim(request()).await).await {
                    drop(soon(async || queue.finish(&delivery, Report::done()).await).await);
                }
                let done = || ListFilter { status: Some(Status::Completed), ..Default::default() };
                soon(async || queue.list(done()).await).await.total == 4 * 15
            })
            .await;
            for view in page.items {
                let trail = trail(&queue, view.event.id).await;
                assert_eq!(trail.iter().filter(|action| **action == Action::Completed).count(), 1, "{trail:?}");
            }
        });
    }

    /// Publishes 15 events, each until it works, and finishes what it can get; how many calls failed.
    async fn publish_and_finish(queue: Queue, worker: usize) -> usize {
        let mut failures = 0;
        for n in 0..15 {
            let event = || NewEvent::new("t").key(format!("{worker}-{n}")).group(format!("g{worker}"));
            while unavailable(&queue.publish(event()).await) {
                failures += 1;
            }
            let claimed = queue.claim(ClaimRequest::new(format!("w{worker}")).max(3)).await;
            failures += usize::from(unavailable(&claimed));
            for delivery in claimed.unwrap_or_default() {
                while unavailable(&queue.finish(&delivery, Report::done()).await) {
                    failures += 1;
                }
            }
        }
        failures
    }

    #[test]
    fn a_closed_queue_leaves_no_connection() {
        run(Kind::Postgres, async |bed: &Bed| {
            let ours = "SELECT count(*)::text FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name = 'windlass'";
            publish(&bed.queue, "t").await;
            take(&bed.queue).await;
            bed.queue.close().await;
            eventually("all connections are closed", async || server::lines(&bed.database.url, ours).await == ["0"])
                .await;
        });
    }

    // A claim begins where the last one ended; what commits late, behind that, is only delayed.
    #[test]
    fn an_event_that_commits_late_is_found() {
        run(Kind::Postgres, async |bed: &Bed| {
            let queue = bed.real_time().await;
            publish_many(&queue, "t", 2).await;
            let model = take(&queue).await.event.id;
            let mut late = server::connect(&bed.database.url).await;
            let insert = format!(
                "BEGIN;
                 CREATE TEMPORARY TABLE copy AS SELECT * FROM windlass.events WHERE id = {model};
                 UPDATE copy SET id = nextval('windlass.events_id_seq'), created_at = now();
                 INSERT INTO windlass.events SELECT * FROM copy;
                 INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type, priority,
                     out_of_order, ready_at, attempts_limit,
                                                   updated_at, created_at)
                 SELECT c.id, q.subscription_id, q.lane_id, q.namespace, q.subscription, q.event_type, 0, false, now(), q.attempts_limit, now(), now()
                 FROM copy c, windlass.event_queue q WHERE q.event_id = {model};"
            );
            late.execute(AssertSqlSafe(insert)).await.unwrap();
            let newer = publish_many(&queue, "t", 3).await;
            assert_eq!(take_all(&queue).await.len(), 1 + newer.len());
            late.execute("COMMIT").await.unwrap();
            let found = take_soon(&queue).await.event.id;
            assert!(model < found && found < newer[0], "{found}");
        });
    }
}
