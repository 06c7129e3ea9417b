//! Health checks of the whole installation, as shown by `windlass doctor`.
//!
//! [`checks`] lists the checks and reads their facts from the store. The other modules assess those facts without
//! I/O: [`work`] and [`maintenance`] for the queue, [`schema`] for the schema, `server` for PostgreSQL and `file` for
//! SQLite.

use std::borrow::Cow;
use std::future::Future;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::Queue;

mod checks;
#[cfg(feature = "sqlite")]
pub(crate) mod file;
mod format;
pub(crate) mod maintenance;
pub(crate) mod schema;
#[cfg(feature = "postgres")]
pub(crate) mod server;
mod unavailable;
pub(crate) mod work;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingLevel {
    /// Nothing to do.
    Ok,
    /// Worth knowing; it may be intended.
    Notice,
    /// It costs something now, or will cause a failure if it is not fixed.
    Warning,
    /// Something does not work, or stored data is at risk.
    Problem,
}

impl FindingLevel {
    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            FindingLevel::Ok => "ok",
            FindingLevel::Notice => "notice",
            FindingLevel::Warning => "warning",
            FindingLevel::Problem => "problem",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// The name of the check. It stays the same across versions.
    pub check: Cow<'static, str>,
    /// The severity.
    pub level: FindingLevel,
    /// The finding in one line, with its numbers.
    pub summary: String,
    /// How to fix it, with the exact command or statement.
    pub advice: Option<String>,
}

/// The assessment of a check's facts, before it is attached to the check's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assessment {
    pub level: FindingLevel,
    pub summary: String,
    pub advice: Option<String>,
}

impl Assessment {
    pub fn ok(summary: impl Into<String>) -> Assessment {
        Assessment { level: FindingLevel::Ok, summary: summary.into(), advice: None }
    }

    pub fn new(level: FindingLevel, summary: impl Into<String>, advice: impl Into<String>) -> Assessment {
        Assessment { level, summary: summary.into(), advice: Some(advice.into()) }
    }

    pub fn into_finding(self, check: &'static str) -> Finding {
        Finding { check: check.into(), level: self.level, summary: self.summary, advice: self.advice }
    }
}

/// Why a check could not be done.
#[derive(Debug)]
pub(crate) enum CheckFailure {
    Failed(Error),
    /// The role lacks a permission; `grant` is the statement that grants it.
    #[cfg(feature = "postgres")]
    Refused {
        detail: String,
        grant: String,
    },
}

impl From<Error> for CheckFailure {
    fn from(error: Error) -> CheckFailure {
        CheckFailure::Failed(error)
    }
}

impl CheckFailure {
    fn into_assessment(self) -> Assessment {
        match self {
            CheckFailure::Failed(error) => Assessment::new(
                FindingLevel::Warning,
                format!("could not be checked: {error}"),
                "fix that and run the check again; the other checks do not depend on it",
            ),
            #[cfg(feature = "postgres")]
            CheckFailure::Refused { detail, grant } => {
                Assessment::new(FindingLevel::Notice, format!("no permission to check: {detail}"), grant)
            }
        }
    }
}

type CheckResult = Result<Assessment, CheckFailure>;

/// Time limit of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit of all checks together: servers end a request after 30 s.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(24);

impl Queue {
    /// Checks the health of the whole installation: the database, and the work in all its namespaces. Returns one
    /// finding per check, whatever its level; a check that fails is itself a finding. Returns `Err` only if the queue
    /// is closed.
    ///
    /// It reads a bounded number of rows and no history, changes nothing, and takes at most half a minute if the
    /// database is slow. Only one diagnosis runs at a time in a process.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let _guard = self.core().diagnosing.lock().await;
        let mut findings = Findings::start();
        let answered = findings.run_check("database", self.check_reachable()).await;
        let Some(now) = answered else { return findings.into_result() };
        #[cfg(feature = "sqlite")]
        if let Some(store) = self.store().sqlite() {
            checks::file(&mut findings, store).await;
        }
        #[cfg(feature = "postgres")]
        if let Some(store) = self.store().postgres() {
            checks::server(&mut findings, self, store, now).await;
        }
        checks::schema(&mut findings, self).await;
        checks::work(&mut findings, self, now).await;
        findings.into_result()
    }

    /// Reads the whole SQLite file and checks it for damage, without a time limit. Returns the finding `integrity`,
    /// for which [`Queue::diagnose`] takes only a fifth of a second. `None` on PostgreSQL, which verifies its own
    /// pages.
    pub async fn check_integrity(&self) -> Result<Option<Finding>> {
        #[cfg(feature = "sqlite")]
        if let Some(store) = self.store().sqlite() {
            let assessment = match store.integrity(None).await {
                Ok(found) => file::integrity(&found, store.file_bytes()),
                Err(failure) => failure.into_assessment(),
            };
            return Ok(Some(assessment.into_finding("integrity")));
        }
        Ok(None)
    }

    /// Reads the database's time, and reports how long the database took to answer.
    async fn check_reachable(&self) -> Result<(Timestamp, Assessment), CheckFailure> {
        let started = Instant::now();
        let now = self.store().now(self.now()).await?;
        // The clock may be this process's own, so read something from the database as well.
        self.store().schema_versions().await?;
        Ok((now, Assessment::ok(format!("answers within {} ms", started.elapsed().as_millis().max(1)))))
    }
}

