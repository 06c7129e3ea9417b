//! Concurrent publishers and workers in several processes: every event is completed exactly once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use windlass::{Action, Backoff, ClaimRequest, Delivery, Finished, NewEvent, Policy, Queue, Report, Status};

use crate::support::*;

const PUBLISHERS: usize = 8;
const EVENTS_EACH: usize = 30;

/// What the workers did.
#[derive(Default)]
struct WorkLog {
    done: Mutex<HashMap<i64, usize>>,
    done_count: AtomicUsize,
    /// Groups with a delivery in progress.
    groups: Mutex<HashSet<String>>,
    /// Completed events of each group, in order.
    order: Mutex<HashMap<String, Vec<i64>>>,
}

/// Publishers with an even number use a group of their own, so that its order is known.
async fn publish_random(queue: Queue, publisher: usize) -> Vec<i64> {
    let mut published = Vec::new();
    while published.len() < EVENTS_EACH {
        let batch = (0..fastrand::usize(1..4)).map(|_| {
            let event = NewEvent::new(format!("t{}", fastrand::u8(..4))).priority(fastrand::i16(0..3));
            if publisher.is_multiple_of(2) { event.group(format!("g{publisher}")) } else { event }
        });
        let stored = queue.publish_all(batch.collect()).await.unwrap();
        published.extend(stored.iter().map(|published| published.event.id));
    }
    published
}

async fn run_worker(queue: Queue, worker: usize, log: Arc<WorkLog>, wanted: usize) {
    while log.done_count.load(Ordering::SeqCst) < wanted {
        let request = ClaimRequest::new(format!("w{worker}")).max(fastrand::usize(1..6)).wait(millis(100));
        for delivery in queue.claim(request).await.unwrap() {
            let group = delivery.event.group_id.clone();
            if let Some(group) = &group {
                let added = log.groups.lock().unwrap().insert(group.clone());
                assert!(added, "two deliveries of group {group} are in progress");
            }
            tokio::task::yield_now().await;
            let (done, report) = match fastrand::u8(..4) {
                0 => (false, Report::failed("x")),
                1 => (false, release()),
                _ => (true, Report::done()),
            };
            finish_and_record(&queue, &delivery, done, report, &log).await;
        }
    }
}

async fn finish_and_record(queue: &Queue, delivery: &Delivery, done: bool, report: Report, log: &WorkLog) {
    if let Some(group) = &delivery.event.group_id {
        if done {
            log.order.lock().unwrap().entry(group.clone()).or_default().push(delivery.event.id);
        }
        log.groups.lock().unwrap().remove(group);
    }
    finish(queue, delivery, report).await;
    if done {
        *log.done.lock().unwrap().entry(delivery.event.id).or_default() += 1;
        log.done_count.fetch_add(1, Ordering::SeqCst);
    }
}

async fn join_all<T: 'static>(tasks: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

