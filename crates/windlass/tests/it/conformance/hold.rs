//! While a delivery is held: it began, and it is held for longer.

use windlass::{Action, LeasedEvent, NamespacePolicy, Policy, PolicyOverrides};

use crate::support::*;

conformance! {
    // H9
    async fn a_start_is_noted_and_logged(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = take(&bed.queue).await;
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

    async fn a_second_start_adds_no_entry(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = take(&bed.queue).await;
        bed.queue.start(&delivery).await.unwrap().unwrap();
        bed.advance(secs(1));
        bed.queue.start(LeasedEvent::by_worker(event.id, "w")).await.unwrap().unwrap();
        assert_eq!(trail(&bed.queue, event.id).await, [Action::Picked, Action::Started]);
    }

    async fn a_start_does_not_prolong_the_lease(bed) {
        publish(&bed.queue, "t").await;
        let delivery = take(&bed.queue).await;
        bed.advance(secs(50));
        bed.queue.start(&delivery).await.unwrap();
        bed.advance(secs(10));
        assert_eq!(take(&bed.queue).await.attempts, 2);
    }

    async fn a_new_attempt_has_not_begun(bed) {
        let event = publish(&bed.queue, "t").await;
        bed.queue.start(&take(&bed.queue).await).await.unwrap().unwrap();
        bed.advance(LEASE);
        take(&bed.queue).await;
        assert_eq!(view(&bed.queue, event.id).await.started_at, None);
        use Action::*;
        assert_eq!(trail(&bed.queue, event.id).await, [Picked, Started, Abandoned, Picked]);
    }

    async fn an_extended_lease_ends_later(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = take(&bed.queue).await;
        bed.advance(secs(50));
        assert_eq!(bed.queue.extend(&delivery, None).await, Ok(Some(after(bed.now(), LEASE))));
        assert_eq!(view(&bed.queue, event.id).await.lease_expires_at, Some(after(bed.now(), LEASE)));
        assert_eq!(view(&bed.queue, event.id).await.updated_at, bed.now());
        bed.advance(LEASE - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        assert_eq!(take_soon(&bed.queue).await.attempts, 2);
    }

    async fn a_lease_is_extended_to_the_moment_asked_for(bed) {
        publish(&bed.queue, "t").await;
        let delivery = take(&bed.queue).await;
        assert_eq!(bed.queue.extend(&delivery, Some(secs(3600))).await, Ok(Some(after(bed.now(), secs(3600)))));
        bed.advance(secs(3600) - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        // Also to an earlier one.
        assert_eq!(bed.queue.extend(&delivery, Some(secs(1))).await, Ok(Some(after(bed.now(), secs(1)))));
        bed.advance(secs(1));
        assert_eq!(take_soon(&bed.queue).await.attempts, 2);
    }

    async fn each_lease_of_a_call_is_extended_by_itself(bed) {
        let events = publish_many(&bed.queue, "t", 3).await;
        let got = take_all(&bed.queue).await;
        done(&bed.queue, &got[1]).await;
        let held = vec![LeasedEvent::from(&got[0]), LeasedEvent::from(&got[1]), LeasedEvent::by_worker(events[2], "w")];
        let extended = bed.queue.extend_all(held, Some(secs(90))).await.unwrap();
        let end = Some(after(bed.now(), secs(90)));
        assert_eq!(extended, [end, None, end]);
        let held = vec![LeasedEvent::from(&got[0]), LeasedEvent::by_worker(events[2], "stranger")];
        assert_eq!(bed.queue.extend_all(held, Some(secs(99))).await.unwrap(), [Some(after(bed.now(), secs(99))), None]);
        assert_eq!(view(&bed.queue, events[2]).await.lease_expires_at, end);
    }

    async fn the_policy_of_a_type_says_how_long_an_extension_is(bed) {
        let slow = PolicyOverrides { lease_ms: Some(900_000), ..Default::default() };
        let queue = bed
            .namespace_with(NamespacePolicy { base: Policy::default(), types: [("slow".into(), slow)].into() })
            .await;
        // Somebody who knew the namespace before there was such a type.
        let other = bed.other().await.in_namespace("ns").unwrap();
        assert!(poll(&other).await.is_none());
        let event = publish(&queue, "slow").await;
        take(&queue).await;
        let end = Some(after(bed.now(), secs(900)));
        assert_eq!(queue.extend(LeasedEvent::by_worker(event.id, "w"), None).await, Ok(end));
        assert_eq!(other.extend(LeasedEvent::by_worker(event.id, "w"), None).await, Ok(end));
    }
}
