//! Drains a backlog with a handler that does nothing.

use windlass::{Node, Queue};

use super::Options;
use super::counter::drain;
use super::report::Rate;
use crate::AnyError;
use crate::event::PAID;
use crate::store::Backend;

const EVENTS: usize = 100_000;

pub async fn run(options: &Options, store: Backend) -> Result<Vec<Rate>, AnyError> {
    let events = options.events.unwrap_or(EVENTS);
    let mut rates = Vec::new();
    for concurrency in [10, 100] {
        if options.concurrency.is_some_and(|only| only != concurrency) {
            continue;
        }
        let mut rounds = Vec::new();
        for round in 1..=options.rounds {
            eprintln!("{}: throughput, concurrency {concurrency}, {events} events, round {round}", store.name());
            rounds.push(measure(store, concurrency, events).await?);
        }
        rates.push(Rate::new(store, "throughput", concurrency, events, rounds));
    }
    Ok(rates)
}

async fn measure(store: Backend, concurrency: usize, events: usize) -> Result<f64, AnyError> {
    let database = store.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let rate = drain(&queue, events, |counter| {
        let work = move |_, _| {
            counter.count();
            async { Ok(()) }
        };
        Node::new(&queue, "bench").on(PAID, work).concurrency(concurrency)
    });
    let rate = rate.await?;
    queue.close().await;
    Ok(rate)
}