conformance! {
    // O1, O4, O7
    async fn every_event_is_completed_once(bed) {
        let policy = Policy { backoff: Backoff::None, max_retries: None, max_attempts: 10_000, ..Policy::default() };
        let first = bed.real_time_queue().await.put_namespace("ns", Some(policy.into()), None).await.unwrap();
        let second = bed.real_time_queue().await.in_namespace("ns").unwrap();
        let queue = |n: usize| if n.is_multiple_of(2) { first.clone() } else { second.clone() };
        let log = Arc::new(WorkLog::default());
        let publishers = (0..PUBLISHERS).map(|n| tokio::spawn(publish_random(queue(n / 2), n))).collect();
        // A publisher may publish a few more events than that; the last call of `run_worker` handles the rest.
        let workers =
            (0..8).map(|n| tokio::spawn(run_worker(queue(n), n, log.clone(), PUBLISHERS * EVENTS_EACH))).collect();
        let published = join_all(publishers).await;
        join_all(workers).await;
        let wanted: usize = published.iter().map(Vec::len).sum();
        run_worker(first.clone(), 99, log.clone(), wanted).await;

        let done = log.done.lock().unwrap().clone();
        assert!(done.values().all(|times| *times == 1), "{done:?}");
        assert_eq!(sorted(done.into_keys().collect()), sorted(published.concat()));
        let order = log.order.lock().unwrap().clone();
        for (publisher, events) in published.iter().enumerate().step_by(2) {
            assert_eq!(&order[&format!("g{publisher}")], events);
        }
        let rows = first.stats(chrono::Utc::now() - chrono::TimeDelta::hours(1)).await.unwrap();
        assert!(rows.iter().all(|row| row.status == Status::Completed), "{rows:?}");
        assert!(poll(&first).await.is_none() && poll(&second).await.is_none());
        for event in published.concat() {
            let completed = trail(&first, event).await.iter().filter(|a| **a == Action::Completed).count();
            assert_eq!(completed, 1);
        }
    }

    // O4: several processes publish to one group while workers process it.
    async fn busy_group_is_processed_one_at_a_time(bed) {
        let policy = Policy { backoff: Backoff::None, max_retries: None, max_attempts: 10_000, ..Policy::default() };
        let first = bed.real_time_queue().await.put_namespace("ns", Some(policy.into()), None).await.unwrap();
        let second = bed.real_time_queue().await.in_namespace("ns").unwrap();
        let log = Arc::new(WorkLog::default());
        let publishers = (0..4).map(|n| {
            let queue = if n % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                for _ in 0..25 {
                    publish_new(&queue, NewEvent::new(format!("t{n}")).group("g")).await;
                }
            })
        });
        let publishers: Vec<_> = publishers.collect();
        let workers = [&first, &second, &first, &second].into_iter().enumerate();
        let workers = workers.map(|(n, queue)| tokio::spawn(run_worker(queue.clone(), n, log.clone(), 100))).collect();
        join_all(publishers).await;
        join_all(workers).await;
        assert_eq!(log.done.lock().unwrap().len(), 100);
        assert!(poll(&first).await.is_none());
    }

    // H11, O7: many leases expire while their deliveries are processed.
    async fn slow_workers_never_complete_an_event_twice(bed) {
        let policy = Policy { lease_ms: 40, backoff: Backoff::None, max_attempts: 10_000, ..Policy::default() };
        let first = bed.real_time_queue().await.put_namespace("ns", Some(policy.into()), None).await.unwrap();
        let second = bed.real_time_queue().await.in_namespace("ns").unwrap();
        let published = publish_many(&first, "t", 60).await;
        let done = Arc::new(Mutex::new(HashMap::<i64, Vec<u32>>::new()));
        let workers = (0..8).map(|n| {
            let (queue, done) = (if n % 2 == 0 { first.clone() } else { second.clone() }, done.clone());
            tokio::spawn(async move {
                while done.lock().unwrap().len() < 60 {
                    for delivery in claim(&queue, ClaimRequest::new(format!("w{n}")).max(2).wait(millis(200))).await {
                        // Often longer than the lease.
                        tokio::time::sleep(millis(fastrand::u64(..60))).await;
                        if let Finished::Applied(attempt) = queue.finish(&delivery, Report::done()).await.unwrap() {
                            assert_eq!(attempt.attempt, delivery.attempts);
                            done.lock().unwrap().entry(delivery.event.id).or_default().push(attempt.attempt);
                        }
                    }
                }
            })
        });
        join_all(workers.collect()).await;
        let done = done.lock().unwrap().clone();
        assert!(done.values().all(|attempts| attempts.len() == 1), "{done:?}");
        for event in published {
            let trail = trail(&first, event).await;
            assert_eq!(trail.last(), Some(&Action::Completed));
            // Every attempt that did not complete the event was abandoned.
            let count = |wanted| trail.iter().filter(|action| **action == wanted).count();
            assert_eq!(
                (count(Action::Completed), count(Action::Abandoned) + 1),
                (1, count(Action::Picked)),
                "{trail:?}"
            );
        }
    }

    // The first operation wins: a delivery that was claimed is neither canceled nor expired.
    async fn delivery_is_either_claimed_canceled_or_expired(bed) {
        let (first, second) = (bed.real_time_queue().await, bed.real_time_queue().await);
        let soon = chrono::Utc::now() + chrono::TimeDelta::milliseconds(300);
        let events =
            (0..200).map(|n| if n % 2 == 0 { NewEvent::new("t").expires_at(soon) } else { NewEvent::new("u") });
        let published = first.publish_all(events.collect()).await.unwrap();
        let claiming = tokio::spawn(async move {
            let mut claimed = HashSet::new();
            while chrono::Utc::now() < soon {
                claimed.extend(ids(&claim(&second, ClaimRequest::new("w").max(2)).await));
            }
            claimed
        });
        let expired = AtomicUsize::new(0);
        let expire = async || expired.fetch_add(first.expire_once().await.unwrap(), Ordering::SeqCst);
        let mut cancelled = HashSet::new();
        for published in published.iter().rev().filter(|published| published.event.event_type == "u") {
            if first.cancel(published.event.id, None).await.is_ok() {
                cancelled.insert(published.event.id);
            }
            expire().await;
        }
        while !claiming.is_finished() {
            expire().await;
        }
        let claimed = claiming.await.unwrap();
        assert!(claimed.is_disjoint(&cancelled));
        eventually("all others expire", async || {
            expire().await;
            claimed.len() + cancelled.len() + expired.load(Ordering::SeqCst) >= 200
        })
        .await;
        assert_eq!(claimed.len() + cancelled.len() + expired.load(Ordering::SeqCst), 200);
        for published in published {
            let (id, status) = (published.event.id, status(&first, published.event.id).await);
            let expected = match status {
                Status::Processing => claimed.contains(&id),
                Status::Cancelled => cancelled.contains(&id),
                other => other == Status::Expired && !claimed.contains(&id) && !cancelled.contains(&id),
            };
            assert!(expected, "event {id} is {status}");
        }
    }

    // Heartbeats of this and another process run concurrently with the report.
    async fn report_succeeds_during_concurrent_heartbeats(bed) {
        let other = bed.second_queue().await;
        publish_many(&bed.queue, "t", 60).await;
        for delivery in claim_all(&bed.queue).await {
            let heartbeats = [&bed.queue, &other, &bed.queue, &other].map(|queue| {
                let (queue, delivery) = (queue.clone(), delivery.clone());
                tokio::spawn(async move {
                    while queue.extend(&delivery, None).await.unwrap().is_some() {
                        queue.start(&delivery).await.unwrap();
                    }
                })
            });
            tokio::task::yield_now().await;
            done(&other, &delivery).await;
            join_all(heartbeats.into()).await;
        }
        assert!(poll(&bed.queue).await.is_none());
    }
}
