//! `windlass doctor`: diagnoses an installation and prints findings with advice.

use std::time::Duration;

use anstyle::Style;
use clap::Args;
use indicatif::ProgressBar;
use windlass::Queue;
use windlass_api::{DoctorBody, Finding, FindingLevel};

use super::LocationArgs;
use crate::Result;
use crate::api::{Api, Unreachable};
use crate::exit::{self, AlreadyReported, UsageError};
use crate::output::{
    BAD, BUSY, FAINT, GOOD, HEADING, WARN, paint, pluralize, print, print_json, sanitize, terminal_width, wrap_line,
};

/// Find what is wrong with an installation, and how to fix it
///
/// Looks at the database and at the work in all namespaces; nothing is changed. docs/doctor.md explains every check.
///
/// The exit code is 0 where nothing is worse than a notice, 1 where there is a warning or a problem, and 5 where the
/// database or the server cannot be reached.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass doctor
  windlass doctor --quiet --database postgres://me@host/db || echo 'windlass needs attention'
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
    common: LocationArgs,
}

impl Doctor {
    pub async fn run(self) -> Result {
        match self.diagnose().await {
            Ok((report, text)) => {
                let code = u8::from(report.level > FindingLevel::Notice);
                self.print_report(&report, &text, code)
            }
            Err(error) => match self.unreachable_report(&*error) {
                Some(report) => {
                    let text = serde_json::to_string(&report)?;
                    self.print_report(&report, &text, exit::code(&*error))
                }
                None => Err(error),
            },
        }
    }

    /// Returns the report, and its JSON.
    async fn diagnose(&self) -> Result<(DoctorBody, String)> {
        let target = self.common.location.clone().namespace(windlass::DEFAULT_NAMESPACE);
        target
            .with_api(async |api| {
                let file_queue = if self.full { Some(local_queue(api)?) } else { None };
                let response = api.get("/doctor", &[]).await?;
                let mut report: DoctorBody = response.json()?;
                let Some(queue) = file_queue else { return Ok((report, response.text)) };
                replace_finding(&mut report, check_integrity(queue).await?)?;
                let text = serde_json::to_string(&report)?;
                Ok((report, text))
            })
            .await
    }

    /// If the database or server could not be reached, returns a report that says so. Returns `None` for other errors.
    fn unreachable_report(&self, error: &(dyn std::error::Error + 'static)) -> Option<DoctorBody> {
        let finding = match error.downcast_ref::<windlass::Error>() {
            Some(error) => Finding::database_unavailable(&self.common.location.database.url, error),
            None => Finding {
                check: "server".into(),
                level: FindingLevel::Problem,
                summary: error.downcast_ref::<Unreachable>()?.to_string(),
                advice: Some("see that `windlass serve` runs there, and that --server names it".to_owned()),
            },
        };
        Some(DoctorBody { level: FindingLevel::Problem, findings: vec![finding] })
    }

    fn print_report(&self, report: &DoctorBody, text: &str, code: u8) -> Result {
        let printed = if self.common.json {
            print_json(text)
        } else if !self.quiet || report.level > FindingLevel::Ok {
            print(&format_report(report, &self.common.location.display_name(), self.quiet, terminal_width()))
        } else {
            Ok(())
        };
        // The findings decide the exit code, even if stdout was closed early.
        if code == 0 { printed } else { Err(AlreadyReported(code).into()) }
    }
}

/// Returns the queue if this process has opened the database itself.
fn local_queue(api: &Api) -> Result<&Queue> {
    let queue = api.queue().ok_or_else(|| {
        UsageError(
            "--full: a server is not asked to read its whole file; run it where the file is, with --database"
                .to_owned(),
        )
    })?;
    Ok(queue)
}

/// Checks the whole SQLite file, with a spinner meanwhile.
async fn check_integrity(queue: &Queue) -> Result<Finding> {
    let progress = ProgressBar::new_spinner().with_message("reading the whole file");
    progress.enable_steady_tick(Duration::from_millis(200));
    let found = queue.check_integrity().await?;
    progress.finish_and_clear();
    Ok(found.ok_or_else(|| UsageError("--full: is for SQLite; PostgreSQL has pg_amcheck".to_owned()))?)
}

/// Replaces the finding of the same check.
fn replace_finding(report: &mut DoctorBody, new: Finding) -> Result {
    let old = report.findings.iter_mut().find(|old| old.check == new.check);
    *old.ok_or("there is no such check")? = new;
    report.level = report.findings.iter().map(|finding| finding.level).max().unwrap_or(FindingLevel::Ok);
    Ok(())
}

/// Each level's name and style, the worst first.
const LEVELS: [(FindingLevel, &str, Style); 4] = [
    (FindingLevel::Problem, "problem", BAD),
    (FindingLevel::Warning, "warning", WARN),
    (FindingLevel::Notice, "notice", BUSY),
    (FindingLevel::Ok, "ok", GOOD),
];

fn format_report(report: &DoctorBody, location: &str, quiet: bool, width: Option<usize>) -> String {
    let of = |level: FindingLevel| report.findings.iter().filter(move |finding| finding.level == level);
    let not_ok = LEVELS.iter().filter(|(level, ..)| *level > FindingLevel::Ok);
    let counts = not_ok.map(|(level, name, _)| (of(*level).count() as u64, name)).filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, name)| pluralize(count, name)).collect();
    let all = pluralize(report.findings.len() as u64, "check");
    let verdict = if counts.is_empty() { "all is well".to_owned() } else { counts.join(", ") };
    let mut text = format!("{}: {all}, {verdict}", paint(&sanitize(location), HEADING));
    let names = report.findings.iter().filter(|finding| !quiet || finding.level > FindingLevel::Ok);
    let indent = names.map(|finding| finding.check.chars().count()).max().unwrap_or(0) + 4;
    for (level, name, style) in LEVELS.iter().filter(|(level, ..)| !quiet || *level > FindingLevel::Ok) {
        if of(*level).next().is_none() {
            continue;
        }
        text.push_str(&format!("\n\n{}", paint(name, *style)));
        for finding in of(*level) {
            let summary = wrap_hanging(&sanitize(&finding.summary), indent, width);
            text.push_str(&format!("\n  {:rest$}{summary}", sanitize(&finding.check), rest = indent - 2));
            if let Some(advice) = &finding.advice {
                let advice = wrap_hanging(&format!("→ {}", sanitize(advice)), indent, width);
                text.push_str(&format!("\n{:indent$}{}", "", paint(&advice, FAINT)));
            }
        }
    }
    text
}

