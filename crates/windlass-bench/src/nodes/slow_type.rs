//! Whether events of a quick type reach their handler while a slow type overloads its own.

use std::sync::Arc;
use std::time::Duration;

use windlass::{Node, Queue};

use super::Options;
use super::report::Delays;
use super::stopwatch::Stopwatch;
use crate::AnyError;
use crate::event::order;
use crate::store::Backend;

const CONCURRENCY: usize = 10;
const SLOW_HANDLER_TIME: Duration = Duration::from_secs(2);
const SLOW_CONCURRENCY: usize = 2;
/// More than can be handled during the measurement.
const BACKLOG: usize = 1000;

struct Case {
    name: &'static str,
    backlog: usize,
    limited: bool,
}

const CASES: [Case; 3] = [
    Case { name: "quick alone", backlog: 0, limited: true },
    Case { name: "quick beside slow, 2 at once", backlog: BACKLOG, limited: true },
    Case { name: "quick beside slow, unlimited", backlog: BACKLOG, limited: false },
];

pub async fn run(options: &Options, store: Backend) -> Result<Vec<Delays>, AnyError> {
    let mut delays = Vec::new();
    for case in &CASES {
        eprintln!("{}: slow-type, {}", store.name(), case.name);
        delays.extend(measure(options, store, case).await?);
    }
    Ok(delays)
}

async fn measure(options: &Options, store: Backend, case: &Case) -> Result<Option<Delays>, AnyError> {
    let database = store.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    queue.publish_all(vec![order("slow", 0)?; case.backlog]).await?;
    let watch = Stopwatch::new(options.time());
    let node = node(&queue, case, &watch).start().await?;
    tokio::spawn(watch.clone().run(queue.clone(), "quick")).await??;
    let delays = watch.delays(store, case.name);
    node.stop().await;
    queue.close().await;
    Ok(delays)
}

fn node(queue: &Queue, case: &Case, watch: &Arc<Stopwatch>) -> Node {
    let watch = watch.clone();
    let quick = move |event, _| {
        let started = watch.start(&event);
        async { started }
    };
    let slow = |_, _| async {
        tokio::time::sleep(SLOW_HANDLER_TIME).await;
        Ok(())
    };
    let node = Node::new(queue, "bench").concurrency(CONCURRENCY).on("quick", quick).on("slow", slow);
    if case.limited { node.concurrency_of("slow", SLOW_CONCURRENCY) } else { node }
}
