//! Waiting claims: every way in which a delivery becomes ready wakes them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection};
use windlass::{Backoff, ClaimRequest, Delivery, NewEvent, Policy, Queue, Report, SubscriptionSpec};

use crate::support::*;

/// Starts a waiting claim in a task.
fn spawn_claim(queue: &Queue, request: ClaimRequest) -> tokio::task::JoinHandle<Vec<Delivery>> {
    let queue = queue.clone();
    tokio::spawn(async move { queue.claim(request.wait(secs(20))).await.expect("a claim succeeds") })
}

fn spawn_waiter(queue: &Queue) -> tokio::task::JoinHandle<Vec<Delivery>> {
    spawn_claim(queue, ClaimRequest::new("waiter"))
}

/// The event ids that a waiting claim returned.
async fn claimed_ids(waiter: tokio::task::JoinHandle<Vec<Delivery>>) -> Vec<i64> {
    ids(&waiter.await.unwrap())
}

conformance! {
    async fn waiting_claims_get_each_event_once(bed) {
        let queue = bed.real_time_queue().await;
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

    // C6
    async fn expired_lease_is_found_with_any_idle_poll(bed) {
        for idle_poll in [millis(50), secs(3600)] {
            let queue = Queue::options(&bed.database.url).idle_poll(idle_poll).open().await.unwrap();
            publish(&queue, "t").await;
            // The worker that claims it neither finishes it nor renews its lease.
            assert_eq!(claim(&queue, ClaimRequest::new("dies").lease(millis(300))).await.len(), 1);
            let found = claim(&queue, ClaimRequest::new("waits").wait(secs(2))).await;
            assert!(!found.is_empty(), "{idle_poll:?}");
            for delivery in found {
                done(&queue, &delivery).await;
            }
            queue.close().await;
        }
    }

    // C6
    async fn idle_poll_outside_its_limits_is_refused(bed) {
        let open = async |idle_poll| Queue::options(&bed.database.url).idle_poll(idle_poll).open().await.map(drop);
        for (idle_poll, shown) in [(millis(9), "9ms"), (secs(3601), "3601s"), (Duration::ZERO, "0ns")] {
            let error = open(idle_poll).await.unwrap_err();
            assert_eq!(error.to_string(), format!("idle_poll: is {shown}; it must be from 10 ms to 1 hour"));
        }
        assert_eq!((open(millis(10)).await, open(secs(3600)).await), (Ok(()), Ok(())));
    }

    async fn wait_times_out_with_no_deliveries(bed) {
        let claimed = bed.queue.claim(ClaimRequest::new("w").wait(millis(50))).await.unwrap();
        assert!(claimed.is_empty());
    }

    async fn publish_wakes_a_waiting_claim(bed) {
        for _ in 0..5 {
            let waiter = spawn_waiter(&bed.queue);
            tokio::task::yield_now().await;
            let event = publish(&bed.queue, "t").await;
            assert_eq!(claimed_ids(waiter).await, [event.id]);
        }
    }

    async fn publish_to_a_new_lane_wakes_a_waiting_claim(bed) {
        for n in 0..3 {
            let waiter = spawn_waiter(&bed.queue);
            tokio::task::yield_now().await;
            let event = publish_new(&bed.queue, NewEvent::new(format!("t{n}")).tags(["x"])).await;
            assert_eq!(claimed_ids(waiter).await, [event.id]);
        }
    }

    async fn publish_by_another_process_wakes_a_waiting_claim(bed) {
        let other = bed.second_queue().await;
        for event_type in ["t", "t", "new"] {
            let waiter = spawn_waiter(&bed.queue);
            tokio::task::yield_now().await;
            let event = publish(&other, event_type).await;
            assert_eq!(claimed_ids(waiter).await, [event.id]);
        }
    }

    async fn finishing_a_group_head_wakes_a_waiting_claim(bed) {
        let other = bed.second_queue().await;
        let member = || NewEvent::new("t").group("g");
        for queue in [&bed.queue, &other] {
            publish_new(queue, member()).await;
            let first = claim_one_soon(queue).await;
            let second = publish_new(queue, member()).await;
            let waiter = spawn_waiter(&bed.queue);
            tokio::task::yield_now().await;
            done(queue, &first).await;
            let got = waiter.await.unwrap();
            assert_eq!(ids(&got), [second.id]);
            done(queue, &got[0]).await;
        }
    }

    async fn returned_delivery_wakes_a_waiting_claim(bed) {
        let queue = bed.namespace(Policy { backoff: Backoff::None, max_retries: None, ..Policy::default() }).await;
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        let event = publish(&queue, "t").await;
        for report in [release(), Report::failed("x"), snooze(Duration::ZERO)] {
            for worker in [&queue, &other] {
                let delivery = claim_one_soon(worker).await;
                let waiter = spawn_waiter(&queue);
                tokio::task::yield_now().await;
                finish(worker, &delivery, report.clone()).await;
                let got = waiter.await.unwrap();
                assert_eq!(ids(&got), [event.id]);
                finish(&queue, &got[0], release()).await;
            }
        }
    }

    async fn reset_redrive_and_resume_wake_a_waiting_claim(bed) {
        let queue = &bed.queue;
        let event = publish(queue, "t").await.id;
        claim_one(queue).await;
        let reset = spawn_waiter(queue);
        queue.reset(event, "main", "x").await.unwrap();
        let delivery = reset.await.unwrap().remove(0);
        finish(queue, &delivery, Report::dead("x")).await;

        let redriven = spawn_waiter(queue);
        assert_eq!(queue.redrive(Default::default()).await, Ok(1));
        let delivery = redriven.await.unwrap().remove(0);

        queue.pause().await.unwrap();
        finish(queue, &delivery, release()).await;
        let resumed = spawn_waiter(queue);
        tokio::task::yield_now().await;
        queue.resume().await.unwrap();
        assert_eq!(claimed_ids(resumed).await, [event]);
    }

    async fn backfill_wakes_a_waiting_claim(bed) {
        let event = publish(&bed.queue, "t").await.id;
        let since = bed.now();
        bed.queue.add_subscription(SubscriptionSpec::new("empty")).await.unwrap();
        let waiter = spawn_claim(&bed.queue, ClaimRequest::new("w").subscription("empty"));
        bed.queue.remove_subscription("empty").await.unwrap();
        bed.queue.add_subscription(SubscriptionSpec::new("empty").since(since)).await.unwrap();
        assert_eq!(claimed_ids(waiter).await, [event]);
    }

    async fn delayed_event_reaches_a_waiting_claim(bed) {
        let queue = bed.real_time_queue().await;
        let event = publish_new(&queue, NewEvent::new("t").delay(millis(300))).await;
        assert!(poll(&queue).await.is_none());
        assert_eq!(claim_one_soon(&queue).await.event.id, event.id);
    }

    // Q14
    async fn expired_lease_reaches_a_waiting_claim(bed) {
        let (queue, other) = (bed.real_time_queue().await, bed.real_time_queue().await);
        let event = publish(&queue, "t").await;
        claim(&queue, ClaimRequest::new("dies").lease(millis(300))).await.remove(0);
        let again = claim_one_soon(&other).await;
        assert_eq!((again.event.id, again.attempts), (event.id, 2));
    }

    async fn each_waiting_claim_gets_its_own_delivery(bed) {
        let other = bed.second_queue().await;
        let waiters: Vec<_> = (0..12).map(|n| spawn_waiter(if n % 2 == 0 { &bed.queue } else { &other })).collect();
        tokio::task::yield_now().await;
        let events = publish_many(&bed.queue, "t", 12).await;
        let mut all = Vec::new();
        for waiter in waiters {
            let got = claimed_ids(waiter).await;
            assert_eq!(got.len(), 1);
            all.extend(got);
        }
        assert_eq!(sorted(all), events);
    }

    async fn waiting_claim_returns_with_the_first_delivery(bed) {
        let waiter = spawn_claim(&bed.queue, ClaimRequest::new("w").max(10));
        tokio::task::yield_now().await;
        let event = publish(&bed.queue, "t").await;
        assert_eq!(claimed_ids(waiter).await, [event.id]);
    }

    async fn waiting_claim_gets_only_what_matches_its_filter(bed) {
        let waiter = spawn_claim(&bed.queue, ClaimRequest::new("w").types(["wanted"]).tags(["x"]));
        tokio::task::yield_now().await;
        publish(&bed.queue, "other").await;
        publish(&bed.queue, "wanted").await;
        let event = publish_new(&bed.queue, NewEvent::new("wanted").tags(["x"])).await;
        assert_eq!(claimed_ids(waiter).await, [event.id]);
    }

    async fn dropped_waiting_claim_takes_no_delivery(bed) {
        let waiter = spawn_waiter(&bed.queue);
        tokio::task::yield_now().await;
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        let event = publish(&bed.queue, "t").await;
        assert_eq!(claim_one_soon(&bed.queue).await.event.id, event.id);
    }

    async fn longest_waiting_of_thousands_of_claims_is_served_first(bed) {
        let real_time = bed.real_time_queue().await;
        for queue in [&bed.queue, &real_time] {
            assert!(poll(queue).await.is_none());
            let mut waiters = Vec::new();
            for n in 0..2_000 {
                let request = ClaimRequest::new(n.to_string()).wait(secs(30));
                let mut waiter = Box::pin(queue.claim(request));
                // The request is sent on the first poll, so the requests are in this order.
                assert!(!poll_once(waiter.as_mut()).await);
                waiters.push(waiter);
            }
            let mut waiters = waiters.into_iter();
            for _ in 0..3 {
                let event = publish(queue, "t").await;
                let got = waiters.next().unwrap().await.unwrap();
                assert_eq!(ids(&got), [event.id]);
                done(queue, &got[0]).await;
            }
            // The skipped waiters are dropped and must be passed over.
            let mut waiters = waiters.skip(1_000);
            let last = publish(queue, "t").await;
            let got = waiters.next().unwrap().await.unwrap();
            assert_eq!((ids(&got), got[0].worker_id.as_str()), (vec![last.id], "1003"));
            done(queue, &got[0]).await;
            for mut waiter in waiters {
                assert!(!poll_once(waiter.as_mut()).await, "no other waiter gets it");
            }
        }
    }

    async fn thousands_of_waits_each_end_on_time(bed) {
        let queue = bed.real_time_queue().await;
        let start = std::time::Instant::now();
        let waits = (0..2_000).map(|n| if n % 2 == 0 { millis(n % 300) } else { millis(2_000 + n % 300) });
        let claims: Vec<_> = waits
            .map(|wait| {
                let queue = queue.clone();
                let claim = async move { (queue.claim(ClaimRequest::new("w").wait(wait)).await, wait) };
                tokio::spawn(claim)
            })
            .collect();
        for claim in claims {
            let (got, wait) = claim.await.unwrap();
            assert!(got.unwrap().is_empty());
            assert!(start.elapsed() >= wait);
        }
    }

    async fn waiting_claims_with_different_filters_get_their_own(bed) {
        let queue = bed.real_time_queue().await;
        let tag = |n: usize| format!("tag-{n}");
        // One lane exists before, the others are new.
        publish_new(&queue, NewEvent::new("t").tags([tag(0), tag(7)])).await;
        done(&queue, &claim_one(&queue).await).await;
        let waiters: Vec<_> =
            (0..300).map(|n| spawn_claim(&queue, ClaimRequest::new(tag(n)).tags([tag(n)]))).collect();
        tokio::task::yield_now().await;
        let other = bed.real_time_queue().await;
        let mut events = Vec::new();
        for n in 0..waiters.len() {
            let publisher = if n % 2 == 0 { &queue } else { &other };
            events.push(publish_new(publisher, NewEvent::new("t").tags([tag(n)])).await.id);
        }
        for (waiter, event) in waiters.into_iter().zip(events) {
            assert_eq!(claimed_ids(waiter).await, [event]);
        }
    }

    async fn change_without_notification_reaches_a_waiting_claim(bed) {
        let queue = bed.real_time_queue().await;
        let delayed = || NewEvent::new("t").delay(MINUTE);
        let events = [publish_new(&queue, delayed()).await.id, publish_new(&queue, delayed()).await.id];
        let first = spawn_waiter(&queue);
        tokio::task::yield_now().await;
        let second = spawn_waiter(&queue);
        let schema = if bed.database.kind == windlass_testkit::Kind::Postgres { "windlass." } else { "" };
        bed.database.execute(&format!("UPDATE {schema}event_queue SET ready_at = created_at")).await;
        assert_eq!(sorted([claimed_ids(first).await, claimed_ids(second).await].concat()), events);
    }

    async fn closing_the_queue_ends_a_waiting_claim(bed) {
        let queue = bed.real_time_queue().await;
        assert!(poll(&queue).await.is_none());
        let claim = queue.claim(ClaimRequest::new("w").wait(secs(60)));
        let mut claim = Box::pin(claim);
        // A request that was sent just before the close may get the error `Closed` instead.
        assert!(tokio::time::timeout(secs(1), claim.as_mut()).await.is_err());
        queue.close().await;
        assert!(claim.await.unwrap().is_empty());
        assert_eq!(queue.publish(NewEvent::new("t")).await.unwrap_err(), windlass::Error::Closed);
    }

    async fn stop_waiting_ends_waiting_claims(bed) {
        let queue = bed.real_time_queue().await;
        let claim = queue.claim(ClaimRequest::new("w").wait(secs(60)));
        let mut claim = Box::pin(claim);
        assert!(!poll_once(claim.as_mut()).await);
        queue.stop_waiting();
        assert!(claim.await.unwrap().is_empty());
        assert!(queue.claim(ClaimRequest::new("w").wait(secs(60))).await.unwrap().is_empty());
        let event = publish(&queue, "t").await;
        assert_eq!(poll(&queue).await.unwrap().event.id, event.id);
    }

    // A claim may be dropped at any moment: its deliveries are withheld no longer than the lease.
    async fn deliveries_of_a_dropped_claim_are_redelivered(bed) {
        for polls in 0..40 {
            let event = publish(&bed.queue, "t").await;
            {
                let mut dropped_claim = std::pin::pin!(bed.queue.claim(ClaimRequest::new("leaves")));
                let mut ready = false;
                for _ in 0..polls {
                    ready = ready || poll_once(dropped_claim.as_mut()).await;
                    tokio::task::yield_now().await;
                }
            }
            // If the claim was answered and then dropped unread, the delivery returns when its lease expires.
            let request = || ClaimRequest::new("w").wait(millis(1_500));
            let mut got = claim(&bed.queue, request()).await;
            if got.is_empty() {
                bed.advance(LEASE);
                got = claim(&bed.queue, request()).await;
            }
            assert_eq!(ids(&got), [event.id], "after {polls} polls");
            done(&bed.queue, &got[0]).await;
        }
    }
}

/// Polls a future once; `true` if it is ready, after which it must not be polled again.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

on_postgres! {
    async fn claim_does_not_wait_for_a_blocked_publish(bed) {
        let queue = bed.real_time_queue().await;
        publish(&queue, "t").await;
        done(&queue, &claim_one_soon(&queue).await).await;
        let mut tx = PgConnection::connect(&bed.database.url).await.unwrap();
        let claim_key = "BEGIN; INSERT INTO windlass.event_keys (namespace, key, event_id, created_at, expires_at)
            SELECT namespace, 'k', id, created_at, now() + interval '1 hour' FROM windlass.events";
        tx.execute(claim_key).await.unwrap();
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
