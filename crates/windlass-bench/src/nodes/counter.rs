//! Drains a backlog with a node and measures the rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::Notify;
use windlass::{Node, Queue, Status};

use crate::AnyError;
use crate::engine;

/// Counts handler runs.
pub struct Counter {
    runs: AtomicUsize,
    expected: usize,
    reached: Notify,
}

impl Counter {
    fn new(expected: usize) -> Arc<Counter> {
        Arc::new(Counter { runs: AtomicUsize::new(0), expected, reached: Notify::new() })
    }

    /// Called by the handler on each run.
    pub fn count(&self) {
        if self.runs.fetch_add(1, Ordering::Relaxed) + 1 == self.expected {
            self.reached.notify_one();
        }
    }
}

/// Publishes events and drains them with the node made by `node`. Returns events per second, from the start of the
/// node until it has stopped and all completions are committed.
pub async fn drain(queue: &Queue, events: usize, node: impl FnOnce(Arc<Counter>) -> Node) -> Result<f64, AnyError> {
    let since = queue.clock().now();
    engine::publish(queue, 4, 1000, events).await?;
    drain_published(queue, events, since, node).await
}

/// The same for events published since `since`.
pub async fn drain_published(
    queue: &Queue,
    events: usize,
    since: windlass::Timestamp,
    node: impl FnOnce(Arc<Counter>) -> Node,
) -> Result<f64, AnyError> {
    let counter = Counter::new(events);
    let started = Instant::now();
    let running = node(counter.clone()).start().await?;
    counter.reached.notified().await;
    running.stop().await;
    let took = started.elapsed();

    let stats = queue.stats(since).await?;
    let completed: u64 = stats.iter().filter(|row| row.status == Status::Completed).map(|row| row.count).sum();
    assert_eq!(completed, events as u64, "every event is completed");
    assert_eq!(counter.runs.load(Ordering::Relaxed), events, "every event is handled once");
    Ok(events as f64 / took.as_secs_f64())
}
