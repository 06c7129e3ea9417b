//! How many at once, in which order, and for how long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use windlass::{Node, Policy, Status};

use super::*;

/// How many are inside at once, now and at most.
#[derive(Clone, Default)]
struct Room(Arc<(AtomicUsize, AtomicUsize)>);

impl Room {
    fn enter(&self) {
        let inside = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(inside, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn inside(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

/// A handler for this type that stays in the room until it is let go.
fn staying(event_type: &str, room: &Room, gate: &Arc<Semaphore>) -> windlass::Handler {
    let (room, gate) = (room.clone(), gate.clone());
    windlass::Handler::new(event_type, move |_, _| {
        let (room, gate) = (room.clone(), gate.clone());
        async move {
            room.enter();
            gate.acquire().await?.forget();
            room.leave();
            Ok(())
        }
    })
}

conformance! {
    // O2
    async fn a_node_handles_so_many_at_once_and_no_more(bed) {
        let queue = real(bed, Policy { lease_ms: 60_000, ..brisk() }).await;
        let (room, gate) = (Room::default(), Arc::new(Semaphore::new(0)));
        let node = start(Node::new(&queue, "n").concurrency(3).handler(staying("t", &room, &gate))).await;
        let events = publish_many(&queue, "t", 12).await;
        eventually("three are at work", async || room.inside() == 3).await;
        // It holds no more than it can handle.
        let held = queue.workers(secs(60)).await.unwrap();
        assert_eq!(held[0].held, 3);
        gate.add_permits(12);
        for event in events {
            until(&queue, event, Status::Completed).await;
        }
        assert_eq!(room.most(), 3);
        node.stop().await;
    }

    // O8
    async fn a_slow_type_does_not_hold_up_another(bed) {
        let queue = real(bed, Policy { lease_ms: 60_000, ..brisk() }).await;
        let (room, gate) = (Room::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").concurrency(4).concurrency_of("slow", 2);
        let node = node.handler(staying("slow", &room, &gate)).on("quick", |_, _| async { Ok(()) });
        let node = start(node).await;
        let slow = publish_many(&queue, "slow", 10).await;
        eventually("two are at work", async || room.inside() == 2).await;
        for _ in 0..5 {
            let quick = publish(&queue, "quick").await;
            until(&queue, quick.id, Status::Completed).await;
        }
        assert_eq!(room.most(), 2);
        gate.add_permits(10);
        for event in slow {
            until(&queue, event, Status::Completed).await;
        }
        assert_eq!(room.most(), 2);
        node.stop().await;
    }

    // The lease is 400 ms.
    async fn a_lease_is_renewed_for_as_long_as_its_handler_runs(bed) {
        let (queue, ledger) = (real(bed, Policy { lease_ms: 400, ..brisk() }).await, Ledger::default());
        let written = ledger.clone();
        let slow = |event: windlass::Envelope, ledger: Ledger| async move {
            ledger.write(format!("{} {}", event.id, event.attempt()));
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            Ok(())
        };
        let handler = move |event, _| slow(event, written.clone());
        let node = |queue: &Queue| start(Node::new(queue, "n").concurrency(2).on("t", handler.clone()));
        // One that would take what is free.
        let idle = node(&bed.real_time().await.in_namespace("ns").unwrap()).await;
        let node = node(&queue).await;
        let events = publish_many(&queue, "t", 2).await;
        for event in &events {
            until(&queue, *event, Status::Completed).await;
        }
        assert_eq!(sorted(ledger.lines()), events.iter().map(|id| format!("{id} 1")).collect::<Vec<_>>());
        idle.stop().await;
        node.stop().await;
    }

    async fn a_handler_is_told_when_its_lease_is_lost(bed) {
        let (queue, ledger) = (real(bed, Policy { lease_ms: 200, ..brisk() }).await, Ledger::default());
        let written = ledger.clone();
        let node = start(Node::new(&queue, "n").on("t", move |event, cx| {
            let ledger = written.clone();
            async move {
                ledger.write(format!("attempt {}", event.attempt()));
                if event.attempt() == 1 {
                    cx.cancelled().await;
                    ledger.write("told");
                }
                Ok(())
            }
        }))
        .await;
        let event = publish(&queue, "t").await;
        ledger.wait(1).await;
        queue.reset(event.id, "main", "by hand").await.unwrap();
        ledger.wait(3).await;
        until(&queue, event.id, Status::Completed).await;
        assert_eq!(sorted(ledger.lines()), ["attempt 1", "attempt 2", "told"]);
        node.stop().await;
    }

    // O4
    async fn groups_keep_their_order_across_nodes(bed) {
        let (queue, ledger) = (real(bed, Policy { lease_ms: 60_000, ..brisk() }).await, Ledger::default());
        let node = |queue: &Queue, name: &str| {
            let ledger = ledger.clone();
            Node::new(queue, name).concurrency(8).on("t", move |event, _| {
                let ledger = ledger.clone();
                async move {
                    let n: usize = event.payload()?;
                    tokio::task::yield_now().await;
                    // Every seventh fails once, and its group waits for it.
                    if n.is_multiple_of(7) && event.attempt() == 1 {
                        return fail();
                    }
                    ledger.write(format!("{} {n}", event.group_id.as_deref().unwrap()));
                    Ok(())
                }
            })
        };
        let other = bed.real_time().await.in_namespace("ns").unwrap();
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

    // O3, O4: without a server that does the upkeep.
    async fn a_group_goes_on_when_its_first_event_has_expired(bed) {
        let queue = real(bed, brisk()).await;
        let soon = queue.clock().now() + chrono::TimeDelta::milliseconds(50);
        let first = publish_new(&queue, numbered("t", 1).group("g").expires_at(soon)).await;
        let second = publish_new(&queue, numbered("t", 2).group("g")).await;
        eventually("it is too late", async || queue.clock().now() > soon + chrono::TimeDelta::milliseconds(50)).await;
        let node = start(Node::new(&queue, "n").on("t", |_, _| async { Ok(()) })).await;
        until(&queue, second.id, Status::Completed).await;
        assert_eq!(status(&queue, first.id).await, Status::Expired);
        node.stop().await;
    }

    // O7
    async fn nodes_share_the_work_and_each_event_runs_once(bed) {
        let (queue, ledger) = (real(bed, Policy { lease_ms: 60_000, ..brisk() }).await, Ledger::default());
        let mut nodes = Vec::new();
        for n in 0..3 {
            let (other, ledger) = (bed.real_time().await.in_namespace("ns").unwrap(), ledger.clone());
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
        assert_eq!(take_all(&queue).await.len(), 0);
    }

    // O8
    async fn what_a_stuck_node_took_ahead_is_given_to_others(bed) {
        let (queue, ledger) = (real(bed, Policy { lease_ms: 600_000, ..brisk() }).await, Ledger::default());
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
        // Near enough in order.
        ledger.wait(500).await;
        let other = start(node(&bed.real_time().await.in_namespace("ns").unwrap(), "other", usize::MAX)).await;
        // All but the two that it is stuck with.
        ledger.wait(2_998).await;
        stuck.stop().await;
        ledger.wait(3_000).await;
        other.stop().await;
        let handled: Vec<i64> = ledger.lines().iter().map(|line| line.parse().unwrap()).collect();
        let distinct: std::collections::HashSet<i64> = handled.iter().copied().collect();
        assert_eq!((handled.len(), distinct.len()), (3_000, 3_000));
    }

    // O8: in two subscriptions, one slot for both.
    async fn a_type_that_has_no_free_slot_is_not_taken(bed) {
        let queue = real(bed, brisk()).await;
        queue.add_subscription(windlass::SubscriptionSpec::new("audit")).await.unwrap();
        let (room, gate) = (Room::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").concurrency_of("t", 1).handler(staying("t", &room, &gate));
        let node = start(node.handler(staying("t", &room, &gate).id("audit").subscription("audit"))).await;
        let first = publish(&queue, "t").await;
        eventually("one is at work", async || room.inside() == 1).await;
        // What comes now finds both pools without a slot.
        let second = publish(&queue, "t").await;
        let third = publish(&queue, "other").await;
        eventually("others are taken", async || status(&queue, third.id).await == Status::Pending && trail(&queue, third.id).await.len() > 1).await;
        assert_eq!(trail(&queue, second.id).await, []);
        gate.add_permits(4);
        for event in [first, second] {
            until(&queue, event.id, Status::Completed).await;
        }
        assert_eq!(room.most(), 1);
        node.stop().await;
    }

    // O8
    async fn types_that_match_a_prefix_limit_share_it(bed) {
        let queue = real(bed, Policy { lease_ms: 60_000, ..brisk() }).await;
        let (reports, others, gate) = (Room::default(), Room::default(), Arc::new(Semaphore::new(0)));
        let node = Node::new(&queue, "n").concurrency(6).concurrency_of("report.*", 2);
        let node = node.handler(staying("report.*", &reports, &gate)).handler(staying("mail", &others, &gate));
        let node = start(node).await;
        let mut events = Vec::new();
        for event_type in ["report.daily", "report.weekly", "report.yearly"] {
            events.extend(publish_many(&queue, event_type, 3).await);
        }
        eventually("two reports run", async || reports.inside() == 2).await;
        events.extend(publish_many(&queue, "mail", 4).await);
        eventually("four mails run", async || others.inside() == 4).await;
        gate.add_permits(events.len());
        for event in events {
            until(&queue, event, Status::Completed).await;
        }
        assert_eq!((reports.most(), others.most()), (2, 4));
        node.stop().await;
    }

    // O8
    async fn the_most_specific_concurrency_limit_applies(bed) {
        let queue = real(bed, Policy { lease_ms: 60_000, ..brisk() }).await;
        let (exact, long, short) = (Room::default(), Room::default(), Room::default());
        let gate = Arc::new(Semaphore::new(0));
        let node = Node::new(&queue, "n")
            .concurrency_of("report.*", 1)
            .concurrency_of("report.daily*", 2)
            .concurrency_of("report.daily.eu", 3)
            .handler(staying("report.daily.eu", &exact, &gate))
            .handler(staying("report.daily.us", &long, &gate))
            .handler(staying("report.weekly", &short, &gate));
        let node = start(node).await;
        let mut events = Vec::new();
        for event_type in ["report.daily.eu", "report.daily.us", "report.weekly"] {
            events.extend(publish_many(&queue, event_type, 5).await);
        }
        let inside = || (exact.inside(), long.inside(), short.inside());
        eventually("each limit is filled", async || inside() == (3, 2, 1)).await;
        gate.add_permits(events.len());
        for event in events {
            until(&queue, event, Status::Completed).await;
        }
        assert_eq!((exact.most(), long.most(), short.most()), (3, 2, 1));
        node.stop().await;
    }

    // O8
    async fn a_prefix_limit_leaves_unhandled_types_to_other_nodes(bed) {
        let (queue, ledger) = (real(bed, brisk()).await, Ledger::default());
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
        until(&queue, handled.id, Status::Completed).await;
        assert_eq!((ledger.lines(), trail(&queue, left.id).await), (vec!["report.daily".to_owned()], vec![]));
        node.stop().await;
    }

    // O3
    async fn what_could_not_start_in_time_is_never_started(bed) {
        let queue = real(bed, Policy { lease_ms: 60_000, ..brisk() }).await;
        let (room, gate, ledger) = (Room::default(), Arc::new(Semaphore::new(0)), Ledger::default());
        let written = ledger.clone();
        let node = Node::new(&queue, "n").concurrency(1).concurrency_of("urgent", 1).handler(staying("t", &room, &gate));
        let node = start(node.on("urgent", move |_, _| {
            let ledger = written.clone();
            async move {
                ledger.write("started");
                Ok(())
            }
        }))
        .await;
        publish(&queue, "t").await;
        eventually("it is at work", async || room.inside() == 1).await;
        // The node takes it, and has no slot for it before its deadline.
        let soon = queue.clock().now() + chrono::TimeDelta::milliseconds(500);
        let urgent = publish_new(&queue, windlass::NewEvent::new("urgent").expires_at(soon)).await;
        // A node goes by the moment at which it got the event, a little later than that of the claim.
        let surely = soon + chrono::TimeDelta::seconds(1);
        eventually("it is too late", async || queue.clock().now() > surely).await;
        gate.add_permits(1);
        eventually("it has expired", async || {
            queue.expire_once().await.unwrap();
            status(&queue, urgent.id).await == Status::Expired
        })
        .await;
        assert!(ledger.lines().is_empty());
        node.stop().await;
    }
}
