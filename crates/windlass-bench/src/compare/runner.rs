//! Runs the workloads round by round, each measurement in a new database and a new process.

use std::time::Duration;

use super::adapter_process::Adapter;
use super::environment::Environment;
use super::figures::{Figure, Figures};
use super::install::{Installed, Installer};
use super::protocol::{Open, Opened, Request, Variant};
use super::results::Results;
use super::session::Session;
use super::sizes::Scale;
use super::systems::System;
use super::workloads::{Steps, Workload};
use crate::AnyError;

pub struct Runner {
    systems: Vec<(System, Installed)>,
    installer: Installer,
    scale: Scale,
    pub results: Results,
}

impl Runner {
    pub fn new(systems: Vec<System>, scale: Scale, may_install: bool) -> Result<Runner, AnyError> {
        let (mut installer, mut results, mut found) = (Installer::new(may_install)?, Results::default(), Vec::new());
        for system in systems {
            match installer.install(&system) {
                Ok(installed) => found.push((system, installed)),
                Err(why) => {
                    eprintln!("without {}: {why}", system.name);
                    results.missing.insert(system.name, why);
                }
            }
        }
        Ok(Runner { systems: found, installer, scale, results })
    }

    /// Runs round 1 of every system, then round 2, so that disturbances of the machine affect all systems. Calls
    /// `save` after each measurement, so that an aborted run keeps its results.
    pub async fn run(
        &mut self,
        workloads: &[Workload],
        rounds: usize,
        save: impl Fn(&Results) -> Result<(), AnyError>,
    ) -> Result<(), AnyError> {
        let planned = self.plan(workloads, rounds);
        for (at, (round, workload, system, variant)) in planned.iter().enumerate() {
            let (name, left) = (self.systems[*system].0.name, planned.len() - at - 1);
            if self.results.find(workload.id, name, *variant).is_some_and(|before| before.problem.is_some()) {
                continue;
            }
            eprintln!("round {round}: {} {name} {}, {left} more", workload.id, variant.name());
            let measured = self.measure(workload, *system, *variant).await.map_err(|error| error.to_string());
            match &measured {
                Ok(figures) => eprintln!("  {}", line(figures)),
                Err(error) => eprintln!("  {error}"),
            }
            self.results.add(workload.id, name, *variant, measured);
            save(&self.results)?;
        }
        Ok(())
    }

    fn plan(&self, workloads: &[Workload], rounds: usize) -> Vec<(usize, Workload, usize, Variant)> {
        let mut planned = Vec::new();
        for round in 1..=rounds {
            for workload in workloads.iter().filter(|workload| round == 1 || !workload.once) {
                for (at, (system, _)) in self.systems.iter().enumerate().filter(|(_, s)| workload.is_for(&s.0)) {
                    planned.extend(workload.variants_of(system).into_iter().map(|v| (round, *workload, at, v)));
                }
            }
        }
        planned
    }

    async fn measure(&mut self, workload: &Workload, at: usize, variant: Variant) -> Result<Figures, AnyError> {
        let (system, installed) = &self.systems[at];
        let environment = Environment::empty(system, installed).await?;
        let adapter = Adapter::start(&mut installed.command(), &self.installer.log(system))?;
        let mut session = Session { adapter, environment, scale: self.scale };
        let subscriptions = match workload.steps {
            Steps::Drain(backlog) => backlog.subscriptions,
            _ => 1,
        };
        let open = Open { url: session.environment.url.clone(), variant, subscriptions };
        let opened: Opened = session.adapter.request(&Request::Open(open), Duration::ZERO).await?;
        self.results.opened.entry(system.name).or_default().insert(variant, opened);
        let figures = session.measure(workload.steps, max_rate(&self.results, system.name, variant)).await?;
        session.adapter.close().await?;
        session.environment.remove().await?;
        Ok(figures)
    }
}

/// The highest rate at which the system can both publish single events and finish them.
fn max_rate(results: &Results, system: &str, variant: Variant) -> Option<f64> {
    let rate = |workload| results.of(workload, system, variant, Figure::Rate).map(|summary| summary.median);
    match (rate("steady"), rate("publish-16")) {
        (Some(steady), Some(publish)) => Some(steady.min(publish)),
        (steady, publish) => steady.or(publish),
    }
}

fn line(figures: &Figures) -> String {
    let figures = figures.iter().map(|(figure, value)| format!("{} {}", figure.title(), figure.format(*value)));
    figures.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_rate_is_the_lower_of_publish_and_finish() {
        let mut results = Results::default();
        let rate = |rate| Ok(Figures::from([(Figure::Rate, rate)]));
        assert_eq!(max_rate(&results, "pgmq", Variant::Recommended), None);
        results.add("steady", "pgmq", Variant::Recommended, rate(20_000.0));
        assert_eq!(max_rate(&results, "pgmq", Variant::Recommended), Some(20_000.0));
        results.add("publish-16", "pgmq", Variant::Recommended, rate(7_000.0));
        assert_eq!(max_rate(&results, "pgmq", Variant::Recommended), Some(7_000.0));
    }
}
