//! `/ui/{namespace}/schedules`: what is published by the clock.

use askama::Template;
use axum::Router;
use axum::routing::get;
use serde::Deserialize;
use windlass::{ScheduleFilter, ScheduleRunner, ScheduleView};

use super::Answer;
use super::cron::in_words;
use super::form::link;
use super::format::{Badge, When, counted};
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;
use crate::extract::Args;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/schedules", get(list))
}

/// How many a page shows.
const SHOWN: usize = 50;

#[derive(Deserialize)]
struct ListArgs {
    /// Only those that are active, or are not.
    active: Option<bool>,
    #[serde(default)]
    offset: usize,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct Schedules {
    shell: Shell,
    rows: Vec<Row>,
    total: String,
    active: Option<bool>,
    newer: Option<String>,
    older: Option<String>,
}

struct Row {
    path: String,
    view: ScheduleView,
    words: Option<String>,
    badge: Badge,
    next: Option<When>,
    last: Option<When>,
}

async fn list(visit: Visit, Args(args): Args<ListArgs>) -> Answer {
    let ListArgs { active, offset } = args;
    let filter = ScheduleFilter { active, limit: SHOWN, offset, ..ScheduleFilter::default() };
    let found = visit.queue.schedules(filter).await?;
    let at = |offset: usize| {
        let offset = (offset > 0).then(|| offset.to_string().into());
        link(&visit.path("schedules"), [("active", active.map(|active| active.to_string().into())), ("offset", offset)])
    };
    let next = offset.saturating_add(SHOWN);
    page(&Schedules {
        shell: visit.shell(Tab::Schedules, "Schedules"),
        total: counted(found.total, "schedule", "schedules"),
        newer: (offset > 0).then(|| at(offset.saturating_sub(SHOWN))),
        older: ((next as u64) < found.total).then(|| at(next)),
        rows: found.items.into_iter().map(|view| row(&visit, view)).collect(),
        active,
    })
}

fn row(visit: &Visit, view: ScheduleView) -> Row {
    Row {
        path: visit.path(&format!("schedules/{}", view.id)),
        words: in_words(&view.cron),
        badge: state(&view),
        next: view.next_runs.first().map(|at| When::new(*at, visit.now)),
        last: view.last_at.map(|at| When::new(at, visit.now)),
        view,
    }
}

/// Whether it fires.
pub(super) fn state(view: &ScheduleView) -> Badge {
    match (view.active, view.runner) {
        (false, _) => Badge::new("warn", "paused"),
        (true, ScheduleRunner::PgCron) => Badge::new("good", "by pg_cron"),
        (true, _) => Badge::new("good", "active"),
    }
}
