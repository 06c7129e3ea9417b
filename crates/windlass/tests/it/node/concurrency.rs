//! Concurrency limits, group order, lease renewal and deadlines of nodes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use windlass::{Node, Policy, Status};

use super::*;

/// Counts running handlers: the current and the highest number.
#[derive(Clone, Default)]
struct RunningHandlers(Arc<(AtomicUsize, AtomicUsize)>);

impl RunningHandlers {
    fn increment(&self) {
        let current = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(current, Ordering::SeqCst);
    }

    fn decrement(&self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn current(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    fn max(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

/// A handler for this type that counts itself as running until it gets a permit.
fn gated_handler(event_type: &str, running: &RunningHandlers, gate: &Arc<Semaphore>) -> windlass::Handler {
    let (running, gate) = (running.clone(), gate.clone());
    windlass::Handler::new(event_type, move |_, _| {
        let (running, gate) = (running.clone(), gate.clone());
        async move {
            running.increment();
            gate.acquire().await?.forget();
            running.decrement();
            Ok(())
        }
    })
}

conformance! {
    // O2
    async fn node_respects_its_concurrency_limit(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let (running, gate) = (RunningHandlers::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").concurrency(3).handler(gated_handler("t", &running, &gate))).await;
        let events = publish_many(&queue, "t", 12).await;
        eventually("three handlers run", async || running.current() == 3).await;
        // The node leases no more deliveries than it can handle.
        let held = queue.workers(secs(60)).await.unwrap();
        assert_eq!(held[0].held, 3);
        gate.add_permits(12);
        for event in events {
            wait_for_status(&queue, event, Status::Completed).await;
        }
        assert_eq!(running.max(), 3);
        node.stop().await;
    }

    // O8
    async fn slow_type_does_not_block_other_types(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let (running, gate) = (RunningHandlers::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").concurrency(4).concurrency_of("slow", 2);
        let node = node.handler(gated_handler("slow", &running, &gate)).on("quick", |_, _| async { Ok(()) });
        let node = start(node).await;
        let slow = publish_many(&queue, "slow", 10).await;
        eventually("two handlers run", async || running.current() == 2).await;
        for _ in 0..5 {
            let quick = publish(&queue, "quick").await;
            wait_for_status(&queue, quick.id, Status::Completed).await;
        }
        assert_eq!(running.max(), 2);
        gate.add_permits(10);
        for event in slow {
            wait_for_status(&queue, event, Status::Completed).await;
        }
        assert_eq!(running.max(), 2);
        node.stop().await;
    }

    // The lease is 400 ms.
    async fn lease_is_renewed_while_its_handler_runs(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 400, ..immediate_retries() }).await, Ledger::default());
        let written = ledger.clone();
        let slow = |event: windlass::Envelope, ledger: Ledger| async move {
            ledger.write(format!("{} {}", event.id, event.attempt()));
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            Ok(())
        };
        let handler = move |event, _| slow(event, written.clone());
        let node = |queue: &Queue| start(Node::new(queue, "n").concurrency(2).on("t", handler.clone()));
        // Another node, which would claim deliveries whose lease expires.
        let idle = node(&bed.real_time_queue().await.in_namespace("ns").unwrap()).await;
        let node = node(&queue).await;
        let events = publish_many(&queue, "t", 2).await;
        for event in &events {
            wait_for_status(&queue, *event, Status::Completed).await;
        }
        assert_eq!(sorted(ledger.lines()), events.iter().map(|id| format!("{id} 1")).collect::<Vec<_>>());
        idle.stop().await;
        node.stop().await;
    }

    async fn handler_is_notified_when_its_lease_is_lost(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 200, ..immediate_retries() }).await, Ledger::default());
        let written = ledger.clone();
        let node = start(Node::new(&queue, "n").on("t", move |event, cx| {
            let ledger = written.clone();
            async move {
                ledger.write(format!("attempt {}", event.attempt()));
                if event.attempt() == 1 {
                    cx.cancelled().await;
                    ledger.write("lease lost");
                }
                Ok(())
            }
        }))
        .await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        queue.reset(event.id, "main", "test").await.unwrap();
        ledger.wait(3).await;
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(sorted(ledger.lines()), ["attempt 1", "attempt 2", "lease lost"]);
        node.stop().await;
    }

