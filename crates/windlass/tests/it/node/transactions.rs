//! Handlers in transactions: their writes are committed together with the completion of the event.

use windlass::{Handler, HandlerError, Node, Policy, Status};

use super::*;
use windlass_testkit::Kind;

/// Creates a table of the application in the queue's database.
async fn create_effects_table(bed: &Bed) {
    bed.database.execute("CREATE TABLE effects (event_id BIGINT, handler TEXT)").await;
}

/// The events for which a handler wrote a row.
async fn written(bed: &Bed, handler: &str) -> Vec<i64> {
    let sql = format!("SELECT event_id FROM effects WHERE handler = '{handler}' ORDER BY event_id");
    bed.database.select_numbers(&sql).await
}

/// A transactional handler for `t` that writes a row. `then` decides the outcome of each attempt.
fn writing_handler(bed: &Bed, id: &'static str, then: impl Fn(u32) -> Handled + Send + Sync + 'static) -> Handler {
    let then = Arc::new(then);
    let handler = match bed.database.kind {
        Kind::Sqlite => Handler::in_sqlite_tx("t", move |event, tx| {
            tx.execute("INSERT INTO effects VALUES (?1, ?2)", (event.id, id))?;
            then(event.attempt())
        }),
        Kind::Postgres => Handler::in_pg_tx("t", move |event, mut tx| {
            let then = then.clone();
            async move {
                let insert = sqlx::query("INSERT INTO effects VALUES ($1, $2)").bind(event.id).bind(id);
                insert.execute(&mut *tx).await?;
                then(event.attempt())
            }
        }),
    };
    handler.id(id)
}

