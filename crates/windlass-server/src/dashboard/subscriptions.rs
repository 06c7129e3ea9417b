//! `/ui/{namespace}/subscriptions`: subscriptions and paused types.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use chrono::TimeDelta;
use windlass::{MAIN, Subscription, SubscriptionSpec};

use super::PageResult;
use super::confirm::Confirm;
use super::delivery_counts::DeliveryCounts;
use super::filter::split_names;
use super::form::Form;
use super::form_error::FormError;
use super::format::{RelativeTime, count, pluralize};
use super::layout::{Layout, Tab, render_with_status};
use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::FormBody;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/subscriptions", get(show).post(act))
}

/// The fields that show their own error.
const SHOWN: &[&str] = &["subscription", "types", "tags", "hours", "type"];

#[derive(Template)]
#[template(path = "subscriptions.html")]
struct Subscriptions {
    layout: Layout,
    total: String,
    rows: Vec<Row>,
    paused_types: Vec<String>,
    form: Fields,
    problem: Option<FormError>,
}

impl Subscriptions {
    /// The error of this field, or an empty text.
    fn field_error(&self, field: &str) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.message_for(field))
    }
}

struct Row {
    view: Subscription,
    since: RelativeTime,
    waiting: String,
    running: String,
    dead: u64,
    dead_text: String,
}

/// The form for a new subscription, as it was typed.
#[derive(Default)]
struct Fields {
    subscription: String,
    types: String,
    tags: String,
    hours: String,
    paused_type: String,
}

async fn show(ctx: PageContext) -> PageResult {
    shown(&ctx, Fields::default(), None).await
}

async fn shown(ctx: &PageContext, form: Fields, problem: Option<FormError>) -> PageResult {
    let counts = ctx.app.delivery_counts.get(&ctx.queue).await?;
    let row = |view: Subscription| {
        let DeliveryCounts { waiting, running, dead } = counts.of(&view.subscription);
        let since = RelativeTime::new(view.starts_at, ctx.now);
        Row { view, since, waiting: count(waiting), running: count(running), dead, dead_text: count(dead) }
    };
    let status = problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
    let subscriptions = ctx.queue.subscriptions().await?;
    let template = Subscriptions {
        layout: ctx.layout(Tab::Subscriptions, "Subscriptions"),
        total: pluralize(subscriptions.len(), "subscription", "subscriptions"),
        rows: subscriptions.into_iter().map(row).collect(),
        paused_types: ctx.namespace.as_ref().map(|namespace| namespace.paused_types.clone()).unwrap_or_default(),
        form,
        problem,
    };
    Ok(render_with_status(status, &template))
}

async fn act(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    match form.text("action") {
        "add" => add(&ctx, &form).await,
        "pause_type" => pause_type(&ctx, form).await,
        "pause" | "resume" | "remove" | "resume_type" => change(&ctx, form).await,
        _ => Err(ApiError::invalid("action", "must be add, pause, resume, remove, pause_type or resume_type")),
    }
}

async fn add(ctx: &PageContext, form: &Form) -> PageResult {
    let field = |name| form.get(name).unwrap_or_default().to_owned();
    let fields = Fields {
        subscription: field("subscription"),
        types: field("types"),
        tags: field("tags"),
        hours: field("hours"),
        paused_type: String::new(),
    };
    match added(ctx, &fields).await {
        Ok(done) => Ok(done),
        Err(error) => shown(ctx, fields, Some(FormError::from_api_error(error)?)).await,
    }
}

async fn added(ctx: &PageContext, fields: &Fields) -> Result<Response, ApiError> {
    let name = &fields.subscription;
    let mut spec =
        SubscriptionSpec::new(name).types(split_names(Some(&fields.types))).tags(split_names(Some(&fields.tags)));
    if !fields.hours.is_empty() {
        spec = spec.since(ctx.now - hours(&fields.hours)?);
    }
    ctx.queue.add_subscription(spec).await.map_err(|error| match error {
        windlass::Error::Exists { .. } => ApiError::invalid("subscription", "already exists"),
        error => error.into(),
    })?;
    ctx.redirect_with_notice(&ctx.path("subscriptions"), &format!("The subscription “{name}” is created."))
}

