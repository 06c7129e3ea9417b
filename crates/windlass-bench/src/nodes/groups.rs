//! Drains a backlog of ten groups with a handler that takes 5 ms. A single group is limited to 200 events a second.

use std::time::Duration;

use windlass::{Node, Queue};

use super::Options;
use super::counter::drain_published;
use super::report::Rate;
use crate::AnyError;
use crate::event::{PAID, order};
use crate::store::Backend;

const EVENTS: usize = 2_000;
const GROUPS: usize = 10;
const HANDLER_TIME: Duration = Duration::from_millis(5);

pub async fn run(options: &Options, store: Backend) -> Result<Vec<Rate>, AnyError> {
    let events = options.events.unwrap_or(EVENTS);
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("{}: {GROUPS} groups, {events} events, round {round}", store.name());
        rounds.push(measure(store, events).await?);
    }
    Ok(vec![Rate::new(store, "10 groups, 5 ms", GROUPS, events, rounds)])
}

async fn measure(store: Backend, events: usize) -> Result<f64, AnyError> {
    let database = store.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let since = queue.clock().now();
    let grouped = |n: usize| Ok::<_, windlass::Error>(order(PAID, n)?.group(format!("group-{}", n % GROUPS)));
    for from in (0..events).step_by(1_000) {
        let batch: Result<Vec<_>, _> = (from..events.min(from + 1_000)).map(grouped).collect();
        queue.publish_all(batch?).await?;
    }
    let rate = drain_published(&queue, events, since, |counter| {
        let work = move |_, _| {
            let counter = counter.clone();
            async move {
                tokio::time::sleep(HANDLER_TIME).await;
                counter.count();
                Ok(())
            }
        };
        Node::new(&queue, "bench").on(PAID, work).concurrency(GROUPS)
    });
    let rate = rate.await?;
    queue.close().await;
    Ok(rate)
}
