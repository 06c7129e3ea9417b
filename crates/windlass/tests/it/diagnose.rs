//! Diagnosis of PostgreSQL servers and SQLite files that have real faults. Most tests also apply the advice of a
//! finding.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use windlass::{Finding, FindingLevel, Queue, Timestamp};
use windlass_testkit::Kind;

use crate::bed::{Bed, run};
use crate::support::after;

mod file;
mod rights;
mod server;

const MINUTE: Duration = Duration::from_secs(60);

/// Diagnoses the queue and returns the finding of one check.
async fn finding(queue: &Queue, check: &str) -> Finding {
    let findings = queue.diagnose().await.expect("an open queue can be diagnosed");
    findings.into_iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("there is no check '{check}'"))
}

async fn level(queue: &Queue, check: &str) -> FindingLevel {
    finding(queue, check).await.level
}

/// A timestamp in the future, by the clock of this machine.
fn from_now(by: Duration) -> Timestamp {
    after(windlass::Clock::system().now(), by)
}

/// The SQL statement in an advice that begins with `begins`, up to the semicolon.
fn statement(finding: &Finding, begins: &str) -> String {
    let advice = finding.advice.as_ref().expect("there is advice");
    let from = advice.find(begins).unwrap_or_else(|| panic!("{begins:?} is not in {advice:?}"));
    advice[from..].split(';').next().unwrap_or_default().trim().to_owned()
}

const HOUR: Duration = Duration::from_secs(3_600);

/// The checks that `docs/doctor.md` explains.
fn checks_in_guide() -> BTreeSet<String> {
    let guide = include_str!("../../../../docs/doctor.md");
    let tables = guide.split("## Both databases").nth(1).expect("the guide has tables");
    tables.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect()
}

#[test]
fn guide_explains_exactly_the_existing_checks() {
    // The HTTP server adds this check.
    let found = Mutex::new(BTreeSet::from(["access".to_owned()]));
    for kind in [Kind::Sqlite, Kind::Postgres] {
        run(kind, async |bed: &Bed| {
            let findings = bed.queue.diagnose().await.unwrap();
            found.lock().unwrap().extend(findings.iter().map(|finding| finding.check.to_string()));
        });
    }
    assert_eq!(found.into_inner().unwrap(), checks_in_guide());
}