    // O4
    async fn groups_keep_their_order_across_nodes(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await, Ledger::default());
        let node = |queue: &Queue, name: &str| {
            let ledger = ledger.clone();
            Node::new(queue, name).concurrency(8).on("t", move |event, _| {
                let ledger = ledger.clone();
                async move {
                    let n: usize = event.payload()?;
                    tokio::task::yield_now().await;
                    // Every seventh event fails once, and its group waits for the retry.
                    if n.is_multiple_of(7) && event.attempt() == 1 {
                        return fail();
                    }
                    ledger.write(format!("{} {n}", event.group_id.as_deref().unwrap()));
                    Ok(())
                }
            })
        };
        let other = bed.real_time_queue().await.in_namespace("ns").unwrap();
        let (first, second) = (start(node(&queue, "first")).await, start(node(&other, "second")).await);
        for n in 0..40 {
            let events = (0..5).map(|group| numbered("t", n).group(format!("g{group}"))).collect();
            queue.publish_all(events).await.unwrap();
        }
        ledger.wait(200).await;
        for group in 0..5 {
            let of_group: Vec<String> = ledger.lines().into_iter().filter(|line| line.starts_with(&format!("g{group} "))).collect();
            assert_eq!(of_group, (0..40).map(|n| format!("g{group} {n}")).collect::<Vec<_>>());
        }
        first.stop().await;
        second.stop().await;
    }

    // O3, O4: without a server that runs maintenance.
    async fn group_continues_after_its_first_event_expires(bed) {
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let soon = queue.clock().now() + chrono::TimeDelta::milliseconds(50);
        let first = publish_new(&queue, numbered("t", 1).group("g").expires_at(soon)).await;
        let second = publish_new(&queue, numbered("t", 2).group("g")).await;
        eventually("the deadline has passed", async || queue.clock().now() > soon + chrono::TimeDelta::milliseconds(50)).await;
        let node = start(Node::new(&queue, "n").on("t", |_, _| async { Ok(()) })).await;
        wait_for_status(&queue, second.id, Status::Completed).await;
        assert_eq!(status(&queue, first.id).await, Status::Expired);
        node.stop().await;
    }

    // O7
    async fn nodes_share_the_work_and_each_event_runs_once(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await, Ledger::default());
        let mut nodes = Vec::new();
        for n in 0..3 {
            let (other, ledger) = (bed.real_time_queue().await.in_namespace("ns").unwrap(), ledger.clone());
            nodes.push(start(Node::new(&other, format!("n{n}")).on("t", move |event, _| {
                let ledger = ledger.clone();
                async move {
                    ledger.write(event.id.to_string());
                    Ok(())
                }
            }))
            .await);
        }
        let events = publish_many(&queue, "t", 1_000).await;
        ledger.wait(1_000).await;
        for node in nodes {
            node.stop().await;
        }
        let handled: Vec<i64> = ledger.lines().iter().map(|line| line.parse().unwrap()).collect();
        assert_eq!(sorted(handled), events);
        assert_eq!(claim_all(&queue).await.len(), 0);
    }

    // O8
    async fn events_prefetched_by_stuck_node_go_to_other_nodes(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { lease_ms: 600_000, ..immediate_retries() }).await, Ledger::default());
        let node = |queue: &Queue, name: &str, stuck_from: usize| {
            let ledger = ledger.clone();
            Node::new(queue, name).concurrency(2).grace(Duration::ZERO).on("t", move |event, _| {
                let ledger = ledger.clone();
                async move {
                    if event.payload::<usize>()? >= stuck_from {
                        std::future::pending::<()>().await;
                    }
                    ledger.write(event.id.to_string());
                    Ok(())
                }
            })
        };
        queue.publish_all((0..3_000).map(|n| numbered("t", n)).collect()).await.unwrap();
        let stuck = start(node(&queue, "stuck", 1_000)).await;
        // The events are handled roughly in order.
        ledger.wait(500).await;
        let other = start(node(&bed.real_time_queue().await.in_namespace("ns").unwrap(), "other", usize::MAX)).await;
        // All but the two events whose handlers are stuck.
        ledger.wait(2_998).await;
        stuck.stop().await;
        ledger.wait(3_000).await;
        other.stop().await;
        let handled: Vec<i64> = ledger.lines().iter().map(|line| line.parse().unwrap()).collect();
        let distinct: std::collections::HashSet<i64> = handled.iter().copied().collect();
        assert_eq!((handled.len(), distinct.len()), (3_000, 3_000));
    }

    // O8: two subscriptions share one slot.
    async fn type_without_free_slots_is_not_claimed(bed) {
        let queue = real_time_namespace(bed, immediate_retries()).await;
        queue.add_subscription(windlass::SubscriptionSpec::new("audit")).await.unwrap();
        let (running, gate) = (RunningHandlers::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").concurrency_of("t", 1).handler(gated_handler("t", &running, &gate));
        let node = start(node.handler(gated_handler("t", &running, &gate).id("audit").subscription("audit"))).await;
        let first = publish(&queue, "t").await;
        eventually("one handler runs", async || running.current() == 1).await;
        // The next event finds no free slot for either subscription.
        let second = publish(&queue, "t").await;
        let third = publish(&queue, "other").await;
        eventually("the other type is claimed", async || status(&queue, third.id).await == Status::Pending && trail(&queue, third.id).await.len() > 1).await;
        assert_eq!(trail(&queue, second.id).await, []);
        gate.add_permits(4);
        for event in [first, second] {
            wait_for_status(&queue, event.id, Status::Completed).await;
        }
        assert_eq!(running.max(), 1);
        node.stop().await;
    }

    // O8
    async fn types_that_match_a_prefix_limit_share_it(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let (reports, others, gate) = (RunningHandlers::default(), RunningHandlers::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").concurrency(6).concurrency_of("report.*", 2);
        let node = node.handler(gated_handler("report.*", &reports, &gate)).handler(gated_handler("mail", &others, &gate));
        let node = start(node).await;
        let mut events = Vec::new();
        for event_type in ["report.daily", "report.weekly", "report.yearly"] {
            events.extend(publish_many(&queue, event_type, 3).await);
        }
        eventually("two reports run", async || reports.current() == 2).await;
        events.extend(publish_many(&queue, "mail", 4).await);
        eventually("four mails run", async || others.current() == 4).await;
        gate.add_permits(events.len());
        for event in events {
            wait_for_status(&queue, event, Status::Completed).await;
        }
        assert_eq!((reports.max(), others.max()), (2, 4));
        node.stop().await;
    }

    // O8
    async fn the_most_specific_concurrency_limit_applies(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let (exact, long, short) = (RunningHandlers::default(), RunningHandlers::default(), RunningHandlers::default());
        let gate = Arc::new(Semaphore::new(0));
        let node = Node::new(&queue, "n")
            .concurrency_of("report.*", 1)
            .concurrency_of("report.daily*", 2)
            .concurrency_of("report.daily.eu", 3)
            .handler(gated_handler("report.daily.eu", &exact, &gate))
            .handler(gated_handler("report.daily.us", &long, &gate))
            .handler(gated_handler("report.weekly", &short, &gate));
        let node = start(node).await;
        let mut events = Vec::new();
        for event_type in ["report.daily.eu", "report.daily.us", "report.weekly"] {
            events.extend(publish_many(&queue, event_type, 5).await);
        }
        let current = || (exact.current(), long.current(), short.current());
        eventually("each limit is filled", async || current() == (3, 2, 1)).await;
        gate.add_permits(events.len());
        for event in events {
            wait_for_status(&queue, event, Status::Completed).await;
        }
        assert_eq!((exact.max(), long.max(), short.max()), (3, 2, 1));
        node.stop().await;
    }

    // O8
    async fn prefix_limit_leaves_unhandled_types_to_other_nodes(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let written = ledger.clone();
        let node = Node::new(&queue, "n").leave_unhandled().concurrency_of("report.*", 1).on("report.daily", move |event, _| {
            let ledger = written.clone();
            async move {
                ledger.write(event.event_type.clone());
                Ok(())
            }
        });
        let node = start(node).await;
        let left = publish(&queue, "report.weekly").await;
        let handled = publish(&queue, "report.daily").await;
        wait_for_status(&queue, handled.id, Status::Completed).await;
        assert_eq!((ledger.lines(), trail(&queue, left.id).await), (vec!["report.daily".to_owned()], vec![]));
        node.stop().await;
    }

    // O3
    async fn event_past_its_deadline_is_never_started(bed) {
        let queue = real_time_namespace(bed, Policy { lease_ms: 60_000, ..immediate_retries() }).await;
        let (running, gate, ledger) = (RunningHandlers::default(), Arc::new(Semaphore::new(0)), Ledger::default());
        let written = ledger.clone();
        let node = Node::new(&queue, "n").concurrency(1).concurrency_of("urgent", 1).handler(gated_handler("t", &running, &gate));
        let node = start(node.on("urgent", move |_, _| {
            let ledger = written.clone();
            async move {
                ledger.write("started");
                Ok(())
            }
        }))
        .await;
        publish(&queue, "t").await;
        eventually("the handler runs", async || running.current() == 1).await;
        // The node claims the event, and has no free slot for it before its deadline.
        let soon = queue.clock().now() + chrono::TimeDelta::milliseconds(500);
        let urgent = publish_new(&queue, windlass::NewEvent::new("urgent").expires_at(soon)).await;
        // A node measures from when it received the event, a little later than the claim.
        let past_deadline = soon + chrono::TimeDelta::seconds(1);
        eventually("the deadline has passed", async || queue.clock().now() > past_deadline).await;
        gate.add_permits(1);
        eventually("the event has expired", async || {
            queue.expire_once().await.unwrap();
            status(&queue, urgent.id).await == Status::Expired
        })
        .await;
        assert!(ledger.lines().is_empty());
        node.stop().await;
    }
}
