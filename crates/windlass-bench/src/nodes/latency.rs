//! Latency from publishing to the start of the handler, on an otherwise idle node.

use windlass::{Node, Queue};

use super::Options;
use super::report::Delays;
use super::stopwatch::Stopwatch;
use crate::AnyError;
use crate::event::PAID;
use crate::store::Backend;

pub async fn run(options: &Options, store: Backend) -> Result<Vec<Delays>, AnyError> {
    let mut delays = Vec::new();
    for (case, elsewhere) in [("published on the node's queue", false), ("published elsewhere", true)] {
        eprintln!("{}: latency, {case}", store.name());
        delays.extend(measure(options, store, case, elsewhere).await?);
    }
    Ok(delays)
}

/// With `elsewhere`, publishes on a second queue, which shares only the database, like another process.
async fn measure(
    options: &Options,
    store: Backend,
    case: &'static str,
    elsewhere: bool,
) -> Result<Option<Delays>, AnyError> {
    let database = store.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let publisher = if elsewhere { Queue::open(&database.url).await? } else { queue.clone() };
    let watch = Stopwatch::new(options.time());
    let handler = watch.clone();
    let node = Node::new(&queue, "bench").concurrency(10).on(PAID, move |event, _| {
        let started = handler.start(&event);
        async { started }
    });
    let node = node.start().await?;
    tokio::spawn(watch.clone().run(publisher.clone(), PAID)).await??;
    node.stop().await;
    publisher.close().await;
    queue.close().await;
    Ok(watch.delays(store, case))
}
