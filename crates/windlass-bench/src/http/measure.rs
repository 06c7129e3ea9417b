//! The matrix: publish and work, one by one and in batches, on each store.

use super::load::{Load, Outcome};
use super::report::{self, Measurement, Round};
use super::server::{Place, Server};
use super::{Options, Workload};
use crate::AnyError;

const BATCH: usize = 100;

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut measurements = Vec::new();
    for place in options.places() {
        for (batch, publish, work) in
            [(1, Workload::Publish, Workload::Work), (BATCH, Workload::PublishBatch, Workload::WorkBatch)]
        {
            if options.workload.is_none_or(|only| only == publish || only == work) {
                measurements.extend(measure(options, &place, batch).await?);
            }
        }
    }
    report::print(&measurements, options.json);
    Ok(())
}

/// What was published is what is worked on: there is no other way to have enough, yet not too much.
async fn measure(options: &Options, place: &Place, batch: usize) -> Result<Vec<Measurement>, AnyError> {
    let (mut publish, mut work) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let (store, connections) = (place.name(), usize::from(options.connections));
        eprintln!("{store}: {connections} connections, batches of {batch}, round {round}");
        let server = place.server().await?;
        let load = Load { server: server.address, connections, batch, time: options.time(10) };
        let (published, events) = watched(&server, load.publish()).await?;
        publish.push(published);
        if options.is_work() {
            work.push(watched(&server, load.work(events)).await?.0);
        }
        server.stop()?;
    }
    let row = |workload, rounds| Measurement::new(place.name(), workload, options.connections, batch, rounds);
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

/// One round, with what it cost the server; and how many events it was.
async fn watched(
    server: &Server,
    load: impl Future<Output = Result<Outcome, AnyError>>,
) -> Result<(Round, usize), AnyError> {
    let before = server.usage();
    let outcome = load.await?;
    let events = outcome.events;
    Ok((Round::new(outcome, before.zip(server.usage())), events))
}
