//! Small words that the tests are written in.

use std::time::Duration;

use serde::Serialize;
use windlass::{
    Action, ClaimRequest, Delivery, DeliveryView, Event, ListFilter, NewEvent, Outcome, Queue, Report, Status,
    Timestamp,
};

pub const MICRO: Duration = Duration::from_micros(1);
pub const MINUTE: Duration = Duration::from_secs(60);
/// The lease of the policy `default`.
pub const LEASE: Duration = MINUTE;
/// The backoff of the policy `default`.
pub const BACKOFF: Duration = Duration::from_secs(300);

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn after(at: Timestamp, by: Duration) -> Timestamp {
    at + chrono::TimeDelta::from_std(by).unwrap()
}

pub async fn publish(queue: &Queue, event_type: &str) -> Event {
    publish_new(queue, NewEvent::new(event_type)).await
}

pub async fn publish_new(queue: &Queue, event: NewEvent) -> Event {
    let published = queue.publish(event).await.expect("the event can be published");
    assert!(!published.duplicate);
    published.event
}

/// `count` events of one type, published together.
pub async fn publish_many(queue: &Queue, event_type: &str, count: usize) -> Vec<i64> {
    let events = (0..count).map(|_| NewEvent::new(event_type)).collect();
    let published = queue.publish_all(events).await.expect("the events can be published");
    published.iter().map(|published| published.event.id).collect()
}

/// What `w` gets at once, if anything.
pub async fn poll(queue: &Queue) -> Option<Delivery> {
    queue.poll("w").await.expect("a poll succeeds")
}

/// What `w` gets at once.
pub async fn take(queue: &Queue) -> Delivery {
    poll(queue).await.expect("something is ready")
}

/// What `w` gets when it waits: for what another process did, or upkeep has to find.
pub async fn take_soon(queue: &Queue) -> Delivery {
    claim_soon(queue, ClaimRequest::new("w")).await
}

pub async fn claim_soon(queue: &Queue, request: ClaimRequest) -> Delivery {
    let mut got = queue.claim(request.max(1).wait(secs(20))).await.expect("a claim succeeds");
    got.pop().expect("something becomes ready")
}

/// All that `w` gets at once.
pub async fn take_all(queue: &Queue) -> Vec<Delivery> {
    claim(queue, ClaimRequest::new("w").max(1_000)).await
}

pub async fn claim(queue: &Queue, request: ClaimRequest) -> Vec<Delivery> {
    queue.claim(request).await.expect("a claim succeeds")
}

pub fn ids(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().map(|delivery| delivery.event.id).collect()
}

pub fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}

/// Ends an attempt; the lease must be held.
pub async fn finish(queue: &Queue, delivery: &Delivery, report: Report) -> windlass::Attempt {
    match queue.finish(delivery, report).await.expect("a finish succeeds") {
        windlass::Finished::Applied(attempt) => attempt,
        other => panic!("event {} is not held: {other:?}", delivery.event.id),
    }
}

pub async fn done(queue: &Queue, delivery: &Delivery) {
    assert_eq!(finish(queue, delivery, Report::done()).await.action, Action::Completed);
}

pub async fn fail(queue: &Queue, delivery: &Delivery) -> windlass::Attempt {
    finish(queue, delivery, Report::failed("no luck")).await
}

pub fn snooze(delay: Duration) -> Report {
    Report::new(Outcome::Snooze { delay })
}

pub fn release() -> Report {
    Report::new(Outcome::Release)
}

/// How an event stands with `main`.
pub async fn view(queue: &Queue, event_id: i64) -> DeliveryView {
    view_of(queue, event_id, "main").await
}

pub async fn view_of(queue: &Queue, event_id: i64, subscription: &str) -> DeliveryView {
    let view = queue.get(event_id).await.expect("the event exists");
    view.delivery(subscription).expect("it has the delivery").clone()
}

pub async fn status(queue: &Queue, event_id: i64) -> Status {
    view(queue, event_id).await.status
}

pub async fn trail(queue: &Queue, event_id: i64) -> Vec<Action> {
    let log = queue.log(event_id).await.expect("the event has a log");
    log.iter().map(|entry| entry.action).collect()
}

/// All that can be seen of an event, to show that nothing changed.
pub async fn everything(queue: &Queue, event_id: i64) -> (String, String) {
    let view = queue.get(event_id).await.expect("the event exists");
    let log = queue.log(event_id).await.expect("the event has a log");
    (json(&view), json(&log))
}

pub fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap()
}

/// How many events the namespace has.
pub async fn total(queue: &Queue) -> u64 {
    queue.list(ListFilter::default()).await.expect("events can be listed").total
}

/// The dead letters' event ids, the newest first.
pub async fn dead(queue: &Queue) -> Vec<i64> {
    let filter = windlass::DeadLetterFilter { limit: 1_000, ..Default::default() };
    let page = queue.dead_letters(filter).await.expect("dead letters can be listed");
    page.items.iter().map(|letter| letter.event.id).collect()
}

/// Waits until it is so; what never becomes so fails the test.
pub async fn eventually(what: &str, so: impl AsyncFn() -> bool) {
    let begun = std::time::Instant::now();
    while !so().await {
        assert!(begun.elapsed() < secs(30), "never: {what}");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Prints the seed of a random test that fails.
pub struct SeedOnPanic(pub u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was {}", self.0);
        }
    }
}