on_postgres! {
    // The connection goes to the next handler, with a transaction that begins at the commit.
    async fn isolation_level_does_not_leak_to_next_handler(bed) {
        let options = windlass::Queue::options(&bed.database.url).handler_connections(1);
        let (queue, ledger) = (options.open().await.unwrap(), Ledger::default());
        let strict = Handler::in_pg_tx("strict", |_, mut tx| async move {
            sqlx::query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").execute(&mut *tx).await?;
            Ok(())
        });
        let written = ledger.clone();
        let plain = Handler::in_pg_tx("plain", move |_, mut tx| {
            let ledger = written.clone();
            async move {
                let level = sqlx::query_scalar::<_, String>("SHOW transaction_isolation").fetch_one(&mut *tx).await?;
                ledger.write(level);
                Ok(())
            }
        });
        let events = (0..40).map(|n| NewEvent::new(if n % 2 == 0 { "strict" } else { "plain" })).collect();
        queue.publish_all(events).await.unwrap();
        let node = start(Node::new(&queue, "n").handler(strict).handler(plain)).await;
        ledger.wait(20).await;
        assert_eq!(ledger.lines(), vec!["read committed"; 20]);
        node.stop().await;
        queue.close().await;
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Numbered(usize);

impl windlass::EventType for Numbered {
    const NAME: &str = "numbered";
}

conformance! {
    // C7
    async fn handler_writes_commit_with_the_completion(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let node = start(Node::new(&queue, "n").handler(writing_handler(bed, "a", |_| Ok(())))).await;
        let events = publish_many(&queue, "t", 50).await;
        for event in &events {
            wait_for_status(&queue, *event, Status::Completed).await;
        }
        assert_eq!(written(bed, "a").await, events);
        node.stop().await;
    }

    // C7
    async fn writes_of_failed_handler_are_rolled_back(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, Policy { max_retries: Some(4), ..immediate_retries() }).await;
        let work = |attempt| match attempt {
            1 => fail(),
            2 => panic!("oh"),
            3 => Err(HandlerError::snooze(millis(1))),
            _ => Ok(()),
        };
        let node = start(Node::new(&queue, "n").handler(writing_handler(bed, "a", work))).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(written(bed, "a").await, [event.id]);
        assert_eq!(view(&queue, event.id).await.attempts, 4);
        let never = |_| Err(HandlerError::unrecoverable("never"));
        node.handler(writing_handler(bed, "never", never)).await.unwrap();
        let dead = publish(&queue, "t").await;
        wait_for_status(&queue, dead.id, Status::Failed).await;
        assert!(written(bed, "never").await.is_empty());
        node.stop().await;
    }

    // C7: each handler has its own transaction unless the policy says otherwise.
    async fn handlers_with_separate_transactions_each_commit_once(bed) {
        create_effects_table(bed).await;
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let plain = {
            let ledger = ledger.clone();
            Handler::new("t", move |_, _| {
                let ledger = ledger.clone();
                async move {
                    ledger.write("plain");
                    Ok(())
                }
            })
        };
        let second = |attempt| if attempt < 3 { fail() } else { Ok(()) };
        let node = start(
            Node::new(&queue, "n")
                .handler(plain.id("plain"))
                .handler(writing_handler(bed, "first", |_| Ok(())))
                .handler(writing_handler(bed, "second", second)),
        )
        .await;
        let events = publish_many(&queue, "t", 5).await;
        for event in &events {
            wait_for_status(&queue, *event, Status::Completed).await;
        }
        assert_eq!((written(bed, "first").await, written(bed, "second").await), (events.clone(), events));
        assert_eq!(ledger.lines().len(), 5);
        // Stored handler results are deleted.
        assert!(bed.database.select_numbers(&format!("SELECT event_id FROM {}handler_results", schema(bed))).await.is_empty());
        node.stop().await;
    }

    async fn no_handler_results_remain_after_a_first_attempt(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let node = Node::new(&queue, "n").handler(writing_handler(bed, "first", |_| Ok(()))).handler(writing_handler(bed, "second", |_| Ok(())));
        let node = start(node).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(view(&queue, event.id).await.attempts, 1);
        assert!(bed.database.select_numbers(&format!("SELECT event_id FROM {}handler_results", schema(bed))).await.is_empty());
        node.stop().await;
    }

    // C7, under the preset `core`
    async fn handlers_that_share_a_transaction_succeed_or_fail_together(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, Policy { max_retries: Some(3), ..Policy::preset("core").unwrap() }).await;
        let second = |attempt| if attempt == 1 { fail() } else { Ok(()) };
        let node = start(
            Node::new(&queue, "n").handler(writing_handler(bed, "first", |_| Ok(()))).handler(writing_handler(bed, "second", second)),
        )
        .await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        // The first handler ran twice. The failure of the second one rolled its first write back.
        assert_eq!((written(bed, "first").await, written(bed, "second").await), (vec![event.id], vec![event.id]));
        node.stop().await;
    }

    // C7
    async fn preset_core_rolls_back_all_writes_if_a_handler_fails(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, Policy::preset("core").unwrap()).await;
        let plain = Handler::new("t", |_, _| async { fail() }).id("plain");
        let node = start(Node::new(&queue, "n").handler(writing_handler(bed, "a", |_| Ok(()))).handler(plain)).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        assert!(written(bed, "a").await.is_empty());
        node.stop().await;
    }

    async fn writes_under_a_lost_lease_are_rolled_back(bed) {
        create_effects_table(bed).await;
        // On SQLite no lease is renewed while the writer thread runs the handler. So the test resets the event before
        // that.
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let (other, once) = (bed.real_time_queue().await.in_namespace("ns").unwrap(), Arc::new(tokio::sync::Notify::new()));
        let waiting = {
            let once = once.clone();
            Handler::new("t", move |event, _| {
                let once = once.clone();
                async move {
                    if event.attempt() == 1 {
                        once.notified().await;
                    }
                    Ok(())
                }
            })
        };
        let node = Node::new(&queue, "n").concurrency(1).handler(waiting.id("waits"));
        let node = start(node.handler(writing_handler(bed, "a", |_| Ok(())))).await;
        let event = publish(&queue, "t").await;
        eventually("the event is claimed", async || status(&queue, event.id).await == Status::Processing).await;
        other.reset(event.id, "main", "test").await.unwrap();
        let second = claim_soon(&other, windlass::ClaimRequest::new("other")).await;
        once.notify_one();
        eventually("the first attempt has ended", async || queue.workers(secs(60)).await.unwrap().iter().all(|w| w.worker_id != "n" || w.held == 0)).await;
        node.stop().await;
        assert!(written(bed, "a").await.is_empty());
        done(&other, &second).await;
    }

    // O4, C7
    async fn group_continues_when_a_handler_transaction_commits(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let node = start(Node::new(&queue, "n").handler(writing_handler(bed, "a", |_| Ok(())))).await;
        let events = (0..20).map(|n| numbered("t", n).group("g")).collect();
        let events: Vec<i64> = queue.publish_all(events).await.unwrap().iter().map(|p| p.event.id).collect();
        wait_for_status(&queue, *events.last().unwrap(), Status::Completed).await;
        assert_eq!(written(bed, "a").await, events);
        node.stop().await;
    }

    // O4, C7
    async fn order_is_kept_when_a_member_of_a_run_is_rolled_back(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, max_retries: Some(9), ..immediate_retries() }).await;
        // Fails the first attempt of some events in the middle of a run.
        let failed = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
        let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let work = move |attempt: u32| {
            let n = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            match attempt == 1 && n % 7 == 3 && failed.lock().unwrap().insert(n) {
                true => fail(),
                false => Ok(()),
            }
        };
        let node = start(Node::new(&queue, "n").handler(writing_handler(bed, "a", work))).await;
        let events = (0..60).map(|n| numbered("t", n).group("g")).collect();
        let events: Vec<i64> = queue.publish_all(events).await.unwrap().iter().map(|p| p.event.id).collect();
        wait_for_status(&queue, *events.last().unwrap(), Status::Completed).await;
        let order = match bed.database.kind {
            Kind::Sqlite => "rowid",
            Kind::Postgres => "xmin::text::bigint",
        };
        let written = bed.database.select_numbers(&format!("SELECT event_id FROM effects ORDER BY {order}")).await;
        assert_eq!(written, events);
        node.stop().await;
    }

    // C7, O5
    async fn typed_handler_publishes_in_its_transaction(bed) {
        create_effects_table(bed).await;
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let first = match bed.database.kind {
            Kind::Sqlite => Handler::typed_in_sqlite_tx(|numbered: Numbered, tx| {
                let event = tx.context().event();
                tx.execute("INSERT INTO effects VALUES (?1, 'a')", [event.id])?;
                tx.emit("second", &(numbered.0 + event.attempt() as usize))?;
                if event.attempt() == 1 { fail() } else { Ok(()) }
            }),
            Kind::Postgres => Handler::typed_in_pg_tx(|numbered: Numbered, mut tx: windlass::PgTx| async move {
                let event = tx.context().event().clone();
                sqlx::query("INSERT INTO effects VALUES ($1, 'a')").bind(event.id).execute(&mut *tx).await?;
                tx.emit("second", &(numbered.0 + event.attempt() as usize)).await?;
                if event.attempt() == 1 { fail() } else { Ok(()) }
            }),
        };
        let written_by = ledger.clone();
        let node = start(Node::new(&queue, "n").handler(first).on("second", move |event, _| {
            let ledger = written_by.clone();
            async move {
                ledger.write(format!("{} {:?}", event.payload.get(), event.producer));
                Ok(())
            }
        }))
        .await;
        let event = queue.publish(numbered("numbered", 40)).await.unwrap().event;
        wait_for_status(&queue, event.id, Status::Completed).await;
        ledger.wait(1).await;
        assert_eq!(ledger.lines(), [r#"42 Some("n")"#]);
        assert_eq!(written(bed, "a").await, [event.id]);
        node.stop().await;
    }

    // C7, O5
    async fn events_published_in_a_handler_transaction_commit_with_it(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await, Ledger::default());
        let publisher = queue.clone();
        let first = match bed.database.kind {
            Kind::Sqlite => Handler::in_sqlite_tx("first", move |event, tx| {
                publisher.publish_in(tx, numbered("second", event.attempt() as usize))?;
                if event.attempt() == 1 { fail() } else { Ok(()) }
            }),
            Kind::Postgres => Handler::in_pg_tx("first", move |event, mut tx| {
                let publisher = publisher.clone();
                async move {
                    publisher.publish_in(&mut *tx, numbered("second", event.attempt() as usize)).await?;
                    if event.attempt() == 1 { fail() } else { Ok(()) }
                }
            }),
        };
        let written = ledger.clone();
        let node = start(Node::new(&queue, "n").handler(first).on("second", move |event, _| {
            let ledger = written.clone();
            async move {
                ledger.write(event.payload.get());
                Ok(())
            }
        }))
        .await;
        for n in 1..=20 {
            let event = publish(&queue, "first").await;
            wait_for_status(&queue, event.id, Status::Completed).await;
            ledger.wait(n).await;
        }
        assert_eq!(ledger.lines(), vec!["2"; 20]);
        node.stop().await;
    }

    async fn handler_execution_time_is_recorded(bed) {
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let slow = match bed.database.kind {
            Kind::Sqlite => Handler::in_sqlite_tx("t", |_, _| {
                std::thread::sleep(millis(60));
                Ok(())
            }),
            Kind::Postgres => Handler::in_pg_tx("t", |_, mut tx| async move {
                sqlx::query("SELECT pg_sleep(0.06)").execute(&mut *tx).await?;
                Ok(())
            }),
        };
        let node = start(Node::new(&queue, "n").handler(slow)).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        let log = queue.log(event.id).await.unwrap();
        assert!(log.last().unwrap().execution_time_ms.unwrap() >= 60);
        node.stop().await;
    }

    async fn handler_that_ends_its_transaction_fails(bed) {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, Policy { max_retries: Some(1), ..immediate_retries() }).await;
        let ending = |end: &'static str| match bed.database.kind {
            Kind::Sqlite => Handler::in_sqlite_tx(end, move |event, tx| {
                tx.execute("INSERT INTO effects VALUES (?1, 'a')", [event.id])?;
                Ok(tx.execute_batch(end)?)
            }),
            Kind::Postgres => Handler::in_pg_tx(end, move |event, mut tx| async move {
                sqlx::query("INSERT INTO effects VALUES ($1, 'a')").bind(event.id).execute(&mut *tx).await?;
                sqlx::raw_sql(end).execute(&mut *tx).await?;
                Ok(())
            }),
        };
        let node = Node::new(&queue, "n").handler(ending("ROLLBACK")).handler(ending("ROLLBACK; BEGIN"));
        let node = start(node.handler(ending("COMMIT"))).await;
        for end in ["ROLLBACK", "ROLLBACK; BEGIN", "COMMIT"] {
            let event = publish(&queue, end).await;
            wait_for_status(&queue, event.id, Status::Failed).await;
        }
        // Other events are not affected.
        let other = publish(&queue, "other").await;
        wait_for_status(&queue, other.id, Status::Pending).await;
        node.stop().await;
    }

    async fn transaction_handler_for_the_other_database_is_refused(bed) {
        let handler = match bed.database.kind {
            Kind::Sqlite => Handler::in_pg_tx("t", |_, _| async { Ok(()) }),
            Kind::Postgres => Handler::in_sqlite_tx("t", |_, _| Ok(())),
        };
        let refused = Node::new(&bed.queue, "n").handler(handler).start().await.err().unwrap();
        assert_eq!(refused.to_string(), "handler: 't' wants a transaction of another database than the queue's");
    }
}

