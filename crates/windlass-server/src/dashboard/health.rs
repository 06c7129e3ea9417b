//! `/ui/{namespace}/health`: how upkeep goes.

use askama::Template;
use axum::Router;
use axum::routing::get;
use windlass::{MaintenanceTask, MaintenanceTaskView};

use super::Answer;
use super::format::{Badge, When, count, span};
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/health", get(show))
}

#[derive(Template)]
#[template(path = "health.html")]
struct Health {
    shell: Shell,
    tasks: Vec<Row>,
    /// Whether the visitor may know of all namespaces.
    may_examine: bool,
}

struct Row {
    view: MaintenanceTaskView,
    what: &'static str,
    badge: Badge,
    every: String,
    last: Option<When>,
    took: String,
    done: String,
    next: When,
}

async fn show(visit: Visit) -> Answer {
    let tasks = visit.queue.maintenance_tasks().await?;
    let row = |view: MaintenanceTaskView| Row {
        what: what(view.task),
        badge: state(&view, visit.now),
        every: span(view.every_ms),
        last: view.last_run_at.map(|at| When::new(at, visit.now)),
        took: view.took_ms.map(span).unwrap_or_default(),
        done: view.done.map(count).unwrap_or_default(),
        next: When::new(view.next_at, visit.now),
        view,
    };
    page(&Health {
        shell: visit.shell(Tab::Health, "Health"),
        tasks: tasks.into_iter().map(row).collect(),
        may_examine: visit.caller.is_for_all(),
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

fn what(task: MaintenanceTask) -> &'static str {
    match task {
        MaintenanceTask::ReleaseExpired => "Brings back what run-out leases hold",
        MaintenanceTask::Expire => "Buries what is past its deadline",
        MaintenanceTask::Backfill => "Gives new subscriptions their past",
        MaintenanceTask::Prune => "Clears away what nobody needs",
        MaintenanceTask::Reschedule => "Puts schedules right after a clock was put back",
        MaintenanceTask::Partitions => "Makes months of history ahead, and drops old ones",
        MaintenanceTask::Retain => "Deletes history that is kept no longer",
        MaintenanceTask::Sample => "Counts, for charts",
        MaintenanceTask::ThinSamples => "Puts old counts together",
        _ => "",
    }
}
