//! Processes that are killed while they publish, claim and finish. Nothing acknowledged is lost, and nothing is stored
//! in part.

use std::collections::HashSet;
use std::sync::Mutex;

use windlass::{Action, ClaimRequest, LeasedEvent, ListFilter, NewEvent, Policy, Queue, Report, Status};
use windlass_testkit::Kind;

use crate::bed::{Bed, run};
use crate::process::{Process, print_for_test};
use crate::support::*;

/// The body of the child processes that the tests below start.
pub async fn run_child(queue: Queue, role: &str) {
    match role {
        "claim" => claim_and_hang(queue).await,
        "publish" => publish_forever(queue).await,
        "finish" => finish_forever(queue).await,
        "drain" => drain(queue).await,
        other => panic!("no such role: {other}"),
    }
}

async fn claim_and_hang(queue: Queue) {
    let delivery = claim_one_soon(&queue).await;
    queue.start(&delivery).await.unwrap().unwrap();
    print_for_test(delivery.event.id);
    std::future::pending::<()>().await;
}

async fn publish_forever(queue: Queue) {
    let publishers = (0..4).map(|n| {
        let queue = queue.clone();
        tokio::spawn(async move {
            for round in 0.. {
                let events = (0..3).map(|m| NewEvent::new("t").group(format!("g{n}")).key(format!("{n}-{round}-{m}")));
                let published = queue.publish_all(events.collect()).await.unwrap();
                print_for_test(published.iter().map(|p| p.event.id.to_string()).collect::<Vec<_>>().join(" "));
            }
        })
    });
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
}

async fn finish_forever(queue: Queue) {
    loop {
        for delivery in claim(&queue, ClaimRequest::new("child").max(5)).await {
            done(&queue, &delivery).await;
            print_for_test(delivery.event.id);
        }
    }
}

/// Claims and finishes deliveries until no more come.
async fn drain(queue: Queue) {
    let worker = format!("process-{}", std::process::id());
    loop {
        let deliveries = claim(&queue, ClaimRequest::new(&worker).max(100).wait(secs(1))).await;
        if deliveries.is_empty() {
            return;
        }
        let reports = deliveries.iter().map(|delivery| (LeasedEvent::from(delivery), Report::done())).collect();
        for finished in queue.finish_all(reports).await.unwrap() {
            let attempt = finished.unwrap().attempt().expect("the lease is valid").clone();
            assert_eq!(attempt.attempt, 1);
        }
        print_for_test(ids(&deliveries).iter().map(i64::to_string).collect::<Vec<_>>().join(" "));
    }
}

async fn namespace(bed: &Bed, lease_ms: u64) -> Queue {
    bed.real_time_queue()
        .await
        .put_namespace("ns", Some(Policy { lease_ms, ..Policy::default() }.into()), None)
        .await
        .unwrap()
}

/// All events with the status of their delivery to `main`, which must be the only one.
pub async fn all_events(queue: &Queue) -> Vec<(i64, Status)> {
    let mut all = Vec::new();
    loop {
        let filter = ListFilter { limit: 1_000, offset: all.len(), ..Default::default() };
        let page = queue.list(filter).await.unwrap();
        if page.items.is_empty() {
            return all;
        }
        for view in page.items {
            assert_eq!(view.deliveries.len(), 1, "event {} does not have exactly one delivery", view.event.id);
            all.push((view.event.id, view.deliveries[0].status));
        }
    }
}

/// Claims and finishes all events, and returns their ids. A server may still be storing events of a killed process.
async fn drain_all(queue: &Queue) -> HashSet<i64> {
    let (delivered, stored) = (Mutex::new(HashSet::new()), Mutex::new(HashSet::new()));
    eventually("all stored events are delivered", async || {
        let deliveries = claim_all(queue).await;
        delivered.lock().unwrap().extend(ids(&deliveries));
        let reports = deliveries.iter().map(|delivery| (delivery.into(), Report::done())).collect();
        assert!(queue.finish_all(reports).await.unwrap().iter().all(Result::is_ok));
        if !deliveries.is_empty() {
            return false;
        }
        *stored.lock().unwrap() = all_events(queue).await.into_iter().map(|(id, _)| id).collect();
        *delivered.lock().unwrap() == *stored.lock().unwrap()
    })
    .await;
    stored.into_inner().unwrap()
}

