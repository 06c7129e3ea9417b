//! Publishes and drains through the library.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::{Args, ValueEnum};
use windlass::{ClaimRequest, LeasedEvent, Queue, Report};

use crate::AnyError;
use crate::event::{PAID, order};
use crate::report::{self, Measurement};
use crate::store::Backend;

#[derive(Args)]
pub struct Options {
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// Only this workload.
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// Only this many callers.
    #[arg(long)]
    callers: Option<usize>,
    /// Only this batch size.
    #[arg(long)]
    batch: Option<usize>,
    /// Events per measurement [default: as many as take a second or two]
    #[arg(long)]
    events: Option<usize>,
    /// Measurements of each case; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Workload {
    Publish,
    Drain,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.store != Some(Backend::Sqlite)
    }

    /// The number of events per measurement.
    fn events(&self, callers: usize, batch: usize) -> usize {
        let usual = match (callers, batch) {
            (1, 1) => 3_000,
            (_, 1) => 20_000,
            (_, ..=100) => 100_000,
            _ => 200_000,
        };
        self.events.unwrap_or(usual)
    }
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut measurements = Vec::new();
    for backend in Backend::ALL {
        if options.store.is_none_or(|only| only == backend) {
            for (callers, batch) in [(1, 1), (1, 100), (1, 1000), (16, 1), (16, 100), (16, 1000)] {
                if options.callers.is_none_or(|only| only == callers) && options.batch.is_none_or(|only| only == batch)
                {
                    measurements.extend(measure(options, backend, callers, batch).await?);
                }
            }
        }
    }
    report::print(&measurements, options.json);
    Ok(())
}

async fn measure(
    options: &Options,
    backend: Backend,
    callers: usize,
    batch: usize,
) -> Result<Vec<Measurement>, AnyError> {
    let (store, events) = (backend.name(), options.events(callers, batch));
    let (mut publish_rates, mut drain_rates) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        eprintln!("{store}: {callers} callers, batches of {batch}, {events} events, round {round}");
        let database = backend.create_database().await?;
        let queue = Queue::open(&database.url).await?;
        if options.workload == Some(Workload::Drain) {
            publish(&queue, 4, 1000, events).await?;
        } else {
            publish_rates.push(publish(&queue, callers, batch, events).await?);
        }
        if options.workload != Some(Workload::Publish) {
            drain_rates.push(drain(&queue, callers, batch, events).await?);
        }
        queue.close().await;
    }
    let row = |workload, rates| Measurement { store, workload, callers, batch, events, rates };
    let rows = [row("publish", publish_rates), row("drain", drain_rates)];
    Ok(rows.into_iter().filter(|row| !row.rates.is_empty()).collect())
}

/// Publishes events and returns the events acknowledged per second.
pub async fn publish(queue: &Queue, callers: usize, batch: usize, events: usize) -> Result<f64, AnyError> {
    let left = Arc::new(AtomicUsize::new(events));
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (queue, left) = (queue.clone(), left.clone());
        tasks.spawn(async move {
            let template = order(PAID, 12_345)?;
            while let Some(n) = take_batch(&left, batch) {
                queue.publish_all(vec![template.clone(); n]).await?;
            }
            Ok::<_, windlass::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(events as f64 / started.elapsed().as_secs_f64())
}

fn take_batch(left: &AtomicUsize, batch: usize) -> Option<usize> {
    let before =
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left > 0).then(|| left.saturating_sub(batch)));
    before.ok().map(|before| before.min(batch))
}

/// Drains events and returns the events completed per second. Each is claimed with its payload and finished with
/// history.
pub async fn drain(queue: &Queue, callers: usize, batch: usize, events: usize) -> Result<f64, AnyError> {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let queue = queue.clone();
        tasks.spawn(async move {
            let mut drained = 0;
            loop {
                let claimed = queue.claim(ClaimRequest::new(format!("bench:{caller}")).max(batch)).await?;
                if claimed.is_empty() {
                    return Ok::<_, windlass::Error>(drained);
                }
                drained += claimed.len();
                let reports = claimed.iter().map(|delivery| (LeasedEvent::from(delivery), Report::done())).collect();
                for finished in queue.finish_all(reports).await? {
                    assert!(!finished?.is_lost(), "a lease was lost");
                }
            }
        });
    }
    let mut drained = 0;
    while let Some(done) = tasks.join_next().await {
        drained += done??;
    }
    assert_eq!(drained, events, "every event exactly once");
    Ok(events as f64 / started.elapsed().as_secs_f64())
}
