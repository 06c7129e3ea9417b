//! `windlass doctor`: what is wrong with an installation, and what to do about it.

use std::time::Duration;

use anstyle::Style;
use clap::Args;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use windlass::Queue;

use super::Anywhere;
use crate::Result;
use crate::api::{Api, Unreachable};
use crate::exit::{self, Told, Usage};
use crate::output::{BAD, BUSY, FAINT, GOOD, HEADING, WARN, clean, counted, paint, print, print_json, width, wrapped};

/// Find what is wrong with an installation, and how to mend it
///
/// Looks at the database and at the work in all namespaces; nothing is changed. docs/doctor.md explains every check.
///
/// The exit code is 0 where nothing is worse than a notice, 1 where there is a warning or a problem, and 5 where the
/// database or the server cannot be reached.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass doctor
  windlass doctor --quiet --database postgres://me@host/db || echo 'call somebody'
  windlass doctor --full
  windlass doctor --json | jq -r '.findings[] | select(.level != \"ok\") | .advice'")]
pub struct Doctor {
    /// Show only what is not ok; nothing, where all is
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    /// Read all of an SQLite file to find damage, however long that takes, and not for a moment only
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    at: Anywhere,
}

/// The answer of `/doctor`.
#[derive(Serialize, Deserialize)]
struct Report {
    level: FindingLevel,
    findings: Vec<Finding>,
}

#[derive(Serialize, Deserialize)]
struct Finding {
    check: String,
    level: FindingLevel,
    summary: String,
    advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FindingLevel {
    Ok,
    Notice,
    Warning,
    Problem,
}

impl From<windlass::FindingLevel> for FindingLevel {
    fn from(level: windlass::FindingLevel) -> FindingLevel {
        match level {
            windlass::FindingLevel::Ok => FindingLevel::Ok,
            windlass::FindingLevel::Notice => FindingLevel::Notice,
            windlass::FindingLevel::Warning => FindingLevel::Warning,
            windlass::FindingLevel::Problem => FindingLevel::Problem,
        }
    }
}

impl From<windlass::Finding> for Finding {
    fn from(finding: windlass::Finding) -> Finding {
        let windlass::Finding { check, level, summary, advice } = finding;
        Finding { check: check.to_owned(), level: level.into(), summary, advice }
    }
}

impl Doctor {
    pub async fn run(self) -> Result {
        match self.examine().await {
            Ok((report, text)) => {
                let code = u8::from(report.level > FindingLevel::Notice);
                self.tell(&report, &text, code)
            }
            Err(error) => match self.unreached(&*error) {
                Some(report) => {
                    let text = serde_json::to_string(&report)?;
                    self.tell(&report, &text, exit::code(&*error))
                }
                None => Err(error),
            },
        }
    }

    /// The report, and the answer that it was read from.
    async fn examine(&self) -> Result<(Report, String)> {
        let target = self.at.place.clone().namespace(windlass::DEFAULT_NAMESPACE);
        target
            .with(async |api| {
                let file = if self.full { Some(file(api)?) } else { None };
                let answer = api.get("/doctor", &[]).await?;
                let mut report: Report = answer.read()?;
                let Some(queue) = file else { return Ok((report, answer.text)) };
                report.replace(read_through(queue).await?)?;
                let text = serde_json::to_string(&report)?;
                Ok((report, text))
            })
            .await
    }

