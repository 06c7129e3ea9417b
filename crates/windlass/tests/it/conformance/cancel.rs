//! Calling off all that match.

use windlass::{CancelFilter, ClaimRequest, Error, NewEvent, Queue, SearchFilter, Status, SubscriptionSpec};

use crate::support::*;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

async fn of_status(queue: &Queue, subscription: &str, status: Status) -> Vec<i64> {
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
    async fn all_that_match_are_called_off_and_nothing_else(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit").types(["order.*"])).await.unwrap();
        let paid = publish_new(queue, NewEvent::new("order.paid").tags(["email"])).await.id;
        let sent = publish_new(queue, NewEvent::new("order.sent").tags(["sms"])).await.id;
        let later = publish_new(queue, NewEvent::new("user").tags(["email"]).run_at(after(bed.now(), MINUTE))).await.id;
        let none = CancelFilter { types: words(&["order"]), ..Default::default() };
        assert_eq!(queue.cancel_all(none).await, Ok(0));
        let both = CancelFilter { types: words(&["order.*"]), tags: words(&["email"]), ..Default::default() };
        assert_eq!(queue.cancel_all(both.clone()).await, Ok(2));
        assert_eq!(queue.cancel_all(both).await, Ok(0));
        assert_eq!(of_status(queue, "main", Status::Cancelled).await, [paid]);
        assert_eq!(of_status(queue, "audit", Status::Cancelled).await, [paid]);
        let of_audit = CancelFilter { subscription: Some("audit".into()), ..Default::default() };
        assert_eq!(queue.cancel_all(of_audit).await, Ok(1));
        assert_eq!(of_status(queue, "main", Status::Pending).await, [sent, later]);
        let email = CancelFilter { tags: words(&["email"]), ..Default::default() };
        assert_eq!(queue.cancel_all(email).await, Ok(1));
        assert_eq!(trail(queue, later).await, [windlass::Action::Cancelled]);
        let other = bed.namespace(windlass::Policy::default()).await;
        let elsewhere = publish(&other, "t").await.id;
        assert_eq!(queue.cancel_all(CancelFilter::default()).await, Ok(1));
        assert_eq!(status(&other, elsewhere).await, Status::Pending);
        assert!(poll(queue).await.is_none());
    }

    async fn what_was_published_later_is_left_alone(bed) {
        let queue = &bed.queue;
        let ids = publish_many(queue, "t", 3).await;
        let up_to = CancelFilter { up_to: Some(ids[1]), ..Default::default() };
        assert_eq!(queue.cancel_all(CancelFilter { event_ids: vec![ids[0], ids[2]], ..up_to.clone() }).await, Ok(1));
        assert_eq!(queue.cancel_all(up_to).await, Ok(1));
        assert_eq!(of_status(queue, "main", Status::Pending).await, [ids[2]]);
    }

    async fn what_is_held_goes_on(bed) {
        let queue = &bed.queue;
        publish_many(queue, "t", 3).await;
        let held = take(queue).await;
        assert_eq!(queue.cancel_all(CancelFilter::default()).await, Ok(2));
        done(queue, &held).await;
        assert_eq!(of_status(queue, "main", Status::Completed).await, [held.event.id]);
    }

    async fn named_events_are_called_off_where_they_match(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let ids = publish_many(queue, "t", 4).await;
        let held = claim(queue, ClaimRequest::new("w").max(1)).await.remove(0).event.id;
        assert_eq!(held, ids[0]);
        let named = |event_ids: &[i64]| CancelFilter { event_ids: event_ids.to_vec(), ..Default::default() };
        assert_eq!(queue.cancel_all(named(&[ids[0], ids[1], 4_711, ids[1]])).await, Ok(3));
        let of_main = CancelFilter { subscription: Some("main".into()), ..named(&ids) };
        assert_eq!(queue.cancel_all(of_main).await, Ok(2));
        let of_other_type = CancelFilter { types: words(&["u"]), ..named(&ids) };
        assert_eq!(queue.cancel_all(of_other_type).await, Ok(0));
        assert_eq!(of_status(queue, "audit", Status::Pending).await, ids[2..]);
    }

    async fn many_go_in_batches_and_groups_to_their_end(bed) {
        let queue = &bed.queue;
        let grouped = |n: usize| NewEvent::new(if n.is_multiple_of(3) { "a" } else { "b" }).group(format!("g{}", n % 2));
        let plain = (0..700).map(|n| NewEvent::new("c").tags([(n % 5).to_string()]));
        queue.publish_all((0..1_300).map(grouped).chain(plain).collect()).await.unwrap();
        let of_b = CancelFilter { types: words(&["b"]), ..Default::default() };
        assert_eq!(queue.cancel_all(of_b).await, Ok(866));
        let of_c = CancelFilter { types: words(&["c"]), ..Default::default() };
        assert_eq!(queue.cancel_all(of_c).await, Ok(700));
        // The groups go on with what is left of them.
        assert_eq!(take_all(queue).await.len(), 2);
        assert_eq!(queue.cancel_all(CancelFilter::default()).await, Ok(432));
    }

    async fn what_nobody_may_ask_for_is_refused(bed) {
        let queue = &bed.queue;
        let refused = async |filter: CancelFilter| queue.cancel_all(filter).await.unwrap_err().to_string();
        let base = CancelFilter::default;
        assert!(refused(CancelFilter { event_ids: vec![1; 1_001], ..base() }).await.starts_with("event_ids: "));
        assert!(refused(CancelFilter { types: words(&["a*b"]), ..base() }).await.starts_with("types: "));
        assert!(refused(CancelFilter { tags: words(&[""]), ..base() }).await.starts_with("tags: "));
        let unknown = queue.cancel_all(CancelFilter { subscription: Some("x".into()), ..base() }).await.unwrap_err();
        assert!(matches!(unknown, Error::SubscriptionNotFound { .. }));
    }
}
