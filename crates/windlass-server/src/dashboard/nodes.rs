//! `/ui/{namespace}/nodes`: nodes, workers, consumers and stuck events.

use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use chrono::TimeDelta;
use serde::Deserialize;
use windlass::{ConsumerView, NodeStatus, NodeView, StuckDelivery, WorkerView};

use super::PageResult;
use super::confirm::Confirm;
use super::event::RESET_REASON;
use super::form::{Form, link};
use super::format::{Badge, RelativeTime, pluralize};
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, QueryArgs};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/nodes", get(show).post(act))
}

/// Maximum number of rows in each table.
const SHOWN: usize = 100;

/// The selectable ages, in minutes, from which an event counts as stuck.
const MINUTES: [u64; 4] = [1, 5, 15, 60];

/// A consumer seen within this time is active. Consumers are recorded more often than this.
const ACTIVE_WITHIN: TimeDelta = TimeDelta::minutes(1);

#[derive(Deserialize)]
struct ShowArgs {
    minutes: Option<u64>,
}

#[derive(Template)]
#[template(path = "nodes.html")]
struct Nodes {
    layout: Layout,
    nodes: Vec<Node>,
    nodes_total: String,
    workers: Vec<Worker>,
    workers_total: String,
    stuck: Vec<Stuck>,
    minutes: u64,
    consumers: Vec<ConsumerRow>,
}

struct Node {
    view: NodeView,
    badge: Badge,
    last_heartbeat: RelativeTime,
    registered: RelativeTime,
}

struct Worker {
    view: WorkerView,
    oldest: Option<RelativeTime>,
    seen: RelativeTime,
}

struct Stuck {
    of: StuckDelivery,
    picked: RelativeTime,
    lease: RelativeTime,
}

/// A consumer and its filter.
struct ConsumerRow {
    of: ConsumerView,
    seen: RelativeTime,
    is_active: bool,
}

async fn show(ctx: PageContext, QueryArgs(args): QueryArgs<ShowArgs>) -> PageResult {
    let minutes = args.minutes.unwrap_or(MINUTES[1]);
    let older_than = Duration::from_secs(minutes.saturating_mul(60));
    let nodes = ctx.queue.nodes().await?;
    let workers = ctx.app.worker_cache.get(&ctx.queue).await?;
    let stuck = ctx.queue.stuck(older_than, SHOWN).await?;
    let mut consumers = ctx.queue.consumers().await?;
    consumers.sort_by_key(|consumer| std::cmp::Reverse(consumer.seen_at));
    let when = |at| RelativeTime::new(at, ctx.now);
    let consumer =
        |of: ConsumerView| ConsumerRow { seen: when(of.seen_at), is_active: ctx.now - of.seen_at < ACTIVE_WITHIN, of };
    let node = |view: NodeView| Node {
        badge: liveness(view.status),
        last_heartbeat: when(view.last_heartbeat),
        registered: when(view.registered_at),
        view,
    };
    let worker =
        |view: WorkerView| Worker { oldest: view.oldest_picked_at.map(when), seen: when(view.last_seen_at), view };
    let held = |of: StuckDelivery| Stuck { picked: when(of.picked_at), lease: when(of.lease_expires_at), of };
    render(&Nodes {
        layout: ctx.layout(Tab::Nodes, "Nodes"),
        nodes_total: pluralize(nodes.len(), "node", "nodes"),
        nodes: nodes.into_iter().take(SHOWN).map(node).collect(),
        workers_total: pluralize(workers.len(), "worker", "workers"),
        workers: workers.iter().take(SHOWN).cloned().map(worker).collect(),
        stuck: stuck.into_iter().map(held).collect(),
        minutes,
        consumers: consumers.into_iter().take(SHOWN).map(consumer).collect(),
    })
}

fn liveness(status: NodeStatus) -> Badge {
    match status {
        NodeStatus::Alive => Badge::new("good", "alive"),
        NodeStatus::Stale => Badge::new("bad", "silent"),
        NodeStatus::Stopped => Badge::new("faint", "stopped"),
    }
}

/// Parses a delivery in a form: `42/main`.
fn delivery(text: &str) -> Result<(i64, &str), ApiError> {
    let parsed = text.split_once('/').and_then(|(id, subscription)| Some((id.parse().ok()?, subscription)));
    parsed.ok_or_else(|| ApiError::invalid("id", "must be an event and its subscription, as 42/main"))
}

async fn act(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let selected = form.all("id").map(delivery).collect::<Result<Vec<_>, _>>()?;
    let back = link(&ctx.path("nodes"), [("minutes", form.get("minutes").map(Into::into))]);
    if selected.is_empty() {
        return Err(ApiError::invalid("id", "select at least one event first"));
    }
    if selected.len() > SHOWN {
        return Err(ApiError::invalid("id", format!("has {} events; the limit is {SHOWN}", selected.len())));
    }
    if !form.is_confirmed() {
        let action = ctx.path("nodes");
        return question(&selected, action, back).ask(&ctx, form);
    }
    let mut reset = 0;
    for (event_id, subscription) in &selected {
        match ctx.queue.reset(*event_id, subscription, RESET_REASON).await.map_err(ApiError::from) {
            Ok(()) => reset += 1,
            // Its worker has finished it meanwhile, or another user has reset it.
            Err(error) if matches!(error.status, StatusCode::CONFLICT | StatusCode::NOT_FOUND) => {}
            Err(error) => return Err(error),
        }
    }
    let notice = match selected.len() - reset {
        0 => format!("{} reset.", pluralize(reset, "event", "events")),
        rest => format!("{} reset; {rest} had already finished.", pluralize(reset, "event", "events")),
    };
    ctx.redirect_with_notice(&back, &notice)
}

fn question(selected: &[(i64, &str)], action: String, back: String) -> Confirm {
    let question = match selected {
        [(id, _)] => format!("Reset event {id}?"),
        _ => format!("Reset {}?", pluralize(selected.len(), "event", "events")),
    };
    Confirm {
        tab: Tab::Nodes,
        question,
        detail:
            "They are taken from their workers and delivered again. If the workers are still running, the work is done \
            twice, and their reports are refused."
                .into(),
        button: "Reset".into(),
        destructive: false,
        action,
        back,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_is_parsed_from_event_and_subscription() {
        assert_eq!(delivery("42/main").ok(), Some((42, "main")));
        for bad in ["", "42", "x/main", "/main"] {
            assert!(delivery(bad).is_err(), "{bad}");
        }
    }
}
