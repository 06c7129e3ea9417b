//! `/ui/{namespace}/schedules`: the list of schedules.

use askama::Template;
use axum::Router;
use axum::routing::get;
use serde::Deserialize;
use windlass::{ScheduleFilter, ScheduleRunner, ScheduleView};

use super::PageResult;
use super::cron::describe;
use super::form::link;
use super::format::{Badge, RelativeTime, pluralize};
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use crate::app::App;
use crate::extract::QueryArgs;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/schedules", get(list))
}

/// Schedules per page.
const SHOWN: usize = 50;

#[derive(Deserialize)]
struct ListArgs {
    /// Only active schedules, or only paused ones.
    active: Option<bool>,
    #[serde(default)]
    offset: usize,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct Schedules {
    layout: Layout,
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
    next: Option<RelativeTime>,
    last: Option<RelativeTime>,
}

async fn list(ctx: PageContext, QueryArgs(args): QueryArgs<ListArgs>) -> PageResult {
    let ListArgs { active, offset } = args;
    let filter = ScheduleFilter { active, limit: SHOWN, offset, ..ScheduleFilter::default() };
    let found = ctx.queue.schedules(filter).await?;
    let at = |offset: usize| {
        let offset = (offset > 0).then(|| offset.to_string().into());
        link(&ctx.path("schedules"), [("active", active.map(|active| active.to_string().into())), ("offset", offset)])
    };
    let next = offset.saturating_add(SHOWN);
    render(&Schedules {
        layout: ctx.layout(Tab::Schedules, "Schedules"),
        total: pluralize(found.total, "schedule", "schedules"),
        newer: (offset > 0).then(|| at(offset.saturating_sub(SHOWN))),
        older: ((next as u64) < found.total).then(|| at(next)),
        rows: found.items.into_iter().map(|view| row(&ctx, view)).collect(),
        active,
    })
}

fn row(ctx: &PageContext, view: ScheduleView) -> Row {
    Row {
        path: ctx.path(&format!("schedules/{}", view.id)),
        words: describe(&view.cron),
        badge: state(&view),
        next: view.next_runs.first().map(|at| RelativeTime::new(*at, ctx.now)),
        last: view.last_at.map(|at| RelativeTime::new(at, ctx.now)),
        view,
    }
}

/// The badge for active or paused.
pub(super) fn state(view: &ScheduleView) -> Badge {
    match (view.active, view.runner) {
        (false, _) => Badge::new("warn", "paused"),
        (true, ScheduleRunner::PgCron) => Badge::new("good", "by pg_cron"),
        (true, _) => Badge::new("good", "active"),
    }
}
