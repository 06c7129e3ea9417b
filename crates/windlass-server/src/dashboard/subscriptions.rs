//! `/ui/{namespace}/subscriptions`: who is told of what, and what is held back.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use chrono::TimeDelta;
use windlass::{MAIN, Subscription, SubscriptionSpec};

use super::Answer;
use super::confirm::Confirm;
use super::counts::Counts;
use super::filter::names;
use super::form::Form;
use super::format::{When, count, counted};
use super::problem::Problem;
use super::shell::{Shell, Tab, with_status};
use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::FormBody;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/subscriptions", get(show).post(act))
}

/// The fields that say themselves what is wrong with them.
const SHOWN: &[&str] = &["subscription", "types", "tags", "hours", "type"];

#[derive(Template)]
#[template(path = "subscriptions.html")]
struct Subscriptions {
    shell: Shell,
    total: String,
    rows: Vec<Row>,
    paused_types: Vec<String>,
    form: Fields,
    problem: Option<Problem>,
}

impl Subscriptions {
    /// What is wrong with this field.
    fn wrong(&self, field: &str) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.with(field))
    }
}

struct Row {
    view: Subscription,
    since: When,
    waiting: String,
    running: String,
    dead: u64,
    dead_text: String,
}

/// What the form for a new one holds, as it was typed.
#[derive(Default)]
struct Fields {
    subscription: String,
    types: String,
    tags: String,
    hours: String,
    paused_type: String,
}

async fn show(visit: Visit) -> Answer {
    shown(&visit, Fields::default(), None).await
}

async fn shown(visit: &Visit, form: Fields, problem: Option<Problem>) -> Answer {
    let counts = visit.app.counted.get(&visit.queue).await?;
    let row = |view: Subscription| {
        let Counts { waiting, running, dead } = counts.of(&view.subscription);
        let since = When::new(view.starts_at, visit.now);
        Row { view, since, waiting: count(waiting), running: count(running), dead, dead_text: count(dead) }
    };
    let status = problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
    let subscriptions = visit.queue.subscriptions().await?;
    let template = Subscriptions {
        shell: visit.shell(Tab::Subscriptions, "Subscriptions"),
        total: counted(subscriptions.len(), "subscription", "subscriptions"),
        rows: subscriptions.into_iter().map(row).collect(),
        paused_types: visit.namespace.as_ref().map(|namespace| namespace.paused_types.clone()).unwrap_or_default(),
        form,
        problem,
    };
    Ok(with_status(status, &template))
}

async fn act(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    match form.text("action") {
        "add" => add(&visit, &form).await,
        "pause_type" => pause_type(&visit, form).await,
        "pause" | "resume" | "remove" | "resume_type" => change(&visit, form).await,
        _ => Err(ApiError::invalid("action", "must be add, pause, resume, remove, pause_type or resume_type")),
    }
}

async fn add(visit: &Visit, form: &Form) -> Answer {
    let field = |name| form.get(name).unwrap_or_default().to_owned();
    let fields = Fields {
        subscription: field("subscription"),
        types: field("types"),
        tags: field("tags"),
        hours: field("hours"),
        paused_type: String::new(),
    };
    match added(visit, &fields).await {
        Ok(done) => Ok(done),
        Err(error) => shown(visit, fields, Some(Problem::of(error)?)).await,
    }
}

async fn added(visit: &Visit, fields: &Fields) -> Result<Response, ApiError> {
    let name = &fields.subscription;
    let mut spec = SubscriptionSpec::new(name).types(names(Some(&fields.types))).tags(names(Some(&fields.tags)));
    if !fields.hours.is_empty() {
        spec = spec.since(visit.now - hours(&fields.hours)?);
    }
    visit.queue.add_subscription(spec).await.map_err(|error| match error {
        windlass::Error::Exists { .. } => ApiError::invalid("subscription", "there is one of that name"),
        error => error.into(),
    })?;
    visit.done(&visit.path("subscriptions"), &format!("The subscription “{name}” is created."))
}

/// Before this nothing was published.
const HOURS_MAX: i64 = 1_000_000;

fn hours(text: &str) -> Result<TimeDelta, ApiError> {
    let hours = text.parse::<i64>().ok().filter(|hours| (0..=HOURS_MAX).contains(hours));
    let bad = || ApiError::invalid("hours", format!("must be a whole number from 0 to {HOURS_MAX}"));
    hours.map(TimeDelta::hours).ok_or_else(bad)
}

async fn pause_type(visit: &Visit, form: Form) -> Answer {
    let event_type = form.get("type").unwrap_or_default().to_owned();
    if event_type.is_empty() {
        let problem = Problem::of(ApiError::invalid("type", "name a type, or a prefix ending in *"))?;
        return shown(visit, Fields::default(), Some(problem)).await;
    }
    if !form.is_confirmed() {
        return ask(visit, form, format!("Hand out no more events of the type {event_type}?"), PAUSED, "Pause", false);
    }
    match visit.queue.pause_type(&event_type).await {
        Ok(()) => visit.done(&visit.path("subscriptions"), &format!("{event_type} is paused.")),
        Err(error) => {
            let fields = Fields { paused_type: event_type, ..Fields::default() };
            shown(visit, fields, Some(Problem::of(error.into())?)).await
        }
    }
}

const PAUSED: &str = "What is published gathers; what is held may be finished.";

/// Asks, or does it.
async fn change(visit: &Visit, form: Form) -> Answer {
    let (action, name) = (form.text("action").to_owned(), form.text("name").to_owned());
    let (queue, path) = (&visit.queue, visit.path("subscriptions"));
    match (&action[..], form.is_confirmed()) {
        ("pause", false) => ask(visit, form, format!("Hand out nothing more to “{name}”?"), PAUSED, "Pause", false),
        ("pause", true) => {
            queue.pause_subscription(&name).await?;
            visit.done(&path, &format!("“{name}” is paused."))
        }
        ("resume", false) => ask(
            visit,
            form,
            format!("Hand out to “{name}” again?"),
            "What gathered is handed out first.",
            "Resume",
            false,
        ),
        ("resume", true) => {
            queue.resume_subscription(&name).await?;
            visit.done(&path, &format!("“{name}” is handed out to again."))
        }
        ("remove", false) => {
            let detail = "Its waiting deliveries and its dead letters go with it, for good.";
            ask(visit, form, format!("Remove the subscription “{name}”?"), detail, "Remove", true)
        }
        ("remove", true) => {
            queue.remove_subscription(&name).await?;
            visit.done(&path, &format!("“{name}” is removed."))
        }
        (_, false) => {
            ask(visit, form, format!("Hand out {name} again?"), "What gathered is handed out.", "Resume", false)
        }
        (_, true) => {
            queue.resume_type(&name).await?;
            visit.done(&path, &format!("{name} is handed out again."))
        }
    }
}

fn ask(visit: &Visit, form: Form, question: String, detail: &str, button: &str, destructive: bool) -> Answer {
    let (action, back) = (visit.path("subscriptions"), visit.path("subscriptions"));
    let (tab, detail, button) = (Tab::Subscriptions, detail.to_owned(), button.to_owned());
    Confirm { tab, question, detail, button, destructive, action, back }.ask(visit, form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_has_a_bound() {
        assert_eq!(hours("48").ok(), Some(TimeDelta::hours(48)));
        for bad in ["", "x", "-1", "1.5", "1000001", "4000000000", "99999999999999999999"] {
            assert!(hours(bad).is_err(), "{bad}");
        }
    }
}
