//! `/ui/{namespace}/health/findings`: the whole installation, examined. It takes a second or more, so it is a page of its
//! own that does not look again by itself.

use askama::Template;
use axum::Router;
use axum::routing::get;
use windlass::{Finding, FindingLevel};

use super::Answer;
use super::format::{Badge, counted};
use super::prose::{Piece, prose};
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;
use crate::routes::findings;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/health/findings", get(show))
}

#[derive(Template)]
#[template(path = "findings.html")]
struct Findings {
    shell: Shell,
    verdict: String,
    rows: Vec<Row>,
}

struct Row {
    check: &'static str,
    badge: Badge,
    summary: Vec<Piece>,
    advice: Vec<Piece>,
}

impl From<Finding> for Row {
    fn from(found: Finding) -> Row {
        Row {
            check: found.check,
            badge: badge(found.level),
            summary: prose(&found.summary),
            advice: prose(found.advice.as_deref().unwrap_or_default()),
        }
    }
}

async fn show(visit: Visit) -> Answer {
    let mut found = findings(&visit.app, &visit.caller).await?;
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    page(&Findings {
        shell: visit.shell(Tab::Health, "Findings"),
        verdict: verdict(&found),
        rows: found.into_iter().map(Row::from).collect(),
    })
}

/// How many of the checks came to something.
fn verdict(found: &[Finding]) -> String {
    let of = |level| found.iter().filter(|finding| finding.level == level).count();
    let told: Vec<String> =
        [(FindingLevel::Problem, "problem", "problems"), (FindingLevel::Warning, "warning", "warnings")]
            .into_iter()
            .filter(|(level, ..)| of(*level) > 0)
            .map(|(level, one, many)| counted(of(level), one, many))
            .collect();
    match told.is_empty() {
        true => format!("All is well: {}", counted(found.len(), "check", "checks")),
        false => format!("{} in {}", told.join(" and "), counted(found.len(), "check", "checks")),
    }
}

fn badge(level: FindingLevel) -> Badge {
    match level {
        FindingLevel::Ok => Badge::new("good", "ok"),
        FindingLevel::Notice => Badge::new("calm", "notice"),
        FindingLevel::Warning => Badge::new("warn", "warning"),
        FindingLevel::Problem => Badge::new("bad", "problem"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts_what_is_bad() {
        let finding = |level| Finding { check: "a", level, summary: String::new(), advice: None };
        let table = [
            (vec![FindingLevel::Ok], "All is well: 1 check"),
            (vec![FindingLevel::Ok, FindingLevel::Notice], "All is well: 2 checks"),
            (vec![FindingLevel::Warning, FindingLevel::Ok], "1 warning in 2 checks"),
            (
                vec![FindingLevel::Problem, FindingLevel::Problem, FindingLevel::Warning],
                "2 problems and 1 warning in 3 checks",
            ),
        ];
        for (levels, words) in table {
            assert_eq!(verdict(&levels.into_iter().map(finding).collect::<Vec<_>>()), words);
        }
    }
}
