//! `/ui/{namespace}/events/{id}`: one event, its timeline, and its actions.

use askama::Template;
use axum::Router;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use windlass::{
    Action, DeadLetterFilter, DeliveryView, Event, EventView, Explanation, LogEntry, SearchFilter, Status, WaitReason,
};

use super::PageResult;
use super::confirm::Confirm;
use super::filter::split_names;
use super::form::{Form, link};
use super::format::{Badge, RelativeTime, bytes, count, duration};
use super::inline_code::{TextPart, split_code};
use super::json::indented;
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{EventId, FormBody};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}/events/{id}", get(show))
        .route("/ui/{namespace}/events/{id}/payload", get(payload))
        .route("/ui/{namespace}/events/{id}/cancel", post(cancel))
        .route("/ui/{namespace}/events/{id}/reset", post(reset))
        .route("/ui/{namespace}/events/{id}/redrive", post(redrive))
}

/// Bytes of a payload that the page shows. A link downloads all of it.
const PAYLOAD_BYTES_SHOWN: usize = 64 << 10;
/// Log entries that the page shows: the newest.
const LOG_SHOWN: usize = 200;
/// Maximum number of deliveries to explain.
const EXPLAINED_MAX: usize = 8;
/// How many ids to try for the next event. All namespaces share one sequence of ids.
const NEXT_ID_TRIES: i64 = 5;

/// The reason in the log when an event is reset in the dashboard.
pub(super) const RESET_REASON: &str = "Reset in the dashboard";

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    layout: Layout,
    id: i64,
    name: String,
    description: Option<String>,
    deliveries: Vec<DeliveryRow>,
    reasons: Vec<DeliveryExplanation>,
    facts: Vec<Fact>,
    tags: Vec<(String, String)>,
    payload: String,
    payload_size: String,
    payload_is_whole: bool,
    metadata: Option<String>,
    log: Vec<TimelineEntry>,
    log_left_out: usize,
    older: Option<String>,
    newer: Option<String>,
    several: bool,
}

/// Why a delivery is not running.
struct DeliveryExplanation {
    subscription: String,
    class: &'static str,
    message: String,
    advice: Vec<TextPart>,
    until: Option<RelativeTime>,
    behind: Option<(i64, String)>,
}

struct DeliveryRow {
    subscription: String,
    badge: Badge,
    attempts: u32,
    retries: String,
    worker: Option<String>,
    error: Option<String>,
    updated: RelativeTime,
    /// Available actions: path and label of the button.
    actions: Vec<(&'static str, &'static str)>,
}

struct Fact {
    label: &'static str,
    text: String,
    href: Option<String>,
    when: Option<RelativeTime>,
}

/// An entry of the timeline.
struct TimelineEntry {
    badge: Badge,
    subscription: String,
    attempt: u32,
    worker: Option<String>,
    took: Option<String>,
    code: Option<i32>,
    error: Option<String>,
    detail: Option<String>,
    at: RelativeTime,
}

async fn show(ctx: PageContext, EventId(id): EventId) -> PageResult {
    let view = ctx.queue.get(id).await?;
    let log = ctx.queue.log(id).await?;
    let reasons = explain(&ctx, &view).await?;
    let older = ctx.queue.search(SearchFilter { before: Some(id), limit: 1, ..SearchFilter::default() }).await?;
    let to = |id: i64| ctx.path(&format!("events/{id}"));
    let newer = newer(&ctx, id).await?.map(to);
    let (payload, payload_is_whole) = indented(view.event.payload.get(), PAYLOAD_BYTES_SHOWN);
    let events = ctx.path("events");
    let tag = |tag: String| (link(&events, [("tag", Some(tag.clone().into()))]), tag);
    let event = &view.event;
    let name = event.title.clone().unwrap_or_else(|| event.event_type.clone());
    render(&EventPage {
        layout: ctx.layout(Tab::Events, format!("{name} #{id}")),
        id,
        name,
        description: event.description.clone(),
        deliveries: view.deliveries.iter().map(|delivery| row(&ctx, delivery)).collect(),
        reasons,
        facts: facts(&ctx, event),
        tags: split_names(Some(&event.tags)).into_iter().map(tag).collect(),
        payload,
        payload_size: bytes(event.payload.get().len()),
        payload_is_whole,
        metadata: event.metadata.as_ref().map(|metadata| indented(metadata.get(), PAYLOAD_BYTES_SHOWN).0),
        log_left_out: log.len().saturating_sub(LOG_SHOWN),
        log: {
            let shown = log.into_iter().rev().take(LOG_SHOWN).map(|entry| timeline(&ctx, entry));
            shown.chain([published(&ctx, event)]).collect()
        },
        older: older.events.first().map(|found| to(found.event_id)),
        newer,
        several: view.deliveries.len() > 1,
    })
}