/// Checks that processes share the queue: each event is delivered once, to one of them.
async fn processes_share_the_queue(bed: &Bed, processes: usize, events: usize) {
    let queue = namespace(bed, 60_000).await;
    let mut published = Vec::new();
    while published.len() < events {
        published.extend(publish_many(&queue, &format!("t{}", published.len() / 1_000 % 3), 1_000).await);
    }
    let children: Vec<_> = (0..processes)
        .map(|_| {
            let mut child = Process::start(bed, "drain");
            let ids = child.ids();
            tokio::task::spawn_blocking(move || (ids.collect::<Vec<_>>(), child.wait()))
        })
        .collect();
    let mut delivered = Vec::new();
    for child in children {
        let (ids, status) = child.await.unwrap();
        assert!(status.success(), "{status}");
        delivered.extend(ids);
    }
    assert_eq!(delivered.len(), published.len());
    assert_eq!(sorted(delivered), published);
    assert!(all_events(&queue).await.iter().all(|(_, status)| *status == Status::Completed));
    assert!(poll(&queue).await.is_none());
}

// O7
#[test]
fn sqlite_four_processes_share_the_queue() {
    run(Kind::Sqlite, async |bed: &Bed| processes_share_the_queue(bed, 4, 2_000).await);
}

// O7, Q4
#[test]
fn postgres_sixteen_processes_share_the_queue() {
    run(Kind::Postgres, async |bed: &Bed| processes_share_the_queue(bed, 16, 20_000).await);
}

conformance! {
    // Q14, O7
    async fn event_of_killed_worker_is_redelivered(bed) {
        let queue = namespace(bed, 300).await;
        let event = publish(&queue, "t").await;
        let mut worker = Process::start(bed, "claim");
        let claimed = worker.ids().next();
        worker.kill();
        assert_eq!(claimed, Some(event.id));
        let again = claim_soon(&queue, ClaimRequest::new("w").lease(MINUTE)).await;
        assert_eq!((again.event.id, again.attempts), (event.id, 2));
        done(&queue, &again).await;
        use Action::*;
        assert_eq!(trail(&queue, event.id).await, [Picked, Started, Abandoned, Picked, Completed]);
    }

    // O1
    async fn acknowledged_events_of_killed_publisher_are_stored(bed) {
        let queue = namespace(bed, 60_000).await;
        let mut publisher = Process::start(bed, "publish");
        let mut printed = publisher.ids();
        let mut acknowledged: Vec<i64> = printed.by_ref().take(300).collect();
        publisher.kill();
        acknowledged.extend(printed);
        assert!(acknowledged.len() >= 300);
        let stored = drain_all(&queue).await;
        assert!(acknowledged.iter().all(|id| stored.contains(id)));
        // Batches of three are stored as a whole, and every key is stored.
        assert_eq!(stored.len() % 3, 0);
        for key in ["0-0-0", "1-0-1", "2-0-2"] {
            assert!(queue.publish(NewEvent::new("t").key(key)).await.unwrap().duplicate, "{key}");
        }
    }

    // O1, Q14
    async fn events_finished_by_killed_worker_stay_finished(bed) {
        let queue = namespace(bed, 300).await;
        let published: HashSet<i64> = publish_many(&queue, "t", 1_000).await.into_iter().collect();
        let mut worker = Process::start(bed, "finish");
        let mut printed = worker.ids();
        let mut finished: HashSet<i64> = printed.by_ref().take(100).collect();
        worker.kill();
        finished.extend(printed);
        // All other events are delivered again, and no finished one.
        let (redelivered, completed) = (Mutex::new(HashSet::new()), Mutex::new(HashSet::new()));
        eventually("every event is completed or delivered again", async || {
            let deliveries = claim(&queue, ClaimRequest::new("w").max(1_000).lease(MINUTE).wait(millis(500))).await;
            assert!(deliveries.iter().all(|delivery| redelivered.lock().unwrap().insert(delivery.event.id)));
            let done = all_events(&queue).await.into_iter().filter(|(_, status)| *status == Status::Completed);
            *completed.lock().unwrap() = done.map(|(id, _)| id).collect();
            redelivered.lock().unwrap().len() + completed.lock().unwrap().len() == published.len()
        })
        .await;
        let (redelivered, completed) = (redelivered.into_inner().unwrap(), completed.into_inner().unwrap());
        assert!(finished.is_subset(&completed));
        assert_eq!(redelivered, published.difference(&completed).copied().collect());
    }
}
