//! The overview: counts of deliveries, dead letters and nodes, and ages, by namespace.

use std::time::Duration;

use windlass::{
    ClaimRequest, DeadLetterCount, DeadReason, Limits, NewEvent, NewNode, NewSchedule, Outcome, Overview, Policy,
    QueueOverview, Report, SubscriptionSpec,
};

use crate::support::*;

/// The counts of one subscription and type.
fn queue_overview<'a>(
    overview: &'a Overview,
    namespace: &str,
    subscription: &str,
    event_type: &str,
) -> &'a QueueOverview {
    let found = overview.namespaces.iter().find(|found| found.namespace == namespace).expect("the namespace is listed");
    let matches = |queue: &&QueueOverview| queue.subscription == subscription && queue.event_type == event_type;
    found.queues.iter().find(matches).unwrap_or_else(|| panic!("no {subscription} {event_type}: {found:?}"))
}

conformance! {
    // Q15, C15
    async fn every_delivery_is_counted_in_its_state(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        for event in [
            NewEvent::new("a"),
            NewEvent::new("a"),
            NewEvent::new("a").delay(secs(600)),
            NewEvent::new("g").group("one"),
            NewEvent::new("g").group("one"),
            NewEvent::new("g").group("one"),
        ] {
            queue.publish(event).await.unwrap();
        }
        bed.advance(secs(30));
        queue.claim(ClaimRequest::new("w").types(["a"]).max(1)).await.unwrap();
        bed.advance(secs(60));

        let overview = queue.overview().await.unwrap();
        let main = queue_overview(&overview, "default", "main", "a");
        assert_eq!((main.ready, main.delayed, main.waiting_for_group, main.processing), (1, 1, 0, 1));
        assert_eq!((main.oldest_ready, main.processing_ages), (secs(90), [0, 1, 0, 0, 0]));
        let audit = queue_overview(&overview, "default", "audit", "a");
        assert_eq!((audit.ready, audit.delayed, audit.processing), (2, 1, 0));
        let group = queue_overview(&overview, "default", "main", "g");
        assert_eq!((group.ready, group.delayed, group.waiting_for_group, group.processing), (1, 0, 2, 0));
    }

    async fn processing_deliveries_are_counted_by_age(bed) {
        let queue = &bed.queue;
        // Leased for 59, 60, 299, 300, 899, 900, 1799 and 1800 seconds.
        let ages = [1800, 1799, 900, 899, 300, 299, 60, 59];
        for pair in ages.windows(2) {
            queue.publish(NewEvent::new("a")).await.unwrap();
            queue.claim(ClaimRequest::new("w").lease(secs(7200))).await.unwrap();
            bed.advance(secs(pair[0] - pair[1]));
        }
        queue.publish(NewEvent::new("a")).await.unwrap();
        queue.claim(ClaimRequest::new("w").lease(secs(7200))).await.unwrap();
        bed.advance(secs(59));
        let overview = queue.overview().await.unwrap();
        assert_eq!(queue_overview(&overview, "default", "main", "a").processing_ages, [1, 2, 2, 2, 1]);
    }

    async fn dead_letters_are_counted_by_kind_of_reason(bed) {
        let queue = &bed.queue;
        let reports = [
            Report::new(Outcome::dead()),
            Report::new(Outcome::dead()),
            Report::new(Outcome::Dead { reason: "no such user: 42".into() }),
            Report::new(Outcome::Dead { reason: "no such user: 43".into() }),
            Report::new(Outcome::Dead { reason: "No handler for event x".into() }),
        ];
        for report in reports {
            queue.publish(NewEvent::new("a")).await.unwrap();
            let claimed = queue.claim(ClaimRequest::new("w")).await.unwrap();
            finish(queue, &claimed[0], report).await;
        }
        queue.publish(NewEvent::new("b").expires_in(secs(1))).await.unwrap();
        bed.advance(secs(2));
        queue.expire_once().await.unwrap();

        let overview = queue.overview().await.unwrap();
        let count = |event_type: &str, reason, count| DeadLetterCount {
            subscription: "main".into(), event_type: event_type.into(), reason, count
        };
        let expected = [
            count("a", DeadReason::HandlerError, 2),
            count("a", DeadReason::NoHandler, 1),
            count("a", DeadReason::Other, 2),
            count("b", DeadReason::Expired, 1),
        ];
        assert_eq!(overview.namespaces[0].dead_letters, expected);
        assert_eq!(queue_overview(&overview, "default", "main", "a").ready, 0);
    }

    async fn types_beyond_the_limit_are_counted_together(bed) {
        let limits = Limits { metric_types_max: 2, ..Limits::default() };
        let queue = windlass::Queue::options(&bed.database.url).limits(limits).open().await.unwrap();
        for event_type in ["a", "b", "c", "d", "c"] {
            queue.publish(NewEvent::new(event_type)).await.unwrap();
        }
        let overview = queue.overview().await.unwrap();
        let found: Vec<(&str, u64)> =
            overview.namespaces[0].queues.iter().map(|queue| (&*queue.event_type, queue.ready)).collect();
        assert_eq!(found, [("a", 1), ("b", 1), ("other", 3)]);
    }

    async fn namespaces_report_nodes_schedules_and_maintenance(bed) {
        let queue = &bed.queue;
        let other = bed.namespace(Policy::default()).await;
        other.pause().await.unwrap();
        queue.register_node(NewNode::new("one")).await.unwrap();
        bed.advance(secs(91));
        queue.register_node(NewNode::new("two")).await.unwrap();
        queue.add_schedule(NewSchedule::new("tick", "* * * * *", NewEvent::new("tick"))).await.unwrap();
        let before = queue.overview().await.unwrap();
        assert_eq!(before.namespaces[0].schedule_late, Duration::ZERO);
        queue.maintain_once().await.unwrap();
        bed.advance(secs(120));
        let overview = queue.overview().await.unwrap();
        let [default, other] = &overview.namespaces[..] else { panic!("{overview:?}") };
        assert_eq!((default.nodes_alive, default.nodes_stale), (0, 2));
        assert_eq!((before.namespaces[0].nodes_alive, before.namespaces[0].nodes_stale), (1, 1));
        assert_eq!((default.paused, other.paused), (false, true));
        assert!(default.schedule_late >= secs(60) && default.schedule_late <= secs(120), "{default:?}");
        let release_expired = default.tasks.iter().find(|task| task.view.task.as_str() == "release_expired").unwrap();
        assert!(release_expired.overdue >= secs(108) && release_expired.overdue <= secs(112), "{release_expired:?}");
        assert_eq!(other.tasks, []);
    }
}
