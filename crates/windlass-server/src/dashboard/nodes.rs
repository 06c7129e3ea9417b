//! `/ui/{namespace}/nodes`: who works here, who holds what, and what has been held for too long.

use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use chrono::TimeDelta;
use serde::Deserialize;
use windlass::{ConsumerView, NodeStatus, NodeView, StuckDelivery, WorkerView};

use super::Answer;
use super::confirm::Confirm;
use super::event::BY_HAND;
use super::form::{Form, link};
use super::format::{Badge, When, counted};
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, FormBody};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/nodes", get(show).post(act))
}

/// How many of each a page shows.
const SHOWN: usize = 100;

/// After how many minutes something counts as stuck, for choice.
const MINUTES: [u64; 4] = [1, 5, 15, 60];

/// Who asks is noted more often than this.
const STILL_ASKS: TimeDelta = TimeDelta::minutes(1);

#[derive(Deserialize)]
struct ShowArgs {
    minutes: Option<u64>,
}

#[derive(Template)]
#[template(path = "nodes.html")]
struct Nodes {
    shell: Shell,
    nodes: Vec<Node>,
    nodes_total: String,
    workers: Vec<Worker>,
    workers_total: String,
    stuck: Vec<Stuck>,
    minutes: u64,
    consumers: Vec<Asker>,
}

struct Node {
    view: NodeView,
    badge: Badge,
    heard: When,
    registered: When,
}

struct Worker {
    view: WorkerView,
    oldest: Option<When>,
    seen: When,
}

struct Stuck {
    of: StuckDelivery,
    picked: When,
    lease: When,
}

/// What is asked for. One that was noted within a minute still asks.
struct Asker {
    of: ConsumerView,
    seen: When,
    asks: bool,
}

async fn show(visit: Visit, Args(args): Args<ShowArgs>) -> Answer {
    let minutes = args.minutes.unwrap_or(MINUTES[1]);
    let older_than = Duration::from_secs(minutes.saturating_mul(60));
    let nodes = visit.queue.nodes().await?;
    let workers = visit.app.workers.get(&visit.queue).await?;
    let stuck = visit.queue.stuck(older_than, SHOWN).await?;
    let mut consumers = visit.queue.consumers().await?;
    consumers.sort_by_key(|consumer| std::cmp::Reverse(consumer.seen_at));
    let when = |at| When::new(at, visit.now);
    let consumer = |of: ConsumerView| Asker { seen: when(of.seen_at), asks: visit.now - of.seen_at < STILL_ASKS, of };
    let node = |view: NodeView| Node {
        badge: liveness(view.status),
        heard: when(view.last_heartbeat),
        registered: when(view.registered_at),
        view,
    };
    let worker =
        |view: WorkerView| Worker { oldest: view.oldest_picked_at.map(when), seen: when(view.last_seen_at), view };
    let held = |of: StuckDelivery| Stuck { picked: when(of.picked_at), lease: when(of.lease_expires_at), of };
    page(&Nodes {
        shell: visit.shell(Tab::Nodes, "Nodes"),
        nodes_total: counted(nodes.len(), "node", "nodes"),
        nodes: nodes.into_iter().take(SHOWN).map(node).collect(),
        workers_total: counted(workers.len(), "worker", "workers"),
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

/// A delivery as a form names it: `42/main`.
fn delivery(text: &str) -> Result<(i64, &str), ApiError> {
    let parsed = text.split_once('/').and_then(|(id, subscription)| Some((id.parse().ok()?, subscription)));
    parsed.ok_or_else(|| ApiError::invalid("id", "must be an event and its subscription, as 42/main"))
}

async fn act(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let chosen = form.all("id").map(delivery).collect::<Result<Vec<_>, _>>()?;
    let back = link(&visit.path("nodes"), [("minutes", form.get("minutes").map(Into::into))]);
    if chosen.is_empty() {
        return Err(ApiError::invalid("id", "select at least one event first"));
    }
    if chosen.len() > SHOWN {
        return Err(ApiError::invalid("id", format!("has {} events; the limit is {SHOWN}", chosen.len())));
    }
    if !form.is_confirmed() {
        let action = visit.path("nodes");
        return question(&chosen, action, back).ask(&visit, form);
    }
    let mut taken = 0;
    for (event_id, subscription) in &chosen {
        match visit.queue.reset(*event_id, subscription, BY_HAND).await.map_err(ApiError::from) {
            Ok(()) => taken += 1,
            // Its worker has finished it meanwhile, or somebody was quicker.
            Err(error) if matches!(error.status, StatusCode::CONFLICT | StatusCode::NOT_FOUND) => {}
            Err(error) => return Err(error),
        }
    }
    let notice = match chosen.len() - taken {
        0 => format!("{} put back.", counted(taken, "event", "events")),
        rest => format!("{} put back; {rest} had ended meanwhile.", counted(taken, "event", "events")),
    };
    visit.done(&back, &notice)
}

fn question(chosen: &[(i64, &str)], action: String, back: String) -> Confirm {
    let question = match chosen {
        [(id, _)] => format!("Take event {id} from its worker?"),
        _ => format!("Take {} from their workers?", counted(chosen.len(), "event", "events")),
    };
    Confirm {
        tab: Tab::Nodes,
        question,
        detail:
            "Whoever is free gets them next. If the workers are still at it, the work is done twice, and what they \
                 report is refused."
                .into(),
        button: "Take and put back".into(),
        destructive: false,
        action,
        back,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_named_by_event_and_subscription() {
        assert_eq!(delivery("42/main").ok(), Some((42, "main")));
        for bad in ["", "42", "x/main", "/main"] {
            assert!(delivery(bad).is_err(), "{bad}");
        }
    }
}
