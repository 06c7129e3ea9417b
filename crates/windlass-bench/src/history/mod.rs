//! The cost of a long history: the same work on an empty and on a full database, alternating.

mod compare;
mod generate;
mod months;
mod retention;

use clap::Args;
use serde::Serialize;
use windlass::Queue;

use self::compare::Cost;
use self::retention::RetentionCost;
use crate::AnyError;
use crate::store::Backend;

#[derive(Args)]
pub struct Options {
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// Number of finished events in the full database.
    #[arg(long, default_value_t = 10_000_000)]
    events: u64,
    /// Number of months over which they are spread.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=120))]
    months: u32,
    /// Measurements of each case; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// JSON instead of tables.
    #[arg(long)]
    json: bool,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.store != Some(Backend::Sqlite)
    }
}

#[derive(Serialize)]
struct Measured {
    store: &'static str,
    events: u64,
    months: u32,
    costs: Vec<Cost>,
    forgotten: RetentionCost,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut all = Vec::new();
    for backend in Backend::ALL {
        if options.store.is_none_or(|only| only == backend) {
            all.push(measure(options, backend).await?);
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        all.iter().for_each(print);
    }
    Ok(())
}

async fn measure(options: &Options, backend: Backend) -> Result<Measured, AnyError> {
    let (empty, full) = (backend.create_database().await?, backend.create_database().await?);
    eprintln!("{}: generating {} events of {} months", backend.name(), options.events, options.months);
    let months = months::last(options.months);
    generate::fill(backend, &full.url, options.events, &months).await?;
    let (empty, full) = (Queue::open(&empty.url).await?, Queue::open(&full.url).await?);
    let costs = compare::compare(&empty, &full, options.rounds).await?;
    let forgotten = retention::measure(&full, backend).await?;
    empty.close().await;
    full.close().await;
    Ok(Measured { store: backend.name(), events: options.events, months: options.months, costs, forgotten })
}

fn print(measured: &Measured) {
    let Measured { store, events, months, .. } = measured;
    println!("\n{store}: an empty database, and one with {events} finished events of {months} months\n");
    println!("| work | batch | empty, µs an event | full | full / empty |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for Cost { work, batch, empty_us, full_us, ratio } in &measured.costs {
        println!("| {work} | {batch} | {empty_us:.1} | {full_us:.1} | {ratio:.2} |");
    }
    let RetentionCost { what, count, took_ms, before, during } = &measured.forgotten;
    println!("\n{count} {what} forgotten in {took_ms:.0} ms; publishing meanwhile, ms:\n");
    println!("| | p50 | p99 | max |");
    println!("| --- | ---: | ---: | ---: |");
    for (when, times) in [("before", before), ("during", during)] {
        println!("| {when} | {:.1} | {:.1} | {:.1} |", times.p50_ms, times.p99_ms, times.max_ms);
    }
}
