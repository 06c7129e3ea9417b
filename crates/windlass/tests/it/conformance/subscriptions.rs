//! Subscriptions: each gets its own delivery of every event that matches its filter.

use sqlx::{Connection, Executor};
use windlass::{
    ClaimRequest, Delivery, Error, ListFilter, NewEvent, PolicyOverrides, Queue, Report, Status, SubscriptionSpec,
};

use crate::support::*;
use windlass_testkit::Kind;
use windlass_testkit::postgres as server;

async fn add(queue: &Queue, spec: SubscriptionSpec) {
    queue.add_subscription(spec).await.expect("a subscription can be added");
}

/// Claims everything that is ready for a subscription.
async fn claim_for(queue: &Queue, subscription: &str) -> Vec<Delivery> {
    claim(queue, ClaimRequest::new("w").subscription(subscription).max(1_000)).await
}

fn not_found(subscription: &str) -> Error {
    Error::SubscriptionNotFound { namespace: "default".into(), subscription: subscription.into() }
}

conformance! {
    async fn each_subscription_gets_its_own_delivery(bed) {
        let queue = &bed.queue;
        add(queue, SubscriptionSpec::new("audit")).await;
        let event = publish(queue, "t").await;
        let (main, audit) = (claim_all(queue).await, claim_for(queue, "audit").await);
        assert_eq!((ids(&main), ids(&audit)), (vec![event.id], vec![event.id]));
        assert_eq!(audit[0].subscription, "audit");
        done(queue, &main[0]).await;
        fail(queue, &audit[0]).await;

        let view = queue.get(event.id).await.unwrap();
        let seen: Vec<_> = view.deliveries.iter().map(|d| (d.subscription.as_str(), d.status, d.retry_count)).collect();
        assert_eq!(seen, [("audit", Status::Pending, 1), ("main", Status::Completed, 0)]);
        let log = queue.log(event.id).await.unwrap();
        assert_eq!(log.iter().filter(|entry| entry.subscription == "audit").count(), 2);
        assert_eq!(log.iter().filter(|entry| entry.subscription == "main").count(), 2);
    }

    // A lease in one subscription gives no right to the delivery in another.
    async fn lease_is_valid_for_its_subscription_only(bed) {
        let queue = &bed.queue;
        add(queue, SubscriptionSpec::new("audit")).await;
        let event = publish(queue, "t").await;
        let main = claim_one(queue).await;
        let wrong = windlass::LeasedEvent::by_lease(event.id, main.lease).of_subscription("audit");
        assert!(queue.finish(wrong, Report::done()).await.unwrap().is_lost());
        let wrong = windlass::LeasedEvent::by_worker(event.id, "w").of_subscription("audit");
        assert!(queue.finish(wrong, Report::done()).await.unwrap().is_lost());
        assert_eq!(view_of(queue, event.id, "audit").await.status, Status::Pending);
        done(queue, &main).await;
        // A report for one subscription does not count as a report for the other.
        let wrong = windlass::LeasedEvent::by_worker(event.id, "w").of_subscription("audit");
        assert!(queue.finish(wrong, Report::done()).await.unwrap().is_lost());
        claim_for(queue, "audit").await;
        let lease = windlass::LeasedEvent::by_worker(event.id, "w").of_subscription("audit");
        let attempt = queue.finish(lease, Report::done()).await.unwrap();
        assert_eq!(attempt.attempt().unwrap().subscription, "audit");
    }

    async fn subscription_filters_by_types_and_tags(bed) {
        let queue = &bed.queue;
        add(queue, SubscriptionSpec::new("paid").types(["order.paid"])).await;
        add(queue, SubscriptionSpec::new("orders").types(["order.*", "refund"])).await;
        add(queue, SubscriptionSpec::new("urgent").tags(["high", "alarm"])).await;
        add(queue, SubscriptionSpec::new("both").types(["order.*"]).tags(["high"])).await;
        let plain = publish(queue, "order.paid").await.id;
        let sent = publish_new(queue, NewEvent::new("order.sent").tags(["low", "high"])).await.id;
        let refund = publish_new(queue, NewEvent::new("refund").tags(["alarm"])).await.id;
        let other = publish_new(queue, NewEvent::new("orders").tags(["highest"])).await.id;
        assert_eq!(sorted(ids(&claim_for(queue, "paid").await)), [plain]);
        assert_eq!(sorted(ids(&claim_for(queue, "orders").await)), [plain, sent, refund]);
        assert_eq!(sorted(ids(&claim_for(queue, "urgent").await)), [sent, refund]);
        assert_eq!(sorted(ids(&claim_for(queue, "both").await)), [sent]);
        assert_eq!(sorted(ids(&claim_all(queue).await)), [plain, sent, refund, other]);
        let subscriptions: Vec<_> =
            queue.get(plain).await.unwrap().deliveries.into_iter().map(|d| d.subscription).collect();
        assert_eq!(subscriptions, ["main", "orders", "paid"]);
    }

    async fn subscription_shows_all_its_fields(bed) {
        let policy = PolicyOverrides { lease_ms: Some(7_000), max_retries: Some(None), ..Default::default() };
        let spec = SubscriptionSpec::new("audit").types(["a", "b.*"]).tags(["x"]).policy(policy.clone());
        let added = bed.queue.add_subscription(spec).await.unwrap();
        assert_eq!((added.types.join(" "), added.tags.join(" ")), ("a b.*".into(), "x".into()));
        assert_eq!((&added.policy, added.paused), (&policy, false));
        assert_eq!((added.starts_at, added.created_at, added.backfill_from), (bed.now(), bed.now(), None));
        let other = bed.second_queue().await;
        let all = other.subscriptions().await.unwrap();
        assert_eq!(all.iter().map(|s| s.subscription.as_str()).collect::<Vec<_>>(), ["audit", "main"]);
        assert_eq!(all[0], added);
    }

    async fn subscription_can_have_its_own_policy(bed) {
        let policy = PolicyOverrides { lease_ms: Some(7_000), max_retries: Some(Some(1)), ..Default::default() };
        add(&bed.queue, SubscriptionSpec::new("quick").policy(policy)).await;
        publish(&bed.queue, "t").await;
        let quick = claim_for(&bed.queue, "quick").await;
        assert_eq!((quick[0].lease_expires_at, quick[0].max_retries), (after(bed.now(), secs(7)), Some(1)));
        let main = claim_one(&bed.queue).await;
        assert_eq!((main.lease_expires_at, main.max_retries), (after(bed.now(), LEASE), Some(3)));
    }

    async fn subscription_name_is_unique(bed) {
        add(&bed.queue, SubscriptionSpec::new("audit").types(["a"])).await;
        let other = bed.second_queue().await;
        for (queue, name) in [(&bed.queue, "audit"), (&other, "audit"), (&bed.queue, "main")] {
            let error = queue.add_subscription(SubscriptionSpec::new(name)).await.unwrap_err();
            assert_eq!(error, Error::Exists { what: "subscription", name: name.into() });
        }
        assert_eq!(bed.queue.subscriptions().await.unwrap()[0].types, ["a"]);
    }

    async fn new_subscription_gets_only_later_events(bed) {
        publish(&bed.queue, "t").await;
        add(&bed.queue, SubscriptionSpec::new("late")).await;
        let after = publish(&bed.queue, "t").await;
        assert_eq!(ids(&claim_for(&bed.queue, "late").await), [after.id]);
    }

    async fn subscription_since_the_past_gets_each_event_once(bed) {
        let queue = &bed.queue;
        publish(queue, "t").await;
        bed.advance(secs(10));
        let since = bed.now();
        let mut wanted = vec![publish(queue, "t").await.id];
        publish(queue, "u").await;
        bed.advance(secs(10));
        wanted.push(publish_new(queue, NewEvent::new("t").tags(["x"]).priority(2)).await.id);
        // Completed events are backfilled too: they are in the history.
        for delivery in claim_all(queue).await {
            done(queue, &delivery).await;
        }
        add(queue, SubscriptionSpec::new("late").types(["t"]).since(since)).await;
        wanted.push(publish(queue, "t").await.id);
        assert_eq!(queue.backfill_once().await, Ok(0));
        let got = claim_for(queue, "late").await;
        assert_eq!(sorted(ids(&got)), wanted);
        assert!(got.iter().all(|delivery| delivery.attempts == 1 && delivery.max_retries == Some(3)));
        for delivery in &got {
            done(queue, delivery).await;
        }
        assert_eq!(queue.backfill_once().await, Ok(0));
        assert!(claim_for(queue, "late").await.is_empty());
        assert_eq!(queue.subscriptions().await.unwrap()[0].backfill_from, None);
    }

    // As after a crash between two pages of the backfill.
    async fn repeated_backfill_changes_nothing(bed) {
        let queue = &bed.queue;
        let since = bed.now();
        let published = publish_many(queue, "t", 5).await;
        add(queue, SubscriptionSpec::new("late").since(since)).await;
        let got = claim(queue, ClaimRequest::new("w").subscription("late").max(4)).await;
        done(queue, &got[0]).await;
        finish(queue, &got[1], Report::dead("x")).await;
        fail(queue, &got[2]).await;
        let mut before = Vec::new();
        for event in &published {
            before.push(event_snapshot(queue, *event).await);
        }
        let table = if bed.database.kind == Kind::Sqlite { "subscriptions" } else { "windlass.subscriptions" };
        bed.database.execute(&format!("UPDATE {table} SET backfill_from = 0 WHERE subscription = 'late'")).await;
        queue.backfill_once().await.unwrap();
        for (event, before) in published.iter().zip(before) {
            assert_eq!(event_snapshot(queue, *event).await, before);
        }
        assert_eq!(queue.subscriptions().await.unwrap()[0].backfill_from, None);
        assert_eq!(ids(&claim_for(queue, "late").await), [published[4]]);
    }

    async fn large_backfill_is_complete(bed) {
        let since = bed.now();
        let events = (0..1_300).map(|n| NewEvent::new(format!("t{}", n % 2))).collect();
        let published = bed.queue.publish_all(events).await.unwrap();
        add(&bed.queue, SubscriptionSpec::new("late").types(["t1"]).since(since)).await;
        let expected: Vec<i64> =
            published.iter().map(|p| &p.event).filter(|e| e.event_type == "t1").map(|e| e.id).collect();
        assert_eq!(sorted(ids(&claim_for(&bed.queue, "late").await)), expected);
    }

    async fn backfilled_group_keeps_its_order(bed) {
        let since = bed.now();
        let mut members = Vec::new();
        for _ in 0..3 {
            members.push(publish_new(&bed.queue, NewEvent::new("t").group("g")).await.id);
        }
        add(&bed.queue, SubscriptionSpec::new("late").since(since)).await;
        members.push(publish_new(&bed.queue, NewEvent::new("t").group("g")).await.id);
        for member in members {
            let got = claim_for(&bed.queue, "late").await;
            assert_eq!(ids(&got), [member]);
            done(&bed.queue, &got[0]).await;
        }
    }

    // O7
    async fn subscription_added_by_another_process_is_served(bed) {
        let other = bed.second_queue().await;
        publish(&bed.queue, "t").await;
        add(&other, SubscriptionSpec::new("new")).await;
        let event = publish(&bed.queue, "t").await;
        assert_eq!(ids(&claim_for(&other, "new").await), [event.id]);
        publish(&other, "t").await;
        assert_eq!(claim_for(&bed.queue, "new").await.len(), 1);
    }

    async fn subscription_added_by_another_process_is_known(bed) {
        let other = bed.second_queue().await;
        let event = publish(&other, "t").await;
        add(&bed.queue, SubscriptionSpec::new("new").since(bed.now())).await;
        let filter = ListFilter { subscription: Some("new".into()), ..Default::default() };
        assert_eq!(other.list(filter).await.map(|page| page.total), Ok(1));
        let filter = windlass::DeadLetterFilter { subscription: Some("new".into()), ..Default::default() };
        assert_eq!(other.dead_letters(filter.clone()).await.map(|page| page.total), Ok(0));
        assert_eq!(other.redrive(filter).await, Ok(0));
        assert_eq!(ids(&claim_for(&other, "new").await), [event.id]);
        other.reset(event.id, "new", "by hand").await.unwrap();
        other.pause_subscription("new").await.unwrap();
    }

    async fn removing_a_subscription_deletes_its_deliveries(bed) {
        let queue = &bed.queue;
        let other = bed.second_queue().await;
        add(queue, SubscriptionSpec::new("old")).await;
        let event = publish_new(queue, NewEvent::new("t").group("g")).await;
        publish_new(queue, NewEvent::new("t").group("g")).await;
        let failed = publish(queue, "u").await;
        let got = claim_for(queue, "old").await;
        finish(queue, &got[1], Report::dead("x")).await;
        assert_eq!(dead_letter_ids(queue).await, [failed.id]);
        assert_eq!(claim_for(&other, "old").await.len(), 0);

        queue.remove_subscription("old").await.unwrap();
        assert!(queue.finish(&got[0], Report::done()).await.unwrap().is_lost());
        assert_eq!(queue.claim(ClaimRequest::new("w").subscription("old")).await.unwrap_err(), not_found("old"));
        assert_eq!(queue.remove_subscription("old").await, Err(not_found("old")));
        assert_eq!(dead_letter_ids(queue).await, Vec::<i64>::new());
        // New events get no delivery for it, and `main` is unchanged.
        let later = publish(&other, "t").await;
        assert_eq!(queue.get(later.id).await.unwrap().deliveries.len(), 1);
        assert_eq!(status(queue, event.id).await, Status::Pending);
        assert_eq!(queue.stats(bed.now()).await.unwrap().iter().filter(|row| row.subscription == "old").count(), 0);
        let error =
            queue.list(ListFilter { subscription: Some("old".into()), ..Default::default() }).await.unwrap_err();
        assert_eq!(error, not_found("old"));
    }

    async fn removed_subscription_can_be_added_again(bed) {
        add(&bed.queue, SubscriptionSpec::new("again").types(["t"])).await;
        publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        bed.queue.remove_subscription("again").await.unwrap();
        add(&bed.queue, SubscriptionSpec::new("again")).await;
        let event = publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        assert_eq!(ids(&claim_for(&bed.queue, "again").await), [event.id]);
    }

    async fn main_cannot_be_removed(bed) {
        let error = bed.queue.remove_subscription("main").await.unwrap_err();
        assert_eq!(error.code(), "invalid");
        publish(&bed.queue, "t").await;
        claim_one(&bed.queue).await;
    }

    async fn backfill_during_publishes_delivers_each_event_once(bed) {
        let queue = bed.real_time_queue().await;
        let other = bed.real_time_queue().await;
        let since = chrono::Utc::now() - chrono::TimeDelta::hours(1);
        let publisher = tokio::spawn(async move {
            let mut published = Vec::new();
            for _ in 0..60 {
                published.extend(publish_many(&other, "t", 20).await);
            }
            published
        });
        eventually("the publisher is under way", async || count_events(&queue).await > 100).await;
        add(&queue, SubscriptionSpec::new("late").since(since)).await;
        let published = publisher.await.unwrap();
        assert_eq!(queue.backfill_once().await, Ok(0));
        let mut got = Vec::new();
        while got.len() < published.len() {
            let batch = claim_for(&queue, "late").await;
            assert!(!batch.is_empty(), "{} of {} were claimed", got.len(), published.len());
            got.extend(ids(&batch));
        }
        assert_eq!(sorted(got), published);
        assert!(claim_for(&queue, "late").await.is_empty());
    }
}

on_postgres! {
    // Both processes read the same position; the second one must not start over from there.
    async fn two_processes_backfill_each_event_once(bed) {
        let (queue, other, start) = (&bed.queue, bed.second_queue().await, bed.now());
        publish_many(queue, "t", 3).await;
        add(queue, SubscriptionSpec::new("past").since(start)).await;
        let mut connection = server::connect(&bed.database.url).await;
        let again = "UPDATE windlass.subscriptions SET backfill_from = 0 WHERE subscription = 'past'";
        connection.execute(again).await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.subscriptions FOR UPDATE").await.unwrap();
        let releasing = async {
            server::wait_for_blocked_connections(&bed.database.url, 2).await;
            tx.commit().await.unwrap();
        };
        let (one, two, ()) = tokio::join!(queue.backfill_once(), other.backfill_once(), releasing);
        assert_eq!(sorted(vec![one.unwrap(), two.unwrap()]), [0, 3]);
        assert_eq!(claim_for(queue, "past").await.len(), 3);
    }
}
