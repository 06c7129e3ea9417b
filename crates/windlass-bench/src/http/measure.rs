//! The main workloads: publish and work, one by one and in batches, on each store.

use super::load::{Load, Outcome};
use super::report::{self, Measurement, Round};
use super::server::{Server, ServerTarget};
use super::{Options, Workload};
use crate::AnyError;

const BATCH: usize = 100;

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut measurements = Vec::new();
    for target in options.targets() {
        for (batch, publish, work) in
            [(1, Workload::Publish, Workload::Work), (BATCH, Workload::PublishBatch, Workload::WorkBatch)]
        {
            if options.workload.is_none_or(|only| only == publish || only == work) {
                measurements.extend(measure(options, &target, batch).await?);
            }
        }
    }
    report::print(&measurements, options.json);
    Ok(())
}

/// Works on the events that the publish measurement stored, so that there are enough but not too many.
async fn measure(options: &Options, target: &ServerTarget, batch: usize) -> Result<Vec<Measurement>, AnyError> {
    let (mut publish, mut work) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let (store, connections) = (target.name(), usize::from(options.connections));
        eprintln!("{store}: {connections} connections, batches of {batch}, round {round}");
        let server = target.server().await?;
        let load = Load { server: server.address, connections, batch, time: options.time(10) };
        let (published, events) = measure_round(&server, load.publish()).await?;
        publish.push(published);
        if options.is_work() {
            work.push(measure_round(&server, load.work(events)).await?.0);
        }
        server.stop()?;
    }
    let row = |workload, rounds| Measurement::new(target.name(), workload, options.connections, batch, rounds);
    let publish = (!options.is_only_work()).then_some(("publish", publish));
    let rows = publish.into_iter().chain([("work", work)]).filter(|(_, rounds)| !rounds.is_empty());
    Ok(rows.map(|(workload, rounds)| row(workload, rounds)).collect())
}

impl Options {
    fn is_work(&self) -> bool {
        !matches!(self.workload, Some(Workload::Publish | Workload::PublishBatch))
    }

    fn is_only_work(&self) -> bool {
        matches!(self.workload, Some(Workload::Work | Workload::WorkBatch))
    }
}

/// Measures one round with its cost for the server; also returns the number of events.
async fn measure_round(
    server: &Server,
    load: impl Future<Output = Result<Outcome, AnyError>>,
) -> Result<(Round, usize), AnyError> {
    let before = server.usage();
    let outcome = load.await?;
    let events = outcome.events;
    Ok((Round::new(outcome, before.zip(server.usage())), events))
}