/// Wraps the text and indents all lines but the first.
fn wrap_hanging(text: &str, indent: usize, width: Option<usize>) -> String {
    wrap_line(text, width, indent).join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(check: &'static str, level: FindingLevel, advice: Option<&str>) -> Finding {
        let advice = advice.map(str::to_owned);
        Finding { check: check.into(), level, summary: format!("{check} is so"), advice }
    }

    fn without_style(report: &DoctorBody, quiet: bool, width: Option<usize>) -> String {
        anstream::adapter::strip_str(&format_report(report, "db", quiet, width)).to_string()
    }

    #[test]
    fn worst_findings_come_first_and_lines_fit() {
        let findings = vec![
            finding("a", FindingLevel::Ok, None),
            finding("longer", FindingLevel::Warning, Some("do this and that and then something else")),
            finding("c", FindingLevel::Problem, Some("call \u{1b}[31m")),
            finding("d", FindingLevel::Warning, None),
        ];
        let report = DoctorBody { level: FindingLevel::Problem, findings };
        let head = "db: 4 checks, 1 problem, 2 warnings\n\nproblem\n  c       c is so\n          → call ";
        let all = without_style(&report, false, None);
        assert!(all.starts_with(head) && !all.contains('\u{1b}'), "{all}");
        assert!(all.ends_with("\n  d       d is so\n\nok\n  a       a is so"), "{all}");
        let quiet = without_style(&report, true, Some(40));
        assert!(!quiet.contains("\nok"), "{quiet}");
        assert!(quiet.contains("\n          → do this and that and then\n          something else\n"), "{quiet}");
        assert!(quiet.lines().all(|line| line.chars().count() <= 40), "{quiet}");
    }

    #[test]
    fn finding_replaces_one_of_the_same_check() {
        let findings = vec![finding("a", FindingLevel::Ok, None), finding("integrity", FindingLevel::Problem, None)];
        let mut report = DoctorBody { level: FindingLevel::Problem, findings };
        replace_finding(&mut report, finding("integrity", FindingLevel::Ok, None)).unwrap();
        assert_eq!((report.level, report.findings.len()), (FindingLevel::Ok, 2));
        assert!(replace_finding(&mut report, finding("b", FindingLevel::Ok, None)).is_err());
        assert_eq!(without_style(&report, true, None), "db: 2 checks, all is well");
    }
}
