//! The health of a PostgreSQL server and of an SQLite file, with the real thing gone wrong.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use windlass::{Finding, FindingLevel, Queue, Timestamp};

use crate::bed::{Bed, Kind, run};
use crate::support::after;

mod file;
mod rights;
mod server;

const MINUTE: Duration = Duration::from_secs(60);

/// What one check comes to.
async fn finding(queue: &Queue, check: &str) -> Finding {
    let findings = queue.diagnose().await.expect("an open queue can be diagnosed");
    findings.into_iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("there is no check '{check}'"))
}

async fn level(queue: &Queue, check: &str) -> FindingLevel {
    finding(queue, check).await.level
}

/// So long from now, by the clock of this machine.
fn from_now(by: Duration) -> Timestamp {
    after(windlass::Clock::system().now(), by)
}

/// The statement in an advice that begins so, up to where the next one or the prose begins.
fn statement(finding: &Finding, begins: &str) -> String {
    let advice = finding.advice.as_ref().expect("there is advice");
    let from = advice.find(begins).unwrap_or_else(|| panic!("{begins:?} is not in {advice:?}"));
    advice[from..].split(';').next().unwrap_or_default().trim().to_owned()
}

const HOUR: Duration = Duration::from_secs(3_600);

/// The checks that the guide explains.
fn explained() -> BTreeSet<String> {
    let guide = include_str!("../../../../docs/doctor.md");
    let tables = guide.split("## Both databases").nth(1).expect("the guide has tables");
    tables.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect()
}

#[test]
fn the_guide_explains_every_check_and_no_other() {
    // A server tells of itself besides.
    let found = Mutex::new(BTreeSet::from(["access".to_owned()]));
    for kind in [Kind::Sqlite, Kind::Postgres] {
        run(kind, async |bed: &Bed| {
            let findings = bed.queue.diagnose().await.unwrap();
            found.lock().unwrap().extend(findings.iter().map(|finding| finding.check.to_owned()));
        });
    }
    assert_eq!(found.into_inner().unwrap(), explained());
}