/// Limit of the backfill. It is further back than any event.
const HOURS_MAX: i64 = 1_000_000;

fn hours(text: &str) -> Result<TimeDelta, ApiError> {
    let hours = text.parse::<i64>().ok().filter(|hours| (0..=HOURS_MAX).contains(hours));
    let bad = || ApiError::invalid("hours", format!("must be a whole number from 0 to {HOURS_MAX}"));
    hours.map(TimeDelta::hours).ok_or_else(bad)
}

async fn pause_type(ctx: &PageContext, form: Form) -> PageResult {
    let event_type = form.get("type").unwrap_or_default().to_owned();
    if event_type.is_empty() {
        let problem = FormError::from_api_error(ApiError::invalid("type", "name a type, or a prefix ending in *"))?;
        return shown(ctx, Fields::default(), Some(problem)).await;
    }
    if !form.is_confirmed() {
        return ask(ctx, form, format!("Pause the type {event_type}?"), PAUSED, "Pause", false);
    }
    match ctx.queue.pause_type(&event_type).await {
        Ok(()) => ctx.redirect_with_notice(&ctx.path("subscriptions"), &format!("{event_type} is paused.")),
        Err(error) => {
            let fields = Fields { paused_type: event_type, ..Fields::default() };
            shown(ctx, fields, Some(FormError::from_api_error(error.into())?)).await
        }
    }
}

const PAUSED: &str = "New events stay pending. Workers can finish the events that they hold.";

/// Shows the confirmation page, or performs the confirmed action.
async fn change(ctx: &PageContext, form: Form) -> PageResult {
    let (action, name) = (form.text("action").to_owned(), form.text("name").to_owned());
    let (queue, path) = (&ctx.queue, ctx.path("subscriptions"));
    match (&action[..], form.is_confirmed()) {
        ("pause", false) => ask(ctx, form, format!("Pause the subscription “{name}”?"), PAUSED, "Pause", false),
        ("pause", true) => {
            queue.pause_subscription(&name).await?;
            ctx.redirect_with_notice(&path, &format!("“{name}” is paused."))
        }
        ("resume", false) => ask(
            ctx,
            form,
            format!("Resume the subscription “{name}”?"),
            "Pending events are delivered, the oldest first.",
            "Resume",
            false,
        ),
        ("resume", true) => {
            queue.resume_subscription(&name).await?;
            ctx.redirect_with_notice(&path, &format!("“{name}” is resumed."))
        }
        ("remove", false) => {
            let detail = "Its pending deliveries and dead letters are deleted. This cannot be undone.";
            ask(ctx, form, format!("Remove the subscription “{name}”?"), detail, "Remove", true)
        }
        ("remove", true) => {
            queue.remove_subscription(&name).await?;
            ctx.redirect_with_notice(&path, &format!("“{name}” is removed."))
        }
        (_, false) => {
            ask(ctx, form, format!("Resume the type {name}?"), "Pending events are delivered.", "Resume", false)
        }
        (_, true) => {
            queue.resume_type(&name).await?;
            ctx.redirect_with_notice(&path, &format!("{name} is resumed."))
        }
    }
}

fn ask(ctx: &PageContext, form: Form, question: String, detail: &str, button: &str, destructive: bool) -> PageResult {
    let (action, back) = (ctx.path("subscriptions"), ctx.path("subscriptions"));
    let (tab, detail, button) = (Tab::Subscriptions, detail.to_owned(), button.to_owned());
    Confirm { tab, question, detail, button, destructive, action, back }.ask(ctx, form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backfill_hours_are_limited() {
        assert_eq!(hours("48").ok(), Some(TimeDelta::hours(48)));
        for bad in ["", "x", "-1", "1.5", "1000001", "4000000000", "99999999999999999999"] {
            assert!(hours(bad).is_err(), "{bad}");
        }
    }
}
