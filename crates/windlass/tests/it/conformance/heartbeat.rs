//! Start and heartbeat: recording that processing started, and extending leases.

use windlass::{Action, LeasedEvent, NamespacePolicy, Policy, PolicyOverrides};

use crate::support::*;

conformance! {
    // H9
    async fn start_is_recorded_and_logged(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(secs(2));
        assert_eq!(bed.queue.start(&delivery).await, Ok(Some(bed.now())));
        let started = bed.now();
        let view = view(&bed.queue, event.id).await;
        assert_eq!((view.started_at, view.updated_at), (Some(started), started));
        assert_eq!(view.picked_at, Some(delivery.picked_at));
        bed.advance(secs(2));
        done(&bed.queue, &delivery).await;
        let log = bed.queue.log(event.id).await.unwrap();
        let seen: Vec<_> = log.iter().map(|entry| (entry.action, entry.created_at)).collect();
        let expected =
            [(Action::Picked, delivery.picked_at), (Action::Started, started), (Action::Completed, bed.now())];
        assert_eq!(seen, expected);
        assert!(log.iter().all(|entry| entry.worker_id.as_deref() == Some("w") && entry.attempt == 1));
    }

    async fn second_start_adds_no_log_entry(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        bed.queue.start(&delivery).await.unwrap().unwrap();
        bed.advance(secs(1));
        bed.queue.start(LeasedEvent::by_worker(event.id, "w")).await.unwrap().unwrap();
        assert_eq!(trail(&bed.queue, event.id).await, [Action::Picked, Action::Started]);
    }

    async fn start_does_not_extend_the_lease(bed) {
        publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(secs(50));
        bed.queue.start(&delivery).await.unwrap();
        bed.advance(secs(10));
        assert_eq!(claim_one(&bed.queue).await.attempts, 2);
    }

    async fn new_attempt_is_not_started(bed) {
        let event = publish(&bed.queue, "t").await;
        bed.queue.start(&claim_one(&bed.queue).await).await.unwrap().unwrap();
        bed.advance(LEASE);
        claim_one(&bed.queue).await;
        assert_eq!(view(&bed.queue, event.id).await.started_at, None);
        use Action::*;
        assert_eq!(trail(&bed.queue, event.id).await, [Picked, Started, Abandoned, Picked]);
    }

    async fn extended_lease_expires_later(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(secs(50));
        assert_eq!(bed.queue.extend(&delivery, None).await, Ok(Some(after(bed.now(), LEASE))));
        assert_eq!(view(&bed.queue, event.id).await.lease_expires_at, Some(after(bed.now(), LEASE)));
        assert_eq!(view(&bed.queue, event.id).await.updated_at, bed.now());
        bed.advance(LEASE - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        assert_eq!(claim_one_soon(&bed.queue).await.attempts, 2);
    }

    async fn extend_sets_the_requested_duration(bed) {
        publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        assert_eq!(bed.queue.extend(&delivery, Some(secs(3600))).await, Ok(Some(after(bed.now(), secs(3600)))));
        bed.advance(secs(3600) - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        // The new expiry may be earlier.
        assert_eq!(bed.queue.extend(&delivery, Some(secs(1))).await, Ok(Some(after(bed.now(), secs(1)))));
        bed.advance(secs(1));
        assert_eq!(claim_one_soon(&bed.queue).await.attempts, 2);
    }

    async fn leases_in_one_call_are_extended_independently(bed) {
        let events = publish_many(&bed.queue, "t", 3).await;
        let got = claim_all(&bed.queue).await;
        done(&bed.queue, &got[1]).await;
        let leases = vec![LeasedEvent::from(&got[0]), LeasedEvent::from(&got[1]), LeasedEvent::by_worker(events[2], "w")];
        let extended = bed.queue.extend_all(leases, Some(secs(90))).await.unwrap();
        let end = Some(after(bed.now(), secs(90)));
        assert_eq!(extended, [end, None, end]);
        let leases = vec![LeasedEvent::from(&got[0]), LeasedEvent::by_worker(events[2], "stranger")];
        assert_eq!(bed.queue.extend_all(leases, Some(secs(99))).await.unwrap(), [Some(after(bed.now(), secs(99))), None]);
        assert_eq!(view(&bed.queue, events[2]).await.lease_expires_at, end);
    }

    async fn type_policy_sets_the_extension_duration(bed) {
        let slow = PolicyOverrides { lease_ms: Some(900_000), ..Default::default() };
        let queue = bed
            .namespace_with(NamespacePolicy { base: Policy::default(), types: [("slow".into(), slow)].into() })
            .await;
        // This process cached the namespace before it had lanes of the type.
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        assert!(poll(&other).await.is_none());
        let event = publish(&queue, "slow").await;
        claim_one(&queue).await;
        let end = Some(after(bed.now(), secs(900)));
        assert_eq!(queue.extend(LeasedEvent::by_worker(event.id, "w"), None).await, Ok(end));
        assert_eq!(other.extend(LeasedEvent::by_worker(event.id, "w"), None).await, Ok(end));
    }
}
