//! Claiming: filters, order, batch sizes and leases.

use std::collections::BTreeMap;

use windlass::{ClaimRequest, NamespacePolicy, NewEvent, Policy, PolicyOverrides, Status};

use crate::support::*;

conformance! {
    // Q2
    async fn poll_of_empty_queue_returns_nothing(bed) {
        assert!(poll(&bed.queue).await.is_none());
        let event = publish(&bed.queue, "t").await;
        assert_eq!(claim_one(&bed.queue).await.event.id, event.id);
        assert!(poll(&bed.queue).await.is_none());
    }

    // Q5
    async fn claimed_delivery_shows_its_lease(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").max_retries(5)).await;
        bed.advance(secs(3));
        let delivery = bed.queue.poll("worker-7").await.unwrap().unwrap();
        assert_eq!(json(&delivery.event), json(&event));
        assert_eq!(delivery.subscription, "main");
        assert_eq!(delivery.worker_id, "worker-7");
        assert_eq!((delivery.attempts, delivery.redelivery_count()), (1, 1));
        assert_eq!((delivery.retry_count, delivery.max_retries), (0, Some(5)));
        assert_eq!(delivery.picked_at, bed.now());
        assert_eq!(delivery.lease_expires_at, after(bed.now(), LEASE));

        let view = view(&bed.queue, event.id).await;
        assert_eq!(view.status, Status::Processing);
        assert_eq!((view.attempts, view.retry_count, view.max_retries), (1, 0, Some(5)));
        assert_eq!(view.worker_id.as_deref(), Some("worker-7"));
        assert_eq!(view.picked_at, Some(bed.now()));
        assert_eq!(view.started_at, None);
        assert_eq!(view.lease_expires_at, Some(after(bed.now(), LEASE)));
        assert_eq!(view.updated_at, bed.now());
        assert_eq!((view.ready_at, view.next_retry_at), (None, None));
    }

    // Q3
    async fn earliest_ready_event_is_claimed_first(bed) {
        let later = publish_new(&bed.queue, NewEvent::new("t").delay(secs(20))).await;
        let soon = publish_new(&bed.queue, NewEvent::new("t").delay(secs(10))).await;
        let now = publish_many(&bed.queue, "t", 2).await;
        bed.advance(secs(30));
        let got = ids(&claim_all(&bed.queue).await);
        assert_eq!(got, [now[0], now[1], soon.id, later.id]);
    }

    // A large claim may read the events with separate statements, for contiguous and for sparse ids.
    async fn large_claim_returns_complete_events_in_order(bed) {
        let new = |n: usize| NewEvent::new(["a", "b", "b", "c"][n % 4]).payload(&n).unwrap().title(format!("no. {n}"));
        let published = bed.queue.publish_all((0..800).map(new).collect()).await.unwrap();
        for (types, count) in [(vec!["a"], 200), (vec!["b", "c"], 600)] {
            let got = claim(&bed.queue, ClaimRequest::new("w").types(types.clone()).max(1_000)).await;
            let wanted = published.iter().filter(|published| types.contains(&published.event.event_type.as_str()));
            let wanted: Vec<_> = wanted.map(|published| json(&published.event)).collect();
            assert_eq!(got.len(), count);
            assert_eq!(got.iter().map(|delivery| json(&delivery.event)).collect::<Vec<_>>(), wanted);
            assert!(got.iter().all(|delivery| delivery.lease_expires_at == after(bed.now(), LEASE)));
        }
        assert!(poll(&bed.queue).await.is_none());
    }

    // Q3
    async fn earliest_ready_event_is_first_across_types(bed) {
        let mut expected = Vec::new();
        for (n, delay) in [30, 10, 20, 40].into_iter().enumerate() {
            let event = NewEvent::new(format!("t{n}")).tags([format!("tag{n}")]).delay(secs(delay));
            expected.push((delay, publish_new(&bed.queue, event).await.id));
        }
        bed.advance(secs(60));
        expected.sort();
        for (_, event) in expected {
            assert_eq!(claim_one(&bed.queue).await.event.id, event);
        }
    }

    // Q3
    async fn expired_lease_is_redelivered_before_newer_events(bed) {
        let abandoned = publish(&bed.queue, "t").await;
        claim_one(&bed.queue).await;
        let newer = publish(&bed.queue, "t").await;
        bed.advance(LEASE);
        assert_eq!(claim_one(&bed.queue).await.event.id, abandoned.id);
        assert_eq!(claim_one(&bed.queue).await.event.id, newer.id);
    }

    // Q3: the expired lease belongs to a claim with another filter.
    async fn expired_lease_comes_first_for_another_filter(bed) {
        let abandoned = publish(&bed.queue, "t").await;
        claim(&bed.queue, ClaimRequest::new("w").types(["t"])).await;
        assert!(poll(&bed.queue).await.is_none());
        let newer = publish(&bed.queue, "t").await;
        bed.advance(LEASE);
        assert_eq!(claim_one(&bed.queue).await.event.id, abandoned.id);
        assert_eq!(claim_one(&bed.queue).await.event.id, newer.id);
    }

    // Q3, O7
    async fn expired_lease_comes_first_in_another_process(bed) {
        let abandoned = publish(&bed.queue, "t").await;
        claim_one(&bed.queue).await;
        let newer = publish(&bed.queue, "t").await;
        bed.advance(LEASE);
        let other = bed.second_queue().await;
        assert_eq!(claim_one(&other).await.event.id, abandoned.id);
        assert_eq!(claim_one(&other).await.event.id, newer.id);
    }

    // Q3, Q14
    async fn expired_lease_comes_first_after_restart(bed) {
        let first = bed.second_queue().await;
        let abandoned = publish(&first, "t").await;
        claim_one(&first).await;
        let newer = publish(&first, "t").await;
        first.close().await;
        drop(first);
        bed.advance(LEASE);
        let second = bed.second_queue().await;
        let again = claim_one(&second).await;
        assert_eq!((again.event.id, again.attempts), (abandoned.id, 2));
        assert_eq!(claim_one(&second).await.event.id, newer.id);
    }

    // Q4
    async fn one_of_many_concurrent_polls_gets_the_event(bed) {
        let mut queues = vec![bed.queue.clone()];
        for _ in 0..3 {
            queues.push(bed.second_queue().await);
        }
        for round in 0..5 {
            let event = publish(&bed.queue, "t").await;
            let polls = (0..20).map(|n| {
                let queue = queues[n % queues.len()].clone();
                tokio::spawn(async move { queue.poll(format!("w{n}")).await.unwrap() })
            });
            let mut winners = Vec::new();
            for poll in polls.collect::<Vec<_>>() {
                winners.extend(poll.await.unwrap());
            }
            assert_eq!(ids(&winners), [event.id], "round {round}");
            assert_eq!(view(&bed.queue, event.id).await.worker_id, Some(winners[0].worker_id.clone()));
            done(&bed.queue, &winners[0]).await;
        }
    }

    // Q6
    async fn event_is_redelivered_exactly_at_lease_expiry(bed) {
        let event = publish(&bed.queue, "t").await;
        let first = bed.queue.poll("w1").await.unwrap().unwrap();
        bed.advance(LEASE - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        let second = bed.queue.poll("w2").await.unwrap().unwrap();
        assert_eq!(second.event.id, event.id);
        assert_ne!(second.lease, first.lease);
        assert_eq!((second.attempts, second.redelivery_count(), second.retry_count), (2, 2, 0));
        assert_eq!(second.picked_at, bed.now());
        let view = view(&bed.queue, event.id).await;
        assert_eq!((view.attempts, view.updated_at), (2, bed.now()));
        assert_eq!(view.worker_id.as_deref(), Some("w2"));
        use windlass::Action::*;
        assert_eq!(trail(&bed.queue, event.id).await, [Picked, Abandoned, Picked]);
    }

    // B2
    async fn leased_event_is_hidden_from_other_processes(bed) {
        let event = publish(&bed.queue, "t").await;
        let other = bed.second_queue().await;
        claim_one(&bed.queue).await;
        assert!(poll(&other).await.is_none());
        bed.advance(LEASE - MICRO);
        assert!(poll(&other).await.is_none());
        bed.advance(MICRO);
        assert_eq!(claim_one_soon(&other).await.event.id, event.id);
        assert!(poll(&bed.queue).await.is_none());
    }

    async fn claim_returns_up_to_max_deliveries(bed) {
        let events = publish_many(&bed.queue, "t", 25).await;
        let mut got = Vec::new();
        for expected in [10, 10, 5, 0] {
            let batch = claim(&bed.queue, ClaimRequest::new("w").max(10)).await;
            assert_eq!(batch.len(), expected);
            got.extend(ids(&batch));
        }
        assert_eq!(got, events);
    }

    async fn large_backlog_is_delivered_once(bed) {
        let events = publish_many(&bed.queue, "t", 2_500).await;
        let mut got = Vec::new();
        for expected in [1_000, 1_000, 500, 0] {
            let batch = claim_all(&bed.queue).await;
            assert_eq!(batch.len(), expected);
            got.extend(ids(&batch));
        }
        assert_eq!(got, events);
    }

    async fn many_lanes_are_each_claimed_in_order(bed) {
        let events = (0..500).map(|n| NewEvent::new(format!("t{}", n % 50))).collect();
        bed.queue.publish_all(events).await.unwrap();
        let mut of_type: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        let mut count = 0;
        loop {
            let batch = claim(&bed.queue, ClaimRequest::new("w").max(70)).await;
            if batch.is_empty() {
                break;
            }
            count += batch.len();
            for delivery in batch {
                of_type.entry(delivery.event.event_type).or_default().push(delivery.event.id);
            }
        }
        assert_eq!((count, of_type.len()), (500, 50));
        assert!(of_type.values().all(|ids| ids.len() == 10 && ids.is_sorted_by(|a, b| a < b)));
    }

    async fn concurrent_claims_keep_order_within_each_tag_set(bed) {
        let queue = bed.real_time_queue().await;
        // One to seven events in each of a hundred lanes.
        let lanes: Vec<usize> = (0..100).flat_map(|lane| std::iter::repeat_n(lane, 1 + lane % 7)).collect();
        let new = |lane: &usize| NewEvent::new("t").tags([format!("tag-{lane}")]);
        queue.publish_all(lanes.iter().map(new).collect()).await.unwrap();
        let mut of_lane: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        loop {
            let (one, two) = (ClaimRequest::new("w1").max(60), ClaimRequest::new("w2").max(7));
            let (one, two) = tokio::join!(claim(&queue, one), claim(&queue, two));
            if one.is_empty() && two.is_empty() {
                break;
            }
            assert!(one.iter().all(|delivery| delivery.worker_id == "w1"));
            assert!(two.iter().all(|delivery| delivery.worker_id == "w2"));
            // The two claims may or may not share one statement. Compare the order only between rounds.
            let mut both: Vec<_> = one.into_iter().chain(two).map(|d| (d.event.id, d.event.tags)).collect();
            both.sort();
            both.into_iter().for_each(|(id, tags)| of_lane.entry(tags).or_default().push(id));
        }
        assert_eq!((of_lane.len(), of_lane.values().map(Vec::len).sum::<usize>()), (100, lanes.len()));
        assert!(of_lane.values().all(|ids| ids.is_sorted_by(|a, b| a < b)));
    }

    async fn uneven_tag_sets_fill_claims(bed) {
        let queue = bed.real_time_queue().await;
        let (long, short) = (0..600, 0..100);
        let lanes = long.map(|_| 0).chain(short).map(|lane| NewEvent::new("t").tags([format!("tag-{lane}")]));
        queue.publish_all(lanes.collect()).await.unwrap();
        let mut sizes = Vec::new();
        while sizes.last() != Some(&0) {
            sizes.push(claim(&queue, ClaimRequest::new("w").max(140)).await.len());
        }
        assert_eq!((&sizes[..4], sizes.iter().sum::<usize>()), (&[140; 4][..], 700), "{sizes:?}");
    }

    async fn claim_filters_by_types(bed) {
        let paid = publish(&bed.queue, "order.paid").await;
        let sent = publish(&bed.queue, "order.sent").await;
        let user = publish(&bed.queue, "user.created").await;
        let of = async |types: &[&str]| {
            let request = ClaimRequest::new("w").types(types.to_vec()).max(10);
            let got = claim(&bed.queue, request).await;
            for delivery in &got {
                finish(&bed.queue, delivery, release()).await;
            }
            ids(&got)
        };
        assert_eq!(of(&["order.paid"]).await, [paid.id]);
        assert_eq!(of(&["order.*"]).await, [paid.id, sent.id]);
        assert_eq!(of(&["order.sent", "user.*"]).await, [sent.id, user.id]);
        assert_eq!(of(&["*"]).await, [paid.id, sent.id, user.id]);
        assert_eq!(of(&["order", "order.pai", "nothing"]).await, Vec::<i64>::new());
    }

    async fn claim_can_exclude_types(bed) {
        for event_type in ["order.paid", "order.sent", "user.created"] {
            publish(&bed.queue, event_type).await;
        }
        let request = ClaimRequest::new("w").types(["order.*", "user.*"]).except_types(["order.s*", "user.created"]);
        let got = claim(&bed.queue, request.max(10)).await;
        assert_eq!(got.iter().map(|delivery| delivery.event.event_type.as_str()).collect::<Vec<_>>(), ["order.paid"]);
        let refused = bed.queue.claim(ClaimRequest::new("w").except_types(["a*b"])).await.unwrap_err();
        assert_eq!(refused.to_string(), "except_types: 'a*b': '*' is allowed only at the end");
    }

    // H2, at the level of the library
    async fn claim_matches_any_of_its_tags(bed) {
        let both = publish_new(&bed.queue, NewEvent::new("t").tags_text("email , high")).await;
        let sms = publish_new(&bed.queue, NewEvent::new("t").tags(["sms"])).await;
        let bare = publish(&bed.queue, "t").await;
        let of = async |tags: &[&str]| {
            let got = claim(&bed.queue, ClaimRequest::new("w").tags(tags.to_vec()).max(10)).await;
            for delivery in &got {
                finish(&bed.queue, delivery, release()).await;
            }
            ids(&got)
        };
        assert_eq!(of(&["email"]).await, [both.id]);
        assert_eq!(of(&["high", "sms"]).await, [both.id, sms.id]);
        assert_eq!(of(&["low"]).await, Vec::<i64>::new());
        assert_eq!(of(&["e", "mail", "email,high"]).await, Vec::<i64>::new());
        assert_eq!(of(&[]).await, [both.id, sms.id, bare.id]);
    }

    async fn claim_combines_types_and_tags(bed) {
        let wanted = publish_new(&bed.queue, NewEvent::new("a").tags(["x"])).await;
        publish_new(&bed.queue, NewEvent::new("a").tags(["y"])).await;
        publish_new(&bed.queue, NewEvent::new("b").tags(["x"])).await;
        let got = claim(&bed.queue, ClaimRequest::new("w").types(["a"]).tags(["x"]).max(10)).await;
        assert_eq!(ids(&got), [wanted.id]);
    }

    async fn higher_priority_is_claimed_first_then_earliest(bed) {
        let mut expected = Vec::new();
        for priority in [0, 5, -5, 5, 0, i16::MAX, i16::MIN] {
            bed.advance(secs(1));
            let event = publish_new(&bed.queue, NewEvent::new("t").priority(priority)).await;
            expected.push((std::cmp::Reverse(priority), event.id));
        }
        expected.sort();
        for (_, id) in expected {
            assert_eq!(claim_one(&bed.queue).await.event.id, id);
        }
    }

    async fn claim_can_set_its_lease_duration(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim(&bed.queue, ClaimRequest::new("w").lease(secs(5))).await.remove(0);
        assert_eq!(delivery.lease_expires_at, after(bed.now(), secs(5)));
        bed.advance(secs(5) - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        let again = claim_one_soon(&bed.queue).await;
        assert_eq!((again.event.id, again.lease_expires_at), (event.id, after(bed.now(), LEASE)));
    }

    async fn type_policy_sets_the_lease_duration(bed) {
        let slow = PolicyOverrides { lease_ms: Some(900_000), ..Default::default() };
        let base = Policy { lease_ms: 10_000, ..Policy::default() };
        let queue = bed.namespace_with(NamespacePolicy { base, types: [("slow.*".into(), slow)].into() }).await;
        publish(&queue, "slow.report").await;
        publish(&queue, "quick").await;
        let got = claim_all(&queue).await;
        let leases: Vec<_> =
            got.iter().map(|delivery| delivery.lease_expires_at.signed_duration_since(bed.now())).collect();
        assert_eq!(leases, [chrono::TimeDelta::seconds(900), chrono::TimeDelta::seconds(10)]);
    }

    // O7
    async fn new_lane_of_another_process_is_claimed(bed) {
        let other = bed.second_queue().await;
        publish(&bed.queue, "old").await;
        assert_eq!(claim_one(&bed.queue).await.event.event_type, "old");
        assert!(poll(&bed.queue).await.is_none());
        let event = publish_new(&other, NewEvent::new("new").tags(["x"]).priority(3)).await;
        assert_eq!(claim_one_soon(&bed.queue).await.event.id, event.id);
    }

    // O7
    async fn two_processes_share_the_deliveries(bed) {
        let other = bed.second_queue().await;
        let events = publish_many(&bed.queue, "t", 20).await;
        let (mut got, mut claimed_by_other) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            got.push(claim_one(&bed.queue).await.event.id);
            claimed_by_other.push(claim_one(&other).await.event.id);
        }
        got.extend(claimed_by_other);
        assert_eq!(sorted(got), events);
        assert!(poll(&bed.queue).await.is_none() && poll(&other).await.is_none());
    }
}
