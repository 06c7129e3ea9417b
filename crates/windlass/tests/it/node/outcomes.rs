//! Outcomes of handlers: completed, retried, snoozed, failed, unhandled.

use std::time::Duration;

use windlass::{
    Action, DeadLetterFilter, Envelope, Handled, HandlerError, History, Node, Policy, Status, UnhandledPolicy,
};

use super::*;

/// Starts a node with a handler for `t`.
async fn start_node(queue: &Queue, work: impl Fn(&Envelope) -> Handled + Send + Sync + 'static) -> RunningNode {
    let work = Arc::new(work);
    start(Node::new(queue, "n").on("t", move |event, _| {
        let work = work.clone();
        async move { work(&event) }
    }))
    .await
}

async fn last_error(queue: &Queue, event_id: i64) -> String {
    queue.log(event_id).await.unwrap().last().unwrap().error_message.clone().unwrap_or_default()
}

conformance! {
    // Q11, B5
    async fn failed_event_is_retried_until_it_succeeds(bed) {
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let node = start_node(&queue, |event| if event.attempt() < 3 { fail() } else { Ok(()) }).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        use Action::*;
        assert_eq!(trail(&queue, event.id).await, [Picked, Failed, Picked, Failed, Picked, Completed]);
        let view = view(&queue, event.id).await;
        assert_eq!((view.attempts, view.retry_count), (3, 2));
        node.stop().await;
    }

    // C8
    async fn exhausted_retries_make_a_dead_letter_with_the_error(bed) {
        let queue = real_time_namespace(bed, Policy { max_retries: Some(2), ..immediate_retries() }).await;
        let node = start_node(&queue, |event| Err(HandlerError::retry(format!("attempt {}", event.attempt())))).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        let letters = queue.dead_letters(DeadLetterFilter::default()).await.unwrap().items;
        assert_eq!((letters[0].reason.as_str(), letters[0].error.as_deref()), ("Max retries exceeded", Some("attempt 2")));
        assert_eq!(letters[0].event.id, event.id);
        node.stop().await;
    }

    // C8
    async fn preset_core_does_not_retry(bed) {
        let queue = real_time_namespace(bed, Policy::preset("core").unwrap()).await;
        let node = start_node(&queue, |_| fail()).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        let letters = queue.dead_letters(DeadLetterFilter::default()).await.unwrap().items;
        assert_eq!((letters[0].reason.as_str(), letters[0].error.as_deref()), ("Handler error", Some("no luck")));
        node.stop().await;
    }

    // Q11
    async fn unrecoverable_error_is_not_retried(bed) {
        for (preset, status) in [("default", Status::Failed), ("queue", Status::CompletedWithErrors)] {
            let queue = real_time_namespace(bed, Policy::preset(preset).unwrap()).await;
            let node = start_node(&queue, |_| Err(HandlerError::unrecoverable("no such user"))).await;
            let event = publish(&queue, "t").await;
            wait_for_status(&queue, event.id, status).await;
            assert_eq!(last_error(&queue, event.id).await, "no such user");
            assert_eq!(view(&queue, event.id).await.attempts, 1);
            node.stop().await;
        }
    }

    async fn handler_can_choose_the_retry_delay(bed) {
        // The policy's backoff is five minutes.
        let queue = real_time_namespace(bed, Policy { lease_ms: 400, ..Policy::default() }).await;
        let node = start_node(&queue, |event| match event.attempt() {
            1 => Err(HandlerError::retry_after(Duration::from_millis(1), "soon")),
            _ => Err(HandlerError::retry("as usual")),
        })
        .await;
        let event = publish(&queue, "t").await;
        eventually("the event failed twice", async || view(&queue, event.id).await.retry_count == 2).await;
        let view = view(&queue, event.id).await;
        assert_eq!(view.status, Status::Pending);
        let log = queue.log(event.id).await.unwrap();
        let (failed, next) = (log.last().unwrap().created_at, view.next_retry_at.unwrap());
        assert_eq!(next - failed, chrono::TimeDelta::minutes(5));
        node.stop().await;
    }

    // O10
    async fn snooze_does_not_count_as_failure(bed) {
        let queue = real_time_namespace(bed, Policy { max_retries: Some(1), max_attempts: 2, ..immediate_retries() }).await;
        let node = start_node(&queue, |event| match event.attempt() {
            ..=3 => Err(HandlerError::snooze(Duration::from_millis(1))),
            _ => Ok(()),
        })
        .await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        let view = view(&queue, event.id).await;
        assert_eq!((view.attempts, view.retry_count), (4, 0));
        node.stop().await;
    }

    // Q13
    async fn panic_is_a_failure_and_stops_nothing_else(bed) {
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let node = start_node(&queue, |event| if event.attempt() == 1 { panic!("oh no") } else { Ok(()) }).await;
        let events = publish_many(&queue, "t", 20).await;
        for event in &events {
            wait_for_status(&queue, *event, Status::Completed).await;
            let log = queue.log(*event).await.unwrap();
            assert_eq!(log[1].error_message.as_deref(), Some("panicked: oh no"));
        }
        node.stop().await;
    }

    async fn handler_timeout_is_enforced(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { max_retries: Some(1), ..immediate_retries() }).await, Ledger::default());
        let written = ledger.clone();
        let slow = windlass::Handler::new("t", move |_, _| {
            let ledger = written.clone();
            async move {
                std::future::pending::<()>().await;
                ledger.write("never");
                Ok(())
            }
        });
        let node = start(Node::new(&queue, "n").handler(slow.timeout(Duration::from_millis(30)))).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        assert_eq!(last_error(&queue, event.id).await, "timed out after 30ms");
        assert!(ledger.lines().is_empty());
        node.stop().await;
    }

    // Q13
    async fn panic_while_dropping_timed_out_handler_is_caught(bed) {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped too early");
            }
        }
        let queue = real_time_namespace(bed, Policy { max_retries: Some(2), ..immediate_retries() }).await;
        let fused = |id: &str| {
            let handler = windlass::Handler::new("t", |_, _| async {
                let _bomb = Bomb;
                std::future::pending().await
            });
            handler.id(id).timeout(millis(20))
        };
        let node = start(Node::new(&queue, "n").handler(fused("a")).handler(fused("b"))).await;
        let event = publish(&queue, "t").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        assert_eq!(last_error(&queue, event.id).await, "a: timed out after 20ms; b: timed out after 20ms");
        node.stop().await;
    }

    async fn extreme_errors_and_delays_are_stored(bed) {
        let queue = real_time_namespace(bed, Policy { max_retries: Some(1), ..immediate_retries() }).await;
        let huge = windlass::Handler::new("huge", |_, _| async { Err("x\0".repeat(1 << 20))? }).id("long error");
        let node = Node::new(&queue, "n").on("huge", |_, _| async { Ok(()) }).handler(huge);
        let node = start(node.on("far", |_, _| async { Err(HandlerError::snooze(Duration::MAX)) })).await;
        let event = publish(&queue, "huge").await;
        wait_for_status(&queue, event.id, Status::Failed).await;
        assert_eq!(view(&queue, event.id).await.attempts, 1);
        assert!(last_error(&queue, event.id).await.starts_with("long error: x\u{fffd}x"));
        let far = publish(&queue, "far").await;
        eventually("the event is snoozed", async || trail(&queue, far.id).await == [Action::Picked, Action::Snoozed]).await;
        node.stop().await;
    }

    // O6, C8
    async fn event_without_handler_follows_unhandled_policy(bed) {
        for (policy, action) in [
            (Policy { unhandled: UnhandledPolicy::DeadLetter, ..immediate_retries() }, Action::Failed),
            (Policy { lease_ms: 60_000, ..immediate_retries() }, Action::Released),
        ] {
            let queue = real_time_namespace(bed, policy).await;
            let node = start_node(&queue, |_| Ok(())).await;
            let event = publish(&queue, "unknown").await;
            eventually("the node claimed the event", async || trail(&queue, event.id).await.len() == 2).await;
            assert_eq!(trail(&queue, event.id).await, [Action::Picked, action]);
            let letters = queue.dead_letters(DeadLetterFilter::default()).await.unwrap().items;
            if action == Action::Failed {
                assert_eq!(letters[0].reason, "No handler for event unknown");
            } else {
                // The event is delivered again after one lease duration: another node may have a handler.
                assert!(letters.iter().all(|letter| letter.event.id != event.id));
                assert_eq!(view(&queue, event.id).await.retry_count, 0);
                assert!(claim_all(&queue).await.is_empty());
            }
            node.stop().await;
        }
    }

    async fn unhandled_events_can_be_left_to_other_nodes(bed) {
        let queue = real_time_namespace(bed, Policy { unhandled: UnhandledPolicy::DeadLetter, ..immediate_retries() }).await;
        let picky = start(Node::new(&queue, "picky").leave_unhandled().on("a", |_, _| async { Ok(()) })).await;
        let (b, a) = (publish(&queue, "b").await, publish(&queue, "a").await);
        wait_for_status(&queue, a.id, Status::Completed).await;
        assert_eq!(status(&queue, b.id).await, Status::Pending);
        // With a handler for the type, the node claims the event.
        picky.on("b", |_, _| async { Ok(()) }).await.unwrap();
        wait_for_status(&queue, b.id, Status::Completed).await;
        assert_eq!(view(&queue, b.id).await.attempts, 1);
        picky.stop().await;
    }

    async fn type_with_own_limit_is_left_to_other_nodes_too(bed) {
        let queue = real_time_namespace(bed, Policy { unhandled: UnhandledPolicy::DeadLetter, ..immediate_retries() }).await;
        queue.add_subscription(windlass::SubscriptionSpec::new("audit")).await.unwrap();
        let audit = windlass::Handler::new("a", |_, _| async { Ok(()) }).subscription("audit");
        let node = Node::new(&queue, "picky").leave_unhandled().concurrency_of("a", 2).handler(audit);
        let picky = start(node.on("b", |_, _| async { Ok(()) })).await;
        let (a, b) = (publish(&queue, "a").await, publish(&queue, "b").await);
        eventually("main has completed b", async || status(&queue, b.id).await == Status::Completed).await;
        eventually("audit has completed a", async || view_of(&queue, a.id, "audit").await.status == Status::Completed).await;
        assert_eq!(view(&queue, a.id).await.status, Status::Pending);
        let late = windlass::Handler::new("a", |_, _| async { Ok(()) }).id("late");
        picky.handler(late).await.unwrap();
        eventually("main has completed a", async || view(&queue, a.id).await.status == Status::Completed).await;
        picky.stop().await;
    }

    // O1: the preset for outboxes keeps no history.
    async fn completed_events_are_not_kept_without_history(bed) {
        let queue = real_time_namespace(bed, Policy { history: History::None, ..immediate_retries() }).await;
        let node = start_node(&queue, |event| if event.attempt() == 1 { fail() } else { Ok(()) }).await;
        let event = publish(&queue, "t").await;
        eventually("it is gone", async || queue.get(event.id).await.is_err()).await;
        assert_eq!(count_events(&queue).await, 0);
        node.stop().await;
    }
}