fn schema(bed: &Bed) -> &'static str {
    if bed.database.kind == Kind::Postgres { "windlass." } else { "" }
}

/// A deferred constraint fails at the commit. Only its own handler fails, although others share the commit.
#[test]
fn sqlite_failure_at_commit_fails_only_its_handler() {
    crate::bed::run(Kind::Sqlite, async |bed: &Bed| {
        let queue = real_time_namespace(bed, Policy { max_retries: Some(1), ..immediate_retries() }).await;
        let tables = "CREATE TABLE parents (id INTEGER PRIMARY KEY);
            CREATE TABLE children (parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);";
        bed.database.execute(tables).await;
        let handler = Handler::in_sqlite_tx("t", |event, tx| {
            let n: i64 = event.payload()?;
            if n % 2 == 0 {
                tx.execute("INSERT INTO parents VALUES (?1)", [n])?;
            }
            tx.execute("INSERT INTO children VALUES (?1)", [n])?;
            Ok(())
        });
        let node = start(Node::new(&queue, "n").concurrency(20).handler(handler)).await;
        let mut events = Vec::new();
        for n in 0..60 {
            // Concurrent publishes succeed.
            events.push(publish_new(&queue, numbered("t", n)).await.id);
        }
        for (n, event) in events.into_iter().enumerate() {
            wait_for_status(&queue, event, if n % 2 == 0 { Status::Completed } else { Status::Failed }).await;
        }
        assert_eq!(bed.database.select_numbers("SELECT count(*) FROM children").await, [30]);
        node.stop().await;
    });
}

