//! Canceling all pending deliveries that match a filter.

use windlass::{CancelFilter, ClaimRequest, Error, NewEvent, Queue, SearchFilter, Status, SubscriptionSpec};

use crate::support::*;

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

async fn events_with_status(queue: &Queue, subscription: &str, status: Status) -> Vec<i64> {
    let filter = SearchFilter {
        status: Some(status),
        subscription: Some(subscription.into()),
        limit: 1_000,
        ..SearchFilter::default()
    };
    let found = queue.search(filter).await.unwrap();
    sorted(found.events.iter().map(|found| found.event_id).collect())
}

conformance! {
    async fn cancel_all_cancels_only_matching_pending_events(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit").types(["order.*"])).await.unwrap();
        let paid = publish_new(queue, NewEvent::new("order.paid").tags(["email"])).await.id;
        let sent = publish_new(queue, NewEvent::new("order.sent").tags(["sms"])).await.id;
        let later = publish_new(queue, NewEvent::new("user").tags(["email"]).run_at(after(bed.now(), MINUTE))).await.id;
        let no_match = CancelFilter { types: strings(&["order"]), ..Default::default() };
        assert_eq!(queue.cancel_all(no_match).await, Ok(0));
        let both = CancelFilter { types: strings(&["order.*"]), tags: strings(&["email"]), ..Default::default() };
        assert_eq!(queue.cancel_all(both.clone()).await, Ok(2));
        assert_eq!(queue.cancel_all(both).await, Ok(0));
        assert_eq!(events_with_status(queue, "main", Status::Cancelled).await, [paid]);
        assert_eq!(events_with_status(queue, "audit", Status::Cancelled).await, [paid]);
        let of_audit = CancelFilter { subscription: Some("audit".into()), ..Default::default() };
        assert_eq!(queue.cancel_all(of_audit).await, Ok(1));
        assert_eq!(events_with_status(queue, "main", Status::Pending).await, [sent, later]);
        let email = CancelFilter { tags: strings(&["email"]), ..Default::default() };
        assert_eq!(queue.cancel_all(email).await, Ok(1));
        assert_eq!(trail(queue, later).await, [windlass::Action::Cancelled]);
        let other = bed.namespace(windlass::Policy::default()).await;
        let other_event = publish(&other, "t").await.id;
        assert_eq!(queue.cancel_all(CancelFilter::default()).await, Ok(1));
        assert_eq!(status(&other, other_event).await, Status::Pending);
        assert!(poll(queue).await.is_none());
    }

    async fn cancel_all_ignores_events_after_up_to(bed) {
        let queue = &bed.queue;
        let ids = publish_many(queue, "t", 3).await;
        let up_to = CancelFilter { up_to: Some(ids[1]), ..Default::default() };
        assert_eq!(queue.cancel_all(CancelFilter { event_ids: vec![ids[0], ids[2]], ..up_to.clone() }).await, Ok(1));
        assert_eq!(queue.cancel_all(up_to).await, Ok(1));
        assert_eq!(events_with_status(queue, "main", Status::Pending).await, [ids[2]]);
    }

    async fn processing_delivery_is_not_canceled(bed) {
        let queue = &bed.queue;
        publish_many(queue, "t", 3).await;
        let claimed = claim_one(queue).await;
        assert_eq!(queue.cancel_all(CancelFilter::default()).await, Ok(2));
        done(queue, &claimed).await;
        assert_eq!(events_with_status(queue, "main", Status::Completed).await, [claimed.event.id]);
    }

    async fn given_event_ids_are_canceled_only_if_they_match(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let ids = publish_many(queue, "t", 4).await;
        let claimed = claim(queue, ClaimRequest::new("w").max(1)).await.remove(0).event.id;
        assert_eq!(claimed, ids[0]);
        let named = |event_ids: &[i64]| CancelFilter { event_ids: event_ids.to_vec(), ..Default::default() };
        assert_eq!(queue.cancel_all(named(&[ids[0], ids[1], 4_711, ids[1]])).await, Ok(3));
        let of_main = CancelFilter { subscription: Some("main".into()), ..named(&ids) };
        assert_eq!(queue.cancel_all(of_main).await, Ok(2));
        let of_other_type = CancelFilter { types: strings(&["u"]), ..named(&ids) };
        assert_eq!(queue.cancel_all(of_other_type).await, Ok(0));
        assert_eq!(events_with_status(queue, "audit", Status::Pending).await, ids[2..]);
    }

    async fn large_cancel_runs_in_batches_and_frees_groups(bed) {
        let queue = &bed.queue;
        let grouped = |n: usize| NewEvent::new(if n.is_multiple_of(3) { "a" } else { "b" }).group(format!("g{}", n % 2));
        let plain = (0..700).map(|n| NewEvent::new("c").tags([(n % 5).to_string()]));
        queue.publish_all((0..1_300).map(grouped).chain(plain).collect()).await.unwrap();
        let of_b = CancelFilter { types: strings(&["b"]), ..Default::default() };
        assert_eq!(queue.cancel_all(of_b).await, Ok(866));
        let of_c = CancelFilter { types: strings(&["c"]), ..Default::default() };
        assert_eq!(queue.cancel_all(of_c).await, Ok(700));
        // The groups continue with their remaining members.
        assert_eq!(claim_all(queue).await.len(), 2);
        assert_eq!(queue.cancel_all(CancelFilter::default()).await, Ok(432));
    }

    async fn invalid_cancel_filters_are_refused(bed) {
        let queue = &bed.queue;
        let refused = async |filter: CancelFilter| queue.cancel_all(filter).await.unwrap_err().to_string();
        let base = CancelFilter::default;
        assert!(refused(CancelFilter { event_ids: vec![1; 1_001], ..base() }).await.starts_with("event_ids: "));
        assert!(refused(CancelFilter { types: strings(&["a*b"]), ..base() }).await.starts_with("types: "));
        assert!(refused(CancelFilter { tags: strings(&[""]), ..base() }).await.starts_with("tags: "));
        let unknown = queue.cancel_all(CancelFilter { subscription: Some("x".into()), ..base() }).await.unwrap_err();
        assert!(matches!(unknown, Error::SubscriptionNotFound { .. }));
    }
}
