//! A claim that waits gets what comes, whoever brings it.

use std::task::Poll;
use std::time::Duration;

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
