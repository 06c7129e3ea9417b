//! Compares Windlass with its peers: every system under the same workloads, on the same server, in one run.
//!
//! Start with [`workloads`] for what is measured, [`systems`] for the peers, and [`runner`] for the order. A system
//! is driven through its adapter process with the [`protocol`].

mod adapter_process;
mod broker;
mod environment;
mod figures;
mod install;
mod machine;
mod process_group;
pub mod protocol;
mod report;
mod results;
mod runner;
mod session;
mod sizes;
mod svg;
mod systems;
mod vacuum_blocker;
mod verdicts;
mod wal;
mod workloads;

use std::path::PathBuf;

use clap::Args;

use self::machine::Machine;
use self::results::Results;
use self::runner::Runner;
use self::sizes::Scale;
use self::systems::{SYSTEMS, Storage, System};
use self::verdicts::verdicts;
use self::workloads::{WORKLOADS, Workload};
use crate::AnyError;

#[derive(Args)]
pub struct Options {
    /// Only these systems; see --list.
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// Only these workloads; see --list.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Measurements of each case; the median counts. The longest workloads run once unless they are named.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Scale of event counts and durations, such as 0.1 for a trial run.
    #[arg(long, default_value_t = 1.0)]
    events_scale: f64,
    /// alone, held-snapshot, long-writer, readers: duration in seconds [default: 180; readers 90]
    #[arg(long)]
    hold_seconds: Option<u64>,
    /// Write all figures to this file after each measurement.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report to this file after each measurement, instead of to stdout at the end.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write a chart to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Use installed peers only; install nothing.
    #[arg(long)]
    no_install: bool,
    /// Fail unless every measured claim holds.
    #[arg(long)]
    check: bool,
    /// List systems and workloads.
    #[arg(long)]
    list: bool,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        let known =
            SYSTEMS.iter().filter(|system| self.systems.is_empty() || self.systems.iter().any(|s| s == system.name));
        !self.list && known.into_iter().any(|system| system.storage == Storage::Postgres)
    }

    fn scale(&self) -> Scale {
        Scale { events: self.events_scale.clamp(0.001, 100.0), hold_seconds: self.hold_seconds }
    }
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    if options.list {
        print!("{}", list());
        return Ok(());
    }
    let systems: Vec<System> = chosen(SYSTEMS, &options.systems, "system", |system| system.name)?;
    let mut workloads: Vec<Workload> = chosen(WORKLOADS, &options.workloads, "workload", |workload| workload.id)?;
    if !options.workloads.is_empty() {
        workloads.iter_mut().for_each(|workload| workload.once = false);
    }
    if let (true, Some(server)) = (options.needs_postgres(), crate::postgres::url())
        && let Err(error) = wal::preallocate(&server).await
    {
        eprintln!("cannot create the server's WAL files in advance: {error}");
    }
    let machine = Machine::inspect(options.needs_postgres()).await?;
    let mut runner = Runner::new(systems, options.scale(), !options.no_install)?;
    let save = |results: &Results| write(options, &machine, results, &workloads);
    runner.run(&workloads, usize::from(options.rounds), save).await?;
    let verdicts = verdicts(&runner.results);
    if options.markdown.is_none() {
        print!("{}", report::markdown(&machine, &runner.results, &workloads, &verdicts));
    }
    match verdicts.iter().filter(|verdict| verdict.holds == Some(false)).count() {
        failed if failed > 0 && options.check => Err(format!("{failed} claims do not hold").into()),
        _ => Ok(()),
    }
}

/// Writes the requested files.
fn write(options: &Options, machine: &Machine, results: &Results, workloads: &[Workload]) -> Result<(), AnyError> {
    let verdicts = verdicts(results);
    if let Some(file) = &options.markdown {
        std::fs::write(file, report::markdown(machine, results, workloads, &verdicts))?;
    }
    if let Some(file) = &options.json {
        let all = serde_json::json!({ "machine": machine, "results": results, "claims": verdicts });
        std::fs::write(file, format!("{all:#}\n"))?;
    }
    if let Some(file) = &options.svg {
        std::fs::write(file, svg::chart(results, workloads))?;
    }
    Ok(())
}

/// The named items in the order of `all`; all items if none is named.
fn chosen<T: Clone>(all: &[T], named: &[String], what: &str, name: fn(&T) -> &'static str) -> Result<Vec<T>, AnyError> {
    if let Some(unknown) = named.iter().find(|named| all.iter().all(|one| name(one) != named.as_str())) {
        return Err(format!("there is no {what} `{unknown}`; --list shows them").into());
    }
    Ok(all.iter().filter(|one| named.is_empty() || named.iter().any(|named| named == name(one))).cloned().collect())
}

fn list() -> String {
    let mut text = String::from("systems:\n");
    text.extend(SYSTEMS.iter().map(|system| format!("  {}\n", system.name)));
    text.push_str("workloads:\n");
    text.extend(WORKLOADS.iter().map(|workload| format!("  {:<20} {}\n", workload.id, workload.title)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_workloads_must_exist() {
        let names = |named: &[&str]| {
            let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
            chosen(WORKLOADS, &named, "workload", |w| w.id).map(|w| w.iter().map(|w| w.id).collect::<Vec<_>>())
        };
        assert_eq!(names(&["drain", "publish-1"]).unwrap(), ["publish-1", "drain"]);
        assert_eq!(names(&[]).unwrap().len(), WORKLOADS.len());
        assert!(names(&["swim"]).is_err());
    }
}
