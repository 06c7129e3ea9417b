//! The health of the whole installation: what is wrong or about to be, and what to do about it.
//!
//! Stores tell what they find. What to think of it is decided in the modules here, without I/O: [`work`] for the queue
//! itself, `server` for PostgreSQL and `file` for SQLite.

use std::future::Future;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::Queue;

mod examine;
#[cfg(feature = "sqlite")]
pub(crate) mod file;
mod say;
pub(crate) mod schema;
#[cfg(feature = "postgres")]
pub(crate) mod server;
mod unopened;
pub(crate) mod upkeep;
pub(crate) mod work;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingLevel {
    /// All is well.
    Ok,
    /// Good to know: it may well be meant.
    Notice,
    /// It costs something now, or will go wrong if nobody does anything.
    Warning,
    /// Something does not work, or what is stored is at risk.
    Problem,
}

impl FindingLevel {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            FindingLevel::Ok => "ok",
            FindingLevel::Notice => "notice",
            FindingLevel::Warning => "warning",
            FindingLevel::Problem => "problem",
        }
    }
}

/// What one check came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// Which check: a word that stays the same across versions.
    pub check: &'static str,
    /// How bad it is.
    pub level: FindingLevel,
    /// What was found, in one line, with its numbers.
    pub summary: String,
    /// What to do about it, with the exact command or statement.
    pub advice: Option<String>,
}

/// What to think of what was found.
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

    pub fn of(self, check: &'static str) -> Finding {
        Finding { check, level: self.level, summary: self.summary, advice: self.advice }
    }
}

/// Why something could not be looked at.
#[derive(Debug)]
pub(crate) enum CheckFailure {
    Failed(Error),
    /// The role may not see it; the statement that would let it.
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
    fn verdict(self) -> Assessment {
        match self {
            CheckFailure::Failed(error) => Assessment::new(
                FindingLevel::Warning,
                format!("could not be checked: {error}"),
                "put that right and run the check again; the other checks do not depend on it",
            ),
            #[cfg(feature = "postgres")]
            CheckFailure::Refused { detail, grant } => {
                Assessment::new(FindingLevel::Notice, format!("may not be looked at: {detail}"), grant)
            }
        }
    }
}

/// What becomes of a look.
type Look = Result<Assessment, CheckFailure>;

/// The longest that one check may take.
const CHECK_MAX: Duration = Duration::from_secs(8);
/// The longest that all of them together may take: servers give up on a request after 30 s.
const ALL_MAX: Duration = Duration::from_secs(24);

impl Queue {
    /// Looks into the health of the whole installation: the database, and the work in all its namespaces. One finding
    /// for each check, whatever it comes to; a check that fails is a finding itself. `Err` only where the queue is
    /// closed.
    ///
    /// It reads a bounded number of rows and no history, changes nothing, and takes at most half a minute where the
    /// database hardly answers. In one process one runs at a time.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let _alone = self.core().diagnosing.lock().await;
        let mut findings = Findings::begin();
        let answered = findings.answer("database", self.reach()).await;
        let Some(now) = answered else { return findings.unless_closed() };
        #[cfg(feature = "sqlite")]
        if let Some(store) = self.store().sqlite() {
            examine::file(&mut findings, store).await;
        }
        #[cfg(feature = "postgres")]
        if let Some(store) = self.store().postgres() {
            examine::server(&mut findings, self, store, now).await;
        }
        examine::schema(&mut findings, self).await;
        examine::work(&mut findings, self, now).await;
        findings.unless_closed()
    }

    /// Reads the whole SQLite file and looks for damage, however long that takes: the finding `integrity`, for which
    /// [`Queue::diagnose`] takes a fifth of a second only. `None` on PostgreSQL, which looks after its pages itself.
    pub async fn check_integrity(&self) -> Result<Option<Finding>> {
        #[cfg(feature = "sqlite")]
        if let Some(store) = self.store().sqlite() {
            let verdict = match store.integrity(None).await {
                Ok(found) => file::integrity(&found, store.file_bytes()),
                Err(unseen) => unseen.verdict(),
            };
            return Ok(Some(verdict.of("integrity")));
        }
        Ok(None)
    }

    /// Whether the database answers, and what its clock shows.
    async fn reach(&self) -> Result<(Timestamp, Assessment), CheckFailure> {
        let begun = Instant::now();
        let now = self.store().now(self.now()).await?;
        // The clock may be this process's: only a read shows that somebody answers.
        self.store().schema_versions().await?;
        Ok((now, Assessment::ok(format!("answers within {} ms", begun.elapsed().as_millis().max(1)))))
    }
}

