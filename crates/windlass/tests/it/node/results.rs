//! Results of several handlers of one event: finished handlers do not run again.

use tokio::sync::Semaphore;
use windlass::{Handler, HandlerError, HandlerResultStorage, Node, Policy, Status, UnrecoverablePolicy};

use super::*;
use windlass_testkit::Kind;

/// A handler for `t` that records each call. `work` decides the outcome of each attempt.
fn recording_handler(
    ledger: &Ledger,
    id: &'static str,
    work: impl Fn(u32) -> Handled + Send + Sync + 'static,
) -> Handler {
    let (ledger, work) = (ledger.clone(), Arc::new(work));
    let handler = Handler::new("t", move |event, _| {
        let (ledger, work) = (ledger.clone(), work.clone());
        async move {
            ledger.write(id);
            work(event.attempt())
        }
    });
    handler.id(id)
}

fn unrecoverable() -> Handled {
    Err(HandlerError::unrecoverable("never"))
}

async fn stored_results(bed: &Bed) -> i64 {
    let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
    bed.database.select_numbers(&format!("SELECT count(*) FROM {schema}handler_results")).await[0]
}

conformance! {
    // Q12
    async fn retry_runs_only_unfinished_handlers(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let node = start(
            Node::new(&queue, "n")
                .handler(recording_handler(&ledger, "done", |_| Ok(())))
                .handler(recording_handler(&ledger, "later", |attempt| if attempt < 3 { fail() } else { Ok(()) }))
                .handler(recording_handler(&ledger, "panics", |attempt| if attempt == 1 { panic!("oh") } else { Ok(()) })),
        )
        .await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!((ledger.count("done"), ledger.count("later"), ledger.count("panics")), (1, 3, 2));
        let log = queue.log(event.id).await.unwrap();
        assert_eq!(log[1].error_message.as_deref(), Some("later: no luck; panics: panicked: oh"));
        // No handler results are left.
        assert_eq!(queue.prune_once().await.unwrap(), 0);
        node.stop().await;
    }

    // Q11
    async fn preset_queue_finishes_on_first_unrecoverable_error(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy::preset("queue").unwrap()).await, Ledger::default());
        let node = start(
            Node::new(&queue, "n")
                .handler(recording_handler(&ledger, "done", |_| Ok(())))
                .handler(recording_handler(&ledger, "never", |_| unrecoverable()))
                .handler(recording_handler(&ledger, "later", |_| fail()))
                .handler(recording_handler(&ledger, "snoozes", |_| Err(HandlerError::snooze(millis(1))))),
        )
        .await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::CompletedWithErrors).await;
        let log = queue.log(event.id).await.unwrap();
        assert_eq!((log.len(), log[1].error_message.as_deref()), (2, Some("later: no luck; never: never")));
        assert_eq!(sorted(ledger.lines()), ["done", "later", "never", "snoozes"]);
        node.stop().await;
        assert_eq!(queue.prune_once().await.unwrap(), 0);
    }

    // Q11
    async fn unrecoverable_finish_makes_a_dead_letter_if_enabled(bed) {
        let policy = Policy { unrecoverable: UnrecoverablePolicy::Finish, ..immediate_retries() };
        let (queue, ledger) = (real_time_namespace(bed, policy).await, Ledger::default());
        let node = Node::new(&queue, "n").handler(recording_handler(&ledger, "never", |_| unrecoverable()));
        let node = start(node.handler(recording_handler(&ledger, "later", |attempt| if attempt == 1 { fail() } else { Ok(()) }))).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        assert_eq!((ledger.count("never"), ledger.count("later")), (1, 1));
        node.stop().await;
    }

    // Q11, Q12
    async fn unrecoverable_retry_others_ends_the_delivery_after_their_retries(bed) {
        let policy = Policy { unrecoverable: UnrecoverablePolicy::RetryOthers, ..Policy::preset("queue").unwrap() };
        let (queue, ledger) = (real_time_namespace(bed, policy).await, Ledger::default());
        let node = start(
            Node::new(&queue, "n")
                .handler(recording_handler(&ledger, "never", |_| unrecoverable()))
                .handler(recording_handler(&ledger, "later", |attempt| match attempt {
                    1 => Err(HandlerError::retry_after(millis(1), "not yet")),
                    _ => Ok(()),
                })),
        )
        .await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::CompletedWithErrors).await;
        assert_eq!((ledger.count("never"), ledger.count("later")), (1, 2));
        let log = queue.log(event.id).await.unwrap();
        assert_eq!(log.last().unwrap().error_message.as_deref(), Some("never: never"));
        node.stop().await;
    }

    // Q12, C9
    async fn redrive_skips_finished_handlers(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { max_retries: Some(1), ..immediate_retries() }).await, Ledger::default());
        let node = start(
            Node::new(&queue, "n")
                .handler(recording_handler(&ledger, "done", |_| Ok(())))
                .handler(recording_handler(&ledger, "never", |attempt| if attempt == 1 { unrecoverable() } else { Ok(()) })),
        )
        .await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        queue.redrive(windlass::DeadLetterFilter::default()).await.unwrap();
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!((ledger.count("done"), ledger.count("never")), (1, 2));
        node.stop().await;
    }

    // Q12: the next version of the application has one handler less.
    async fn handler_results_survive_removal_of_other_handlers(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let later = |_| Err(HandlerError::snooze(millis(300)));
        let both = Node::new(&queue, "n").handler(recording_handler(&ledger, "done", |_| Ok(()))).handler(recording_handler(&ledger, "later", later));
        let both = start(both).await;
        let event = publish(&queue, "t").await;
        eventually("the event was snoozed", async || trail(&queue, event.id).await.len() == 2).await;
        both.stop().await;
        let one = start(Node::new(&queue, "n").handler(recording_handler(&ledger, "done", |_| Ok(())))).await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(ledger.count("done"), 1);
        one.stop().await;
    }

    // Q12
    async fn immediate_results_are_stored_while_other_handlers_run(bed) {
        let policy = Policy { handler_results: HandlerResultStorage::Immediately, ..immediate_retries() };
        let (queue, ledger, gate) = (real_time_namespace(bed, policy).await, Ledger::default(), Arc::new(Semaphore::new(0)));
        let (written, opened) = (ledger.clone(), gate.clone());
        let waits = Handler::new("t", move |_, _| {
            let (ledger, gate) = (written.clone(), opened.clone());
            async move {
                ledger.write("waits");
                gate.acquire().await?.forget();
                Ok(())
            }
        });
        let node = Node::new(&queue, "n")
            .handler(recording_handler(&ledger, "done", |_| Ok(())))
            .handler(recording_handler(&ledger, "never", |_| unrecoverable()))
            .handler(recording_handler(&ledger, "later", |attempt| if attempt == 1 { fail() } else { Ok(()) }))
            .handler(waits.id("waits"));
        let node = start(node).await;
        let event = publish(&queue, "t").await;
        eventually("two results are stored", async || stored_results(bed).await == 2).await;
        assert_eq!(status(&queue, event.id).await, Status::Processing);
        gate.add_permits(1);
        wait_for_status(&queue, event.id, Status::Failed).await;
        assert_eq!(sorted(ledger.lines()), ["done", "later", "later", "never", "waits"]);
        node.stop().await;
    }

    // Q12
    async fn immediate_results_are_deleted_when_the_delivery_completes(bed) {
        let policy = Policy { handler_results: HandlerResultStorage::Immediately, ..immediate_retries() };
        let (queue, ledger) = (real_time_namespace(bed, policy).await, Ledger::default());
        let node = Node::new(&queue, "n").handler(recording_handler(&ledger, "a", |_| Ok(()))).handler(recording_handler(&ledger, "b", |_| Ok(())));
        let node = start(node).await;
        for event in publish_many(&queue, "t", 50).await {
            wait_for_status(&queue, event, Status::Completed).await;
        }
        node.stop().await;
        assert_eq!(stored_results(bed).await, 0);
        assert_eq!((ledger.count("a"), ledger.count("b")), (50, 50));
    }

    // Q12
    async fn immediate_results_are_not_stored_after_the_lease_is_lost(bed) {
        let policy = Policy { handler_results: HandlerResultStorage::Immediately, ..immediate_retries() };
        let (queue, ledger) = (real_time_namespace(bed, policy).await, Ledger::default());
        let (first, second) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (written, gates) = (ledger.clone(), [first.clone(), second.clone()]);
        let waits = Handler::new("t", move |event, _| {
            let (ledger, gate) = (written.clone(), gates[event.attempt() as usize - 1].clone());
            async move {
                ledger.write("waits");
                gate.acquire().await?.forget();
                Ok(())
            }
        });
        let (written, gate) = (ledger.clone(), second.clone());
        let watches = Handler::new("t", move |event, cx| {
            let (ledger, gate) = (written.clone(), gate.clone());
            async move {
                ledger.write("watches");
                if event.attempt() == 1 {
                    cx.cancelled().await;
                    ledger.write("lease lost");
                    return Ok(());
                }
                gate.acquire().await?.forget();
                Ok(())
            }
        });
        let node = start(Node::new(&queue, "n").handler(waits.id("waits")).handler(watches.id("watches"))).await;
        let event = publish(&queue, "t").await;
        ledger.wait(2).await;
        // A second attempt begins, with another lease, before a handler of the first attempt finishes.
        queue.reset(event.id, "main", "test").await.unwrap();
        ledger.wait(4).await;
        first.add_permits(1);
        eventually("the other handler is notified", async || ledger.count("lease lost") == 1).await;
        assert_eq!(stored_results(bed).await, 0);
        second.add_permits(2);
        wait_for_status(&queue, event.id, Status::Completed).await;
        node.stop().await;
    }

    // Q12, O7: across nodes.
    async fn another_node_skips_finished_handlers(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let handlers = |node: Node| {
            node.handler(recording_handler(&ledger, "done", |_| Ok(())))
                .handler(recording_handler(&ledger, "later", |attempt| if attempt < 2 { Err(HandlerError::snooze(millis(300))) } else { Ok(()) }))
        };
        let first = start(handlers(Node::new(&queue, "first"))).await;
        let event = publish(&queue, "t").await;
        eventually("the event was snoozed", async || trail(&queue, event.id).await.len() == 2).await;
        first.stop().await;
        let second = start(handlers(Node::new(&bed.real_time_queue().await.in_namespace("ns").unwrap(), "second"))).await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!((ledger.count("done"), ledger.count("later")), (1, 2));
        let workers: Vec<_> = queue.log(event.id).await.unwrap().iter().map(|entry| entry.worker_id.clone().unwrap()).collect();
        assert_eq!(workers, ["first", "first", "second", "second"]);
        second.stop().await;
    }
}