/// A nested transaction of sqlx is a savepoint in the handler's transaction.
#[test]
fn postgres_nested_transaction_does_not_commit_the_outer_one() {
    crate::bed::run(Kind::Postgres, async |bed: &Bed| {
        use sqlx::Connection;
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let handler = Handler::in_pg_tx("t", |event, mut tx| async move {
            let mut inner = tx.begin().await?;
            sqlx::query("INSERT INTO effects VALUES ($1, 'inner')").bind(event.id).execute(&mut *inner).await?;
            inner.commit().await?;
            if event.attempt() == 1 { fail() } else { Ok(()) }
        });
        let node = start(Node::new(&queue, "n").handler(handler)).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(written(bed, "inner").await, [event.id]);
        node.stop().await;
    });
}

/// A handler that keeps its transaction fails, because the event cannot be completed in it.
#[test]
fn postgres_transaction_kept_by_its_handler_is_rolled_back() {
    crate::bed::run(Kind::Postgres, async |bed: &Bed| {
        create_effects_table(bed).await;
        let queue = real_time_namespace(bed, Policy { max_retries: Some(1), ..immediate_retries() }).await;
        let kept = Arc::new(Mutex::new(None));
        let keep = kept.clone();
        let handler = Handler::in_pg_tx("t", move |event, mut tx| {
            let keep = keep.clone();
            async move {
                sqlx::query("INSERT INTO effects VALUES ($1, 'a')").bind(event.id).execute(&mut *tx).await?;
                *keep.lock().unwrap() = Some(tx);
                Ok(())
            }
        });
        let node = start(Node::new(&queue, "n").handler(handler)).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        node.stop().await;
        // Closing the queue does not wait for the transaction forever.
        queue.close().await;
        drop(kept.lock().unwrap().take());
        assert!(written(bed, "a").await.is_empty());
    });
}