/// The findings so far, and when the time for the remaining checks ends.
struct Findings {
    deadline: Instant,
    found: Vec<Finding>,
    closed: bool,
}

impl Findings {
    fn start() -> Findings {
        Findings { deadline: Instant::now() + TOTAL_TIMEOUT, found: Vec::new(), closed: false }
    }

    /// Runs one check. A failure becomes its finding and does not stop the following checks.
    async fn check(&mut self, check: &'static str, check_future: impl Future<Output = CheckResult>) {
        self.run_check(check, async { Ok(((), check_future.await?)) }).await;
    }

    /// The same, for a check whose facts other checks need.
    async fn run_check<T>(
        &mut self,
        check: &'static str,
        check_future: impl Future<Output = Result<(T, Assessment), CheckFailure>>,
    ) -> Option<T> {
        let remaining = self.deadline.saturating_duration_since(Instant::now()).min(CHECK_TIMEOUT);
        let (facts, assessment) = match tokio::time::timeout(remaining, check_future).await {
            Ok(Ok((facts, assessment))) => (Some(facts), assessment),
            Ok(Err(failure)) => {
                self.closed |= matches!(failure, CheckFailure::Failed(Error::Closed));
                (None, unavailable::assess_failure(failure, check))
            }
            Err(_) => (None, timed_out(remaining)),
        };
        self.found.push(assessment.into_finding(check));
        facts
    }

    fn into_result(self) -> Result<Vec<Finding>> {
        if self.closed { Err(Error::Closed) } else { Ok(self.found) }
    }
}

fn timed_out(time_limit: Duration) -> Assessment {
    let summary = match time_limit {
        Duration::ZERO => format!("not checked: the previous checks took more than {} s", TOTAL_TIMEOUT.as_secs()),
        time_limit => format!("could not be checked: no answer within {} s", time_limit.as_secs()),
    };
    Assessment::new(
        FindingLevel::Warning,
        summary,
        "check the load of the database and its disk, and run the check again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_serialized_by_name() {
        let levels = [FindingLevel::Ok, FindingLevel::Notice, FindingLevel::Warning, FindingLevel::Problem];
        assert!(levels.is_sorted());
        for level in levels {
            assert_eq!(serde_json::to_string(&level).unwrap(), format!("\"{}\"", level.as_str()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_or_hanging_check_is_a_finding() {
        let mut findings = Findings::start();
        let locked = Error::DatabaseLocked { detail: "busy".to_owned() };
        findings.check("fails", async { Err(locked.into()) }).await;
        findings.check("hangs", std::future::pending()).await;
        findings.check("works", async { Ok(Assessment::ok("fine")) }).await;
        let shown: Vec<_> = findings.found.iter().map(|found| (&*found.check, found.level, &*found.summary)).collect();
        let expected = [
            ("fails", FindingLevel::Warning, "could not be checked: the database is locked by another process: busy"),
            ("hangs", FindingLevel::Warning, "could not be checked: no answer within 8 s"),
            ("works", FindingLevel::Ok, "fine"),
        ];
        assert_eq!(shown, expected);
        assert!(findings.into_result().is_ok());
    }

    #[tokio::test]
    async fn closed_queue_is_an_error() {
        let mut findings = Findings::start();
        findings.check("any", async { Err(Error::Closed.into()) }).await;
        assert_eq!(findings.into_result(), Err(Error::Closed));
    }
}
