//! A claim that waits gets what comes, whoever brings it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection};
use windlass::{Backoff, ClaimRequest, Delivery, NewEvent, Policy, Queue, Report, SubscriptionSpec};

use crate::support::*;

/// Claims in the background; what it waits for comes while it waits.
fn waiting(queue: &Queue, request: ClaimRequest) -> tokio::task::JoinHandle<Vec<Delivery>> {
    let queue = queue.clone();
    tokio::spawn(async move { queue.claim(request.wait(secs(20))).await.expect("a claim succeeds") })
}

fn waiter(queue: &Queue) -> tokio::task::JoinHandle<Vec<Delivery>> {
    waiting(queue, ClaimRequest::new("waiter"))
}

async fn got(waiter: tokio::task::JoinHandle<Vec<Delivery>>) -> Vec<i64> {
    ids(&waiter.await.unwrap())
}

conformance! {
    async fn waiting_claims_get_each_event_once(bed) {
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

    // C6
    async fn an_expired_lease_is_found_whatever_the_idle_poll(bed) {
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

    async fn a_wait_ends_with_nothing_if_nothing_comes(bed) {
        let claimed = bed.queue.claim(ClaimRequest::new("w").wait(millis(50))).await.unwrap();
        assert!(claimed.is_empty());
    }

    async fn a_publish_wakes_a_waiting_claim(bed) {
        for _ in 0..5 {
            let waiter = waiter(&bed.queue);
            tokio::task::yield_now().await;
            let event = publish(&bed.queue, "t").await;
            assert_eq!(got(waiter).await, [event.id]);
        }
    }

    async fn a_publish_of_a_new_kind_wakes_a_waiting_claim(bed) {
        for n in 0..3 {
            let waiter = waiter(&bed.queue);
            tokio::task::yield_now().await;
            let event = publish_new(&bed.queue, NewEvent::new(format!("t{n}")).tags(["x"])).await;
            assert_eq!(got(waiter).await, [event.id]);
        }
    }

    async fn a_publish_of_another_process_wakes_a_waiting_claim(bed) {
        let other = bed.other().await;
        for event_type in ["t", "t", "new"] {
            let waiter = waiter(&bed.queue);
            tokio::task::yield_now().await;
            let event = publish(&other, event_type).await;
            assert_eq!(got(waiter).await, [event.id]);
        }
    }

    async fn the_end_of_a_group_s_first_wakes_who_waits_for_the_next(bed) {
        let other = bed.other().await;
        let member = || NewEvent::new("t").group("g");
        for queue in [&bed.queue, &other] {
            publish_new(queue, member()).await;
            let first = take_soon(queue).await;
            let second = publish_new(queue, member()).await;
            let waiter = waiter(&bed.queue);
            tokio::task::yield_now().await;
            done(queue, &first).await;
            let got = waiter.await.unwrap();
            assert_eq!(ids(&got), [second.id]);
            done(queue, &got[0]).await;
        }
    }

    async fn what_is_put_back_wakes_who_waits(bed) {
        let queue = bed.namespace(Policy { backoff: Backoff::None, max_retries: None, ..Policy::default() }).await;
        let other = bed.other().await.in_namespace("ns").unwrap();
        let event = publish(&queue, "t").await;
        for report in [release(), Report::failed("x"), snooze(Duration::ZERO)] {
            for worker in [&queue, &other] {
                let delivery = take_soon(worker).await;
                let waiter = waiter(&queue);
                tokio::task::yield_now().await;
                finish(worker, &delivery, report.clone()).await;
                let got = waiter.await.unwrap();
                assert_eq!(ids(&got), [event.id]);
                finish(&queue, &got[0], release()).await;
            }
        }
    }

    async fn what_people_do_by_hand_wakes_who_waits(bed) {
        let queue = &bed.queue;
        let event = publish(queue, "t").await.id;
        take(queue).await;
        let reset = waiter(queue);
        queue.reset(event, "main", "x").await.unwrap();
        let delivery = reset.await.unwrap().remove(0);
        finish(queue, &delivery, Report::dead("x")).await;

        let redriven = waiter(queue);
        assert_eq!(queue.redrive(Default::default()).await, Ok(1));
        let delivery = redriven.await.unwrap().remove(0);

        queue.pause().await.unwrap();
        finish(queue, &delivery, release()).await;
        let resumed = waiter(queue);
        tokio::task::yield_now().await;
        queue.resume().await.unwrap();
        assert_eq!(got(resumed).await, [event]);
    }

    async fn a_backfill_wakes_who_waits(bed) {
        let event = publish(&bed.queue, "t").await.id;
        let since = bed.now();
        bed.queue.add_subscription(SubscriptionSpec::new("empty")).await.unwrap();
        let waiter = waiting(&bed.queue, ClaimRequest::new("w").subscription("empty"));
        bed.queue.remove_subscription("empty").await.unwrap();
        bed.queue.add_subscription(SubscriptionSpec::new("empty").since(since)).await.unwrap();
        assert_eq!(got(waiter).await, [event]);
    }

    async fn a_delayed_event_reaches_who_waits(bed) {
        let queue = bed.real_time().await;
        let event = publish_new(&queue, NewEvent::new("t").delay(millis(300))).await;
        assert!(poll(&queue).await.is_none());
        assert_eq!(take_soon(&queue).await.event.id, event.id);
    }

    // Q14
    async fn an_abandoned_event_reaches_who_waits(bed) {
        let (queue, other) = (bed.real_time().await, bed.real_time().await);
        let event = publish(&queue, "t").await;
        claim(&queue, ClaimRequest::new("dies").lease(millis(300))).await.remove(0);
        let again = take_soon(&other).await;
        assert_eq!((again.event.id, again.attempts), (event.id, 2));
    }

    async fn each_waiter_gets_its_own(bed) {
        let other = bed.other().await;
        let waiters: Vec<_> = (0..12).map(|n| waiter(if n % 2 == 0 { &bed.queue } else { &other })).collect();
        tokio::task::yield_now().await;
        let events = publish_many(&bed.queue, "t", 12).await;
        let mut all = Vec::new();
        for waiter in waiters {
            let got = got(waiter).await;
            assert_eq!(got.len(), 1);
            all.extend(got);
        }
        assert_eq!(sorted(all), events);
    }

    async fn a_waiting_claim_returns_with_the_first_that_comes(bed) {
        let waiter = waiting(&bed.queue, ClaimRequest::new("w").max(10));
        tokio::task::yield_now().await;
        let event = publish(&bed.queue, "t").await;
        assert_eq!(got(waiter).await, [event.id]);
    }

    async fn who_waits_gets_only_what_it_asked_for(bed) {
        let wanted = waiting(&bed.queue, ClaimRequest::new("w").types(["wanted"]).tags(["x"]));
        tokio::task::yield_now().await;
        publish(&bed.queue, "other").await;
        publish(&bed.queue, "wanted").await;
        let event = publish_new(&bed.queue, NewEvent::new("wanted").tags(["x"])).await;
        assert_eq!(got(wanted).await, [event.id]);
    }

    async fn a_claim_that_is_dropped_while_it_waits_takes_nothing(bed) {
        let waiter = waiter(&bed.queue);
        tokio::task::yield_now().await;
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        let event = publish(&bed.queue, "t").await;
        assert_eq!(take_soon(&bed.queue).await.event.id, event.id);
    }

    async fn of_thousands_that_wait_the_one_that_waited_longest_gets_it(bed) {
        let real_time = bed.real_time().await;
        for queue in [&bed.queue, &real_time] {
            assert!(poll(queue).await.is_none());
            let mut waiters = Vec::new();
            for n in 0..2_000 {
                let request = ClaimRequest::new(n.to_string()).wait(secs(30));
                let mut waiter = Box::pin(queue.claim(request));
                // It asks when it is polled, and so they ask in this order.
                assert!(!futures_poll(waiter.as_mut()).await);
                waiters.push(waiter);
            }
            let mut waiters = waiters.into_iter();
            for _ in 0..3 {
                let event = publish(queue, "t").await;
                let got = waiters.next().unwrap().await.unwrap();
                assert_eq!(ids(&got), [event.id]);
                done(queue, &got[0]).await;
            }
            // Those in the middle go away: they are passed over.
            let mut waiters = waiters.skip(1_000);
            let last = publish(queue, "t").await;
            let got = waiters.next().unwrap().await.unwrap();
            assert_eq!((ids(&got), got[0].worker_id.as_str()), (vec![last.id], "1003"));
            done(queue, &got[0]).await;
            for mut waiter in waiters {
                assert!(!futures_poll(waiter.as_mut()).await, "nobody else gets it");
            }
        }
    }

    async fn thousands_of_waits_each_end_in_their_time(bed) {
        let queue = bed.real_time().await;
        let begun = std::time::Instant::now();
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
            assert!(begun.elapsed() >= wait);
        }
    }

    async fn of_many_that_wait_for_different_things_each_gets_its_own(bed) {
        let queue = bed.real_time().await;
        let tag = |n: usize| format!("tag-{n}");
        // Some lanes are there before, some are new.
        publish_new(&queue, NewEvent::new("t").tags([tag(0), tag(7)])).await;
        done(&queue, &take(&queue).await).await;
        let waiters: Vec<_> =
            (0..300).map(|n| waiting(&queue, ClaimRequest::new(tag(n)).tags([tag(n)]))).collect();
        tokio::task::yield_now().await;
        let other = bed.real_time().await;
        let mut events = Vec::new();
        for n in 0..waiters.len() {
            let publisher = if n % 2 == 0 { &queue } else { &other };
            events.push(publish_new(publisher, NewEvent::new("t").tags([tag(n)])).await.id);
        }
        for (waiter, event) in waiters.into_iter().zip(events) {
            assert_eq!(got(waiter).await, [event]);
        }
    }

    async fn what_nobody_rings_for_reaches_who_waits(bed) {
        let queue = bed.real_time().await;
        let later = || NewEvent::new("t").delay(MINUTE);
        let events = [publish_new(&queue, later()).await.id, publish_new(&queue, later()).await.id];
        let first = waiter(&queue);
        tokio::task::yield_now().await;
        let second = waiter(&queue);
        let schema = if bed.database.kind == crate::bed::Kind::Postgres { "windlass." } else { "" };
        bed.database.execute(&format!("UPDATE {schema}event_queue SET ready_at = created_at")).await;
        assert_eq!(sorted([got(first).await, got(second).await].concat()), events);
    }

    async fn who_waits_hears_of_the_end(bed) {
        let queue = bed.real_time().await;
        assert!(poll(&queue).await.is_none());
        let claim = queue.claim(ClaimRequest::new("w").wait(secs(60)));
        let mut claim = Box::pin(claim);
        // Who has only just asked may be told that the queue is closed.
        assert!(tokio::time::timeout(secs(1), claim.as_mut()).await.is_err());
        queue.close().await;
        assert!(claim.await.unwrap().is_empty());
        assert_eq!(queue.publish(NewEvent::new("t")).await.unwrap_err(), windlass::Error::Closed);
    }

    async fn who_waits_can_be_told_not_to(bed) {
        let queue = bed.real_time().await;
        let claim = queue.claim(ClaimRequest::new("w").wait(secs(60)));
        let mut claim = Box::pin(claim);
        assert!(!futures_poll(claim.as_mut()).await);
        queue.stop_waiting();
        assert!(claim.await.unwrap().is_empty());
        assert!(queue.claim(ClaimRequest::new("w").wait(secs(60))).await.unwrap().is_empty());
        let event = publish(&queue, "t").await;
        assert_eq!(poll(&queue).await.unwrap().event.id, event.id);
    }

    // Whoever asks and goes away at any moment: nothing is kept from the others for longer than the lease.
    async fn deliveries_of_a_dropped_claim_come_back(bed) {
        for polls in 0..40 {
            let event = publish(&bed.queue, "t").await;
            {
                let mut asking = std::pin::pin!(bed.queue.claim(ClaimRequest::new("leaves")));
                let mut answered = false;
                for _ in 0..polls {
                    answered = answered || futures_poll(asking.as_mut()).await;
                    tokio::task::yield_now().await;
                }
            }
            // Answered, and dropped unread at the last moment: then only the lease brings it back.
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

/// Polls a claim once; `true` once it has answered, after which it must not be polled.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

on_postgres! {
    async fn a_claim_does_not_wait_for_a_publish_that_waits(bed) {
        let queue = bed.real_time().await;
        publish(&queue, "t").await;
        done(&queue, &take_soon(&queue).await).await;
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