async fn newer(ctx: &PageContext, id: i64) -> Result<Option<i64>, ApiError> {
    for next in id.saturating_add(1)..=id.saturating_add(NEXT_ID_TRIES) {
        match ctx.queue.get(next).await {
            Ok(_) => return Ok(Some(next)),
            Err(windlass::Error::EventNotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

async fn explain(ctx: &PageContext, view: &EventView) -> Result<Vec<DeliveryExplanation>, ApiError> {
    let mut reasons = Vec::new();
    let open = view.deliveries.iter().filter(|delivery| delivery.status != Status::Completed);
    for delivery in open.take(EXPLAINED_MAX) {
        let explanation = ctx.queue.explain(view.event.id, &delivery.subscription).await?;
        reasons.push(reason(ctx, &delivery.subscription, explanation));
    }
    Ok(reasons)
}

fn reason(ctx: &PageContext, subscription: &str, explanation: Explanation) -> DeliveryExplanation {
    DeliveryExplanation {
        subscription: subscription.to_owned(),
        class: match explanation.reason {
            WaitReason::Running | WaitReason::AboutToRun | WaitReason::Completed => "busy",
            WaitReason::Failed | WaitReason::Expired => "bad",
            WaitReason::Scheduled | WaitReason::Cancelled => "",
            _ => "warn",
        },
        message: explanation.sentence,
        advice: split_code(explanation.advice.as_deref().unwrap_or_default()),
        until: explanation.until.map(|until| RelativeTime::new(until, ctx.now)),
        behind: explanation.behind.map(|id| (id, ctx.path(&format!("events/{id}")))),
    }
}

fn row(ctx: &PageContext, delivery: &DeliveryView) -> DeliveryRow {
    let actions: &[_] = match delivery.status {
        Status::Pending => &[("cancel", "Cancel")],
        Status::Processing => &[("reset", "Reset")],
        Status::Failed | Status::Expired => &[("redrive", "Redrive")],
        _ => &[],
    };
    DeliveryRow {
        subscription: delivery.subscription.clone(),
        badge: delivery.status.into(),
        attempts: delivery.attempts,
        retries: match delivery.max_retries {
            Some(max) => format!("{} of {} failures", count(delivery.retry_count), count(max)),
            None => format!("{} failures", count(delivery.retry_count)),
        },
        worker: delivery.worker_id.clone(),
        error: delivery.error_message.clone(),
        updated: RelativeTime::new(delivery.updated_at, ctx.now),
        actions: if ctx.may_act { actions.to_vec() } else { Vec::new() },
    }
}

fn facts(ctx: &PageContext, event: &Event) -> Vec<Fact> {
    let events = ctx.path("events");
    let to = |name: &'static str, value: &str| Some(link(&events, [(name, Some(value.to_owned().into()))]));
    let fact = |label, text: String, href| Fact { label, text, href, when: None };
    let time = |label, at| Fact { label, text: String::new(), href: None, when: Some(RelativeTime::new(at, ctx.now)) };
    let mut facts = vec![
        fact("Type", event.event_type.clone(), to("type", &event.event_type)),
        time("Published", event.created_at),
    ];
    facts.extend(event.group_id.iter().map(|group| fact("Group", group.clone(), to("group", group))));
    facts.extend(event.key.iter().map(|key| fact("Key", key.clone(), to("key", key))));
    facts.extend(event.producer.iter().map(|producer| fact("Producer", producer.clone(), None)));
    facts.extend((event.priority != 0).then(|| fact("Priority", event.priority.to_string(), None)));
    facts.extend(event.run_at.map(|at| time("Not before", at)));
    facts.extend(event.expires_at.map(|at| time("Expires", at)));
    let schedules = ctx.path("schedules");
    facts.extend(event.scheduled_task_id.iter().map(|id| fact("Schedule", id.clone(), Some(schedules.clone()))));
    facts
}

fn timeline(ctx: &PageContext, entry: LogEntry) -> TimelineEntry {
    let class = match entry.action {
        Action::Completed => "good",
        Action::Failed => "bad",
        Action::CompletedWithErrors | Action::Abandoned | Action::Expired => "warn",
        Action::Picked | Action::Started => "busy",
        Action::Redriven | Action::Reset | Action::Snoozed | Action::Released => "calm",
        Action::Published | Action::Cancelled => "faint",
    };
    TimelineEntry {
        badge: Badge::new(class, entry.action.as_str()),
        subscription: entry.subscription,
        attempt: entry.attempt,
        worker: entry.worker_id,
        took: entry.execution_time_ms.map(duration),
        code: entry.status_code,
        error: entry.error_message,
        detail: entry.detail.map(|detail| indented(detail.get(), PAYLOAD_BYTES_SHOWN).0),
        at: RelativeTime::new(entry.created_at, ctx.now),
    }
}

/// The publication, as a timeline entry. The log itself does not contain it.
fn published(ctx: &PageContext, event: &Event) -> TimelineEntry {
    TimelineEntry {
        badge: Badge::new("faint", Action::Published.as_str()),
        subscription: String::new(),
        attempt: 0,
        worker: event.producer.clone(),
        took: None,
        code: None,
        error: None,
        detail: None,
        at: RelativeTime::new(event.created_at, ctx.now),
    }
}

/// The whole payload, as a download.
async fn payload(ctx: PageContext, EventId(id): EventId) -> PageResult {
    let event = ctx.queue.get(id).await?.event;
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"event-{id}.json\"")),
    ];
    Ok((headers, event.payload.get().to_owned()).into_response())
}

/// An action on one delivery.
struct DeliveryAction {
    id: i64,
    subscription: String,
    page: String,
    action: String,
}

impl DeliveryAction {
    fn new(ctx: &PageContext, id: i64, verb: &str, form: &Form) -> DeliveryAction {
        let page = ctx.path(&format!("events/{id}"));
        let subscription = form.get("subscription").unwrap_or(windlass::MAIN).to_owned();
        DeliveryAction { id, subscription, action: format!("{page}/{verb}"), page }
    }

    fn ask(self, ctx: &PageContext, form: Form, verb: &str, detail: &str, destructive: bool) -> PageResult {
        let DeliveryAction { id, subscription, page, action } = self;
        let confirm = Confirm {
            tab: Tab::Events,
            question: format!("{verb} event {id} for the subscription {subscription}?"),
            detail: detail.to_owned(),
            button: verb.to_owned(),
            destructive,
            action,
            back: page,
        };
        confirm.ask(ctx, form)
    }
}

async fn cancel(ctx: PageContext, EventId(id): EventId, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let action = DeliveryAction::new(&ctx, id, "cancel", &form);
    if !form.is_confirmed() {
        let detail = "It will never be delivered to this subscription. This cannot be undone.";
        return action.ask(&ctx, form, "Cancel", detail, true);
    }
    ctx.queue.cancel(id, Some(&action.subscription)).await?;
    ctx.redirect_with_notice(&action.page, &format!("Event {id} is cancelled for {}.", action.subscription))
}

async fn reset(ctx: PageContext, EventId(id): EventId, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let action = DeliveryAction::new(&ctx, id, "reset", &form);
    if !form.is_confirmed() {
        let detail = "It is taken from its worker, which can no longer finish it, and delivered again. If the worker is \
        still running, the work is done twice.";
        return action.ask(&ctx, form, "Reset", detail, false);
    }
    ctx.queue.reset(id, &action.subscription, RESET_REASON).await?;
    ctx.redirect_with_notice(&action.page, &format!("Event {id} is waiting again for {}.", action.subscription))
}

async fn redrive(ctx: PageContext, EventId(id): EventId, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let action = DeliveryAction::new(&ctx, id, "redrive", &form);
    if !form.is_confirmed() {
        let detail = "It is put back into the queue with its retries reset.";
        return action.ask(&ctx, form, "Redrive", detail, false);
    }
    let letter = DeadLetterFilter {
        event_ids: vec![action.id],
        subscription: Some(action.subscription.clone()),
        ..DeadLetterFilter::default()
    };
    let notice = match ctx.queue.redrive(letter).await? {
        0 => format!("Event {id} is not among the dead letters of {} any more.", action.subscription),
        _ => format!("Event {id} is waiting again for {}.", action.subscription),
    };
    ctx.redirect_with_notice(&action.page, &notice)
}
