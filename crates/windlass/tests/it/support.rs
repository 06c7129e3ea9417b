//! Helpers for all tests: publish, claim and finish events, and read their state.

use std::time::Duration;

use serde::Serialize;
use windlass::{
    Action, ClaimRequest, Delivery, DeliveryView, Event, ListFilter, NewEvent, Outcome, Queue, Report, Status,
    Timestamp,
};
pub use windlass_testkit::eventually;

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

/// Publishes `count` events of one type in one call, and returns their ids.
pub async fn publish_many(queue: &Queue, event_type: &str, count: usize) -> Vec<i64> {
    let events = (0..count).map(|_| NewEvent::new(event_type)).collect();
    let published = queue.publish_all(events).await.expect("the events can be published");
    published.iter().map(|published| published.event.id).collect()
}

/// Claims one ready delivery as worker `w`, without waiting.
pub async fn poll(queue: &Queue) -> Option<Delivery> {
    queue.poll("w").await.expect("a poll succeeds")
}

/// Like [`poll`], but panics if no delivery is ready.
pub async fn claim_one(queue: &Queue) -> Delivery {
    poll(queue).await.expect("a delivery is ready")
}

/// Claims one delivery as worker `w`, and waits until another process or a maintenance task makes one ready.
pub async fn claim_one_soon(queue: &Queue) -> Delivery {
    claim_soon(queue, ClaimRequest::new("w")).await
}

pub async fn claim_soon(queue: &Queue, request: ClaimRequest) -> Delivery {
    let mut deliveries = queue.claim(request.max(1).wait(secs(20))).await.expect("a claim succeeds");
    deliveries.pop().expect("a delivery becomes ready")
}

/// Claims up to 1,000 ready deliveries as worker `w`, without waiting.
pub async fn claim_all(queue: &Queue) -> Vec<Delivery> {
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

/// Finishes an attempt, and panics if the lease is lost.
pub async fn finish(queue: &Queue, delivery: &Delivery, report: Report) -> windlass::Attempt {
    match queue.finish(delivery, report).await.expect("a finish succeeds") {
        windlass::Finished::Applied(attempt) => attempt,
        other => panic!("the lease of event {} is lost: {other:?}", delivery.event.id),
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

/// The state of an event's delivery to `main`.
pub async fn view(queue: &Queue, event_id: i64) -> DeliveryView {
    view_of(queue, event_id, "main").await
}

pub async fn view_of(queue: &Queue, event_id: i64, subscription: &str) -> DeliveryView {
    let view = queue.get(event_id).await.expect("the event exists");
    view.delivery(subscription).expect("the event has this delivery").clone()
}

pub async fn status(queue: &Queue, event_id: i64) -> Status {
    view(queue, event_id).await.status
}

/// The actions in an event's log, oldest first.
pub async fn trail(queue: &Queue, event_id: i64) -> Vec<Action> {
    let log = queue.log(event_id).await.expect("the event has a log");
    log.iter().map(|entry| entry.action).collect()
}

/// The visible state of an event and its log as JSON, to check that nothing changed.
pub async fn event_snapshot(queue: &Queue, event_id: i64) -> (String, String) {
    let view = queue.get(event_id).await.expect("the event exists");
    let log = queue.log(event_id).await.expect("the event has a log");
    (json(&view), json(&log))
}

pub fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap()
}

/// The number of events in the namespace.
pub async fn count_events(queue: &Queue) -> u64 {
    queue.list(ListFilter::default()).await.expect("events can be listed").total
}

/// The event ids of the dead letters, newest first.
pub async fn dead_letter_ids(queue: &Queue) -> Vec<i64> {
    let filter = windlass::DeadLetterFilter { limit: 1_000, ..Default::default() };
    let page = queue.dead_letters(filter).await.expect("dead letters can be listed");
    page.items.iter().map(|letter| letter.event.id).collect()
}

/// Prints the seed if a random test fails.
pub struct SeedOnPanic(pub u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was {}", self.0);
        }
    }
}
