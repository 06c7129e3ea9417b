//! What is published for a claim that waits is its own in the same commit. With the real clock, since under another
//! every claim is made for itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sqlx::{Connection, Executor, PgConnection};
use windlass::{Action, ClaimRequest, Delivery, NewEvent, Queue, Report, Status, SubscriptionSpec};

use crate::support::*;

const TRIES: usize = 200;

fn waiting(queue: &Queue, subscription: &str) -> tokio::task::JoinHandle<Vec<Delivery>> {
    let (queue, request) = (queue.clone(), ClaimRequest::new("waiter").subscription(subscription).wait(secs(20)));
    tokio::spawn(async move { queue.claim(request).await.expect("a claim succeeds") })
}

/// It was taken when it was stored, and not a moment later.
fn is_served(delivery: &Delivery) -> bool {
    delivery.picked_at == delivery.event.created_at
}

/// Publishes until what is published meets a request that waits already.
async fn served(queue: &Queue) -> Delivery {
    for _ in 0..TRIES {
        let waiter = waiting(queue, "main");
        tokio::time::sleep(millis(1)).await;
        publish(queue, "t").await;
        let [delivery] = <[Delivery; 1]>::try_from(waiter.await.unwrap()).unwrap();
        if is_served(&delivery) {
            return delivery;
        }
        done(queue, &delivery).await;
    }
    panic!("no waiting claim was ever served");
}

conformance! {
    async fn what_is_served_is_as_if_it_had_been_claimed(bed) {
        let queue = bed.real_time().await;
        let delivery = served(&queue).await;
        let event_id = delivery.event.id;
        let claimed = view(&queue, event_id).await;
        assert_eq!((claimed.status, claimed.attempts, delivery.attempts), (Status::Processing, 1, 1));
        assert_eq!((claimed.worker_id.as_deref(), delivery.worker_id.as_str()), (Some("waiter"), "waiter"));
        assert_eq!(claimed.lease_expires_at, Some(delivery.lease_expires_at));
        assert_eq!(delivery.lease_expires_at, after(delivery.picked_at, secs(60)));
        let stored = queue.get(event_id).await.unwrap();
        assert_eq!(json(&delivery.event), json(&stored.event));
        done(&queue, &delivery).await;
        assert_eq!(trail(&queue, event_id).await, [Action::Picked, Action::Completed]);
        assert!(poll(&queue).await.is_none());
    }

    async fn what_is_served_and_fails_is_tried_again(bed) {
        let queue = bed.real_time().await;
        let delivery = served(&queue).await;
        finish(&queue, &delivery, release()).await;
        let again = take_soon(&queue).await;
        assert_eq!((again.event.id, again.attempts), (delivery.event.id, 2));
        assert!(queue.finish(&delivery, Report::done()).await.unwrap().is_lost());
    }

    async fn a_paused_subscription_is_not_served(bed) {
        let (queue, other) = (bed.real_time().await, bed.real_time().await);
        publish(&queue, "t").await;
        done(&queue, &take_soon(&queue).await).await;
        let waiter = tokio::spawn({
            let queue = queue.clone();
            async move { queue.claim(ClaimRequest::new("w").wait(secs(3))).await.unwrap() }
        });
        tokio::time::sleep(millis(20)).await;
        other.pause_subscription("main").await.unwrap();
        let event = publish(&queue, "t").await;
        assert_eq!(status(&queue, event.id).await, Status::Pending);
        assert!(waiter.await.unwrap().is_empty());
    }

    async fn every_subscription_is_served_by_itself(bed) {
        let queue = bed.real_time().await;
        queue.add_subscription(SubscriptionSpec::new("mail")).await.unwrap();
        for _ in 0..TRIES {
            let waiters = ["main", "mail"].map(|subscription| waiting(&queue, subscription));
            tokio::time::sleep(millis(1)).await;
            let event = publish(&queue, "t").await;
            let mut all_served = true;
            for waiter in waiters {
                let got = waiter.await.unwrap();
                assert_eq!(ids(&got), [event.id]);
                all_served &= is_served(&got[0]);
                done(&queue, &got[0]).await;
            }
            if all_served {
                return;
            }
        }
        panic!("two waiting claims were never served together");
    }

    async fn between_serving_and_claiming_nothing_gets_lost_or_doubled(bed) {
        let queue = bed.real_time().await;
        let (handled, stop) = (Arc::new(Mutex::new(HashMap::<i64, u32>::new())), Arc::new(AtomicBool::new(false)));
        let workers: Vec<_> = (0..4).map(|n| {
            let (queue, handled, stop) = (queue.clone(), handled.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let request = ClaimRequest::new(format!("w{n}")).max(1 + n).wait(millis(2500));
                    for delivery in claim(&queue, request).await {
                        *handled.lock().unwrap().entry(delivery.event.id).or_default() += 1;
                        done(&queue, &delivery).await;
                    }
                }
            })
        }).collect();
        let mut published = Vec::new();
        for n in 0..60 {
            let batch = vec![NewEvent::new("t"); 1 + n % 7];
            published.extend(queue.publish_all(batch).await.unwrap().into_iter().map(|stored| stored.event.id));
            tokio::time::sleep(millis(n as u64 % 3)).await;
        }
        eventually("all are handled", async || handled.lock().unwrap().len() == published.len()).await;
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.await.unwrap();
        }
        assert!(handled.lock().unwrap().values().all(|times| *times == 1));
        assert_eq!(sorted(handled.lock().unwrap().keys().copied().collect()), sorted(published));
    }
}

on_postgres! {
    async fn a_claim_does_not_wait_for_a_publish_that_waits(bed) {
        let queue = bed.real_time().await;
        publish(&queue, "t").await;
        done(&queue, &take_soon(&queue).await).await;
        let mut tx = PgConnection::connect(&bed.database.url).await.unwrap();
        tx.execute("BEGIN; SELECT windlass.publish('t', key => 'k')").await.unwrap();
        let waiter = tokio::spawn({
            let queue = queue.clone();
            async move { queue.claim(ClaimRequest::new("w").wait(millis(2500))).await.unwrap() }
        });
        tokio::time::sleep(millis(50)).await;
        let publishing = tokio::spawn({
            let queue = queue.clone();
            async move { queue.publish_all(vec![NewEvent::new("t"), NewEvent::new("t").key("k")]).await.unwrap() }
        });
        assert!(waiter.await.unwrap().is_empty());
        assert!(!publishing.is_finished());
        tx.execute("COMMIT").await.unwrap();
        assert_eq!(publishing.await.unwrap().iter().filter(|published| published.duplicate).count(), 1);
    }
}