/// The findings so far, and how much time is left for others.
struct Findings {
    until: Instant,
    found: Vec<Finding>,
    closed: bool,
}

impl Findings {
    fn begin() -> Findings {
        Findings { until: Instant::now() + ALL_MAX, found: Vec::new(), closed: false }
    }

    /// Does one check, alone: whatever becomes of it, the next one is done.
    async fn check(&mut self, check: &'static str, look: impl Future<Output = Look>) {
        self.answer(check, async { Ok(((), look.await?)) }).await;
    }

    /// The same, for one that others need the answer of.
    async fn answer<T>(
        &mut self,
        check: &'static str,
        look: impl Future<Output = Result<(T, Assessment), CheckFailure>>,
    ) -> Option<T> {
        let left = self.until.saturating_duration_since(Instant::now()).min(CHECK_MAX);
        let (answer, verdict) = match tokio::time::timeout(left, look).await {
            Ok(Ok((answer, verdict))) => (Some(answer), verdict),
            Ok(Err(unseen)) => {
                self.closed |= matches!(unseen, CheckFailure::Failed(Error::Closed));
                (None, unopened::verdict_of(unseen, check))
            }
            Err(_) => (None, slow(left)),
        };
        self.found.push(verdict.of(check));
        answer
    }

    fn unless_closed(self) -> Result<Vec<Finding>> {
        if self.closed { Err(Error::Closed) } else { Ok(self.found) }
    }
}

fn slow(left: Duration) -> Assessment {
    let summary = match left {
        Duration::ZERO => format!("not checked: the checks before it took more than {} s", ALL_MAX.as_secs()),
        left => format!("could not be checked: no answer within {} s", left.as_secs()),
    };
    Assessment::new(
        FindingLevel::Warning,
        summary,
        "see how busy the database and its disk are, and run the check again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_in_order_and_named_alike_everywhere() {
        let levels = [FindingLevel::Ok, FindingLevel::Notice, FindingLevel::Warning, FindingLevel::Problem];
        assert!(levels.is_sorted());
        for level in levels {
            assert_eq!(serde_json::to_string(&level).unwrap(), format!("\"{}\"", level.as_str()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_fails_or_hangs_is_a_finding_and_the_next_one_is_done() {
        let mut findings = Findings::begin();
        let locked = Error::DatabaseLocked { detail: "busy".to_owned() };
        findings.check("fails", async { Err(locked.into()) }).await;
        findings.check("hangs", std::future::pending()).await;
        findings.check("works", async { Ok(Assessment::ok("fine")) }).await;
        let shown: Vec<_> = findings.found.iter().map(|found| (found.check, found.level, &*found.summary)).collect();
        let expected = [
            ("fails", FindingLevel::Warning, "could not be checked: the database is locked by another process: busy"),
            ("hangs", FindingLevel::Warning, "could not be checked: no answer within 8 s"),
            ("works", FindingLevel::Ok, "fine"),
        ];
        assert_eq!(shown, expected);
        assert!(findings.unless_closed().is_ok());
    }

    #[tokio::test]
    async fn a_closed_queue_has_no_health() {
        let mut findings = Findings::begin();
        findings.check("any", async { Err(Error::Closed.into()) }).await;
        assert_eq!(findings.unless_closed(), Err(Error::Closed));
    }
}
