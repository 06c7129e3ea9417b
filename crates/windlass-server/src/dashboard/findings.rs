//! `/ui/{namespace}/health/findings`: the diagnosis of the installation. It takes a second or more, so it has its own
//! page, which is not updated automatically.

use std::borrow::Cow;

use askama::Template;
use axum::Router;
use axum::routing::get;
use windlass::{Finding, FindingLevel};

use super::PageResult;
use super::format::{Badge, pluralize};
use super::inline_code::{TextPart, split_code};
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use crate::app::App;
use crate::routes::collect_findings;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/health/findings", get(show))
}

#[derive(Template)]
#[template(path = "findings.html")]
struct Findings {
    layout: Layout,
    summary: String,
    rows: Vec<Row>,
}

struct Row {
    check: Cow<'static, str>,
    badge: Badge,
    summary: Vec<TextPart>,
    advice: Vec<TextPart>,
}

impl From<Finding> for Row {
    fn from(found: Finding) -> Row {
        Row {
            check: found.check,
            badge: badge(found.level),
            summary: split_code(&found.summary),
            advice: split_code(found.advice.as_deref().unwrap_or_default()),
        }
    }
}

async fn show(ctx: PageContext) -> PageResult {
    let mut found = collect_findings(&ctx.app, &ctx.caller).await?;
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    render(&Findings {
        layout: ctx.layout(Tab::Health, "Findings"),
        summary: summary(&found),
        rows: found.into_iter().map(Row::from).collect(),
    })
}

/// A summary of the findings.
fn summary(found: &[Finding]) -> String {
    let of = |level| found.iter().filter(|finding| finding.level == level).count();
    let parts: Vec<String> =
        [(FindingLevel::Problem, "problem", "problems"), (FindingLevel::Warning, "warning", "warnings")]
            .into_iter()
            .filter(|(level, ..)| of(*level) > 0)
            .map(|(level, one, many)| pluralize(of(level), one, many))
            .collect();
    match parts.is_empty() {
        true => format!("No problems found: {}", pluralize(found.len(), "check", "checks")),
        false => format!("{} in {}", parts.join(" and "), pluralize(found.len(), "check", "checks")),
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
    fn summary_counts_problems_and_warnings() {
        let finding = |level| Finding { check: "a".into(), level, summary: String::new(), advice: None };
        let table = [
            (vec![FindingLevel::Ok], "No problems found: 1 check"),
            (vec![FindingLevel::Ok, FindingLevel::Notice], "No problems found: 2 checks"),
            (vec![FindingLevel::Warning, FindingLevel::Ok], "1 warning in 2 checks"),
            (
                vec![FindingLevel::Problem, FindingLevel::Problem, FindingLevel::Warning],
                "2 problems and 1 warning in 3 checks",
            ),
        ];
        for (levels, words) in table {
            assert_eq!(summary(&levels.into_iter().map(finding).collect::<Vec<_>>()), words);
        }
    }
}
