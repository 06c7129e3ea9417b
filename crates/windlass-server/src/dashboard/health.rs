//! `/ui/{namespace}/health`: the state of the maintenance tasks.

use askama::Template;
use axum::Router;
use axum::routing::get;
use windlass::{MaintenanceTask, MaintenanceTaskView};

use super::PageResult;
use super::format::{Badge, RelativeTime, count, duration};
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use crate::app::App;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/health", get(show))
}

#[derive(Template)]
#[template(path = "health.html")]
struct Health {
    layout: Layout,
    tasks: Vec<Row>,
    /// Whether the caller may see all namespaces.
    may_examine: bool,
}

struct Row {
    view: MaintenanceTaskView,
    description: &'static str,
    badge: Badge,
    every: String,
    last: Option<RelativeTime>,
    took: String,
    done: String,
    next: RelativeTime,
}

async fn show(ctx: PageContext) -> PageResult {
    let tasks = ctx.queue.maintenance_tasks().await?;
    let row = |view: MaintenanceTaskView| Row {
        description: task_description(view.task),
        badge: state(&view, ctx.now),
        every: duration(view.every_ms),
        last: view.last_run_at.map(|at| RelativeTime::new(at, ctx.now)),
        took: view.took_ms.map(duration).unwrap_or_default(),
        done: view.done.map(count).unwrap_or_default(),
        next: RelativeTime::new(view.next_at, ctx.now),
        view,
    };
    render(&Health {
        layout: ctx.layout(Tab::Health, "Health"),
        tasks: tasks.into_iter().map(row).collect(),
        may_examine: ctx.caller.covers_all_namespaces(),
    })
}

fn state(view: &MaintenanceTaskView, now: windlass::Timestamp) -> Badge {
    let late = chrono::TimeDelta::milliseconds(3 * view.every_ms as i64).max(chrono::TimeDelta::minutes(3));
    match &view.error {
        Some(_) => Badge::new("bad", "failed"),
        None if now - view.next_at > late => Badge::new("warn", "overdue"),
        None if view.last_run_at.is_none() => Badge::new("calm", "not yet"),
        None => Badge::new("good", "fine"),
    }
}

fn task_description(task: MaintenanceTask) -> &'static str {
    match task {
        MaintenanceTask::ReleaseExpired => "Releases deliveries with an expired lease",
        MaintenanceTask::Expire => "Expires deliveries past their deadline",
        MaintenanceTask::Backfill => "Adds past events to new subscriptions",
        MaintenanceTask::Prune => "Deletes old nodes, keys and other leftovers",
        MaintenanceTask::Reschedule => "Reschedules after the clock was set back",
        MaintenanceTask::Partitions => "Creates partitions ahead and drops old ones",
        MaintenanceTask::Retain => "Deletes history past its retention",
        MaintenanceTask::Sample => "Records samples for charts",
        MaintenanceTask::ThinSamples => "Merges old samples",
        _ => "",
    }
}