    /// What to say where nobody could be asked: that itself is what is wrong. `None`: it is something else.
    fn unreached(&self, error: &(dyn std::error::Error + 'static)) -> Option<Report> {
        let finding = match error.downcast_ref::<windlass::Error>() {
            Some(error) => windlass::Finding::unopened(&self.at.place.database.url, error).into(),
            None => Finding {
                check: "server".to_owned(),
                level: FindingLevel::Problem,
                summary: error.downcast_ref::<Unreachable>()?.to_string(),
                advice: Some("see that `windlass serve` runs there, and that --server names it".to_owned()),
            },
        };
        Some(Report { level: FindingLevel::Problem, findings: vec![finding] })
    }

    fn tell(&self, report: &Report, text: &str, code: u8) -> Result {
        let printed = if self.at.json {
            print_json(text)
        } else if !self.quiet || report.level > FindingLevel::Ok {
            print(&shown(report, &self.at.place.shown(), self.quiet, width()))
        } else {
            Ok(())
        };
        // What is wrong counts, even where nobody reads all of it.
        if code == 0 { printed } else { Err(Told(code).into()) }
    }
}

/// The queue whose file can be read.
fn file(api: &Api) -> Result<&Queue> {
    let queue = api.queue().ok_or_else(|| {
        Usage(
            "--full: a server is not asked to read its whole file; run it where the file is, with --database"
                .to_owned(),
        )
    })?;
    Ok(queue)
}

/// Reads the whole file, and says so meanwhile.
async fn read_through(queue: &Queue) -> Result<Finding> {
    let progress = ProgressBar::new_spinner().with_message("reading the whole file");
    progress.enable_steady_tick(Duration::from_millis(200));
    let found = queue.check_integrity().await?;
    progress.finish_and_clear();
    let found = found.ok_or_else(|| Usage("--full: is for SQLite; PostgreSQL has pg_amcheck".to_owned()))?;
    Ok(found.into())
}

impl Report {
    /// Puts a finding in the place of what the same check came to before.
    fn replace(&mut self, new: Finding) -> Result {
        let old = self.findings.iter_mut().find(|old| old.check == new.check);
        *old.ok_or("there is no such check")? = new;
        self.level = self.findings.iter().map(|finding| finding.level).max().unwrap_or(FindingLevel::Ok);
        Ok(())
    }
}

/// In singular and plural, and its colour; the worst comes first.
const LEVELS: [(FindingLevel, &str, Style); 4] = [
    (FindingLevel::Problem, "problem", BAD),
    (FindingLevel::Warning, "warning", WARN),
    (FindingLevel::Notice, "notice", BUSY),
    (FindingLevel::Ok, "ok", GOOD),
];

fn shown(report: &Report, place: &str, quiet: bool, width: Option<usize>) -> String {
    let of = |level: FindingLevel| report.findings.iter().filter(move |finding| finding.level == level);
    let some = LEVELS.iter().filter(|(level, ..)| *level > FindingLevel::Ok);
    let counts = some.map(|(level, name, _)| (of(*level).count() as u64, name)).filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, name)| counted(count, name)).collect();
    let all = counted(report.findings.len() as u64, "check");
    let verdict = if counts.is_empty() { "all is well".to_owned() } else { counts.join(", ") };
    let mut text = format!("{}: {all}, {verdict}", paint(&clean(place), HEADING));
    let names = report.findings.iter().filter(|finding| !quiet || finding.level > FindingLevel::Ok);
    let indent = names.map(|finding| finding.check.chars().count()).max().unwrap_or(0) + 4;
    for (level, name, style) in LEVELS.iter().filter(|(level, ..)| !quiet || *level > FindingLevel::Ok) {
        if of(*level).next().is_none() {
            continue;
        }
        text.push_str(&format!("\n\n{}", paint(name, *style)));
        for finding in of(*level) {
            let summary = hanging(&clean(&finding.summary), indent, width);
            text.push_str(&format!("\n  {:rest$}{summary}", clean(&finding.check), rest = indent - 2));
            if let Some(advice) = &finding.advice {
                let advice = hanging(&format!("→ {}", clean(advice)), indent, width);
                text.push_str(&format!("\n{:indent$}{}", "", paint(&advice, FAINT)));
            }
        }
    }
    text
}

/// The text in lines that fit, all but the first with this indent.
fn hanging(text: &str, indent: usize, width: Option<usize>) -> String {
    wrapped(text, width, indent).join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(check: &str, level: FindingLevel, advice: Option<&str>) -> Finding {
        let advice = advice.map(str::to_owned);
        Finding { check: check.to_owned(), level, summary: format!("{check} is so"), advice }
    }

    fn plain(report: &Report, quiet: bool, width: Option<usize>) -> String {
        anstream::adapter::strip_str(&shown(report, "db", quiet, width)).to_string()
    }

    #[test]
    fn the_worst_comes_first_and_lines_fit() {
        let findings = vec![
            finding("a", FindingLevel::Ok, None),
            finding("longer", FindingLevel::Warning, Some("do this and that and then something else")),
            finding("c", FindingLevel::Problem, Some("call \u{1b}[31m")),
            finding("d", FindingLevel::Warning, None),
        ];
        let report = Report { level: FindingLevel::Problem, findings };
        let head = "db: 4 checks, 1 problem, 2 warnings\n\nproblem\n  c       c is so\n          → call ";
        let all = plain(&report, false, None);
        assert!(all.starts_with(head) && !all.contains('\u{1b}'), "{all}");
        assert!(all.ends_with("\n  d       d is so\n\nok\n  a       a is so"), "{all}");
        let quiet = plain(&report, true, Some(40));
        assert!(!quiet.contains("\nok"), "{quiet}");
        assert!(quiet.contains("\n          → do this and that and then\n          something else\n"), "{quiet}");
        assert!(quiet.lines().all(|line| line.chars().count() <= 40), "{quiet}");
    }

    #[test]
    fn a_finding_takes_the_place_of_another() {
        let findings = vec![finding("a", FindingLevel::Ok, None), finding("integrity", FindingLevel::Problem, None)];
        let mut report = Report { level: FindingLevel::Problem, findings };
        report.replace(finding("integrity", FindingLevel::Ok, None)).unwrap();
        assert_eq!((report.level, report.findings.len()), (FindingLevel::Ok, 2));
        assert!(report.replace(finding("b", FindingLevel::Ok, None)).is_err());
        assert_eq!(plain(&report, true, None), "db: 2 checks, all is well");
    }
}
