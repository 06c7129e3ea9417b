//! `/ui/{namespace}/events/{id}`: one event, all that happened to it, and what can be done about it.

use askama::Template;
use axum::Router;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use windlass::{
    Action, DeadLetterFilter, DeliveryView, Event, EventView, Explanation, LogEntry, SearchFilter, Status, WaitReason,
};

use super::Answer;
use super::confirm::Confirm;
use super::filter::names;
use super::form::{Form, link};
use super::format::{Badge, When, bytes, count, span};
use super::json::indented;
use super::prose::{Piece, prose};
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
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

/// So much of a payload is shown; there is a link to all of it.
const PAYLOAD_SHOWN: usize = 64 << 10;
/// So many entries of the log are shown: the newest.
const LOG_SHOWN: usize = 200;
/// So many deliveries that have not ended well are explained.
const EXPLAINED: usize = 8;
/// So far it is looked for the next event: numbers are given to all namespaces in turn.
const NEXT_WITHIN: i64 = 5;

/// Why something was taken from its worker, as the log says.
pub(super) const BY_HAND: &str = "Reset in the dashboard";

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    shell: Shell,
    id: i64,
    name: String,
    description: Option<String>,
    deliveries: Vec<DeliveryRow>,
    reasons: Vec<Reason>,
    facts: Vec<Fact>,
    tags: Vec<(String, String)>,
    payload: String,
    payload_size: String,
    payload_is_whole: bool,
    metadata: Option<String>,
    log: Vec<Entry>,
    log_left_out: usize,
    older: Option<String>,
    newer: Option<String>,
    several: bool,
}

/// Why a delivery stands as it does.
struct Reason {
    subscription: String,
    class: &'static str,
    sentence: String,
    advice: Vec<Piece>,
    until: Option<When>,
    behind: Option<(i64, String)>,
}

struct DeliveryRow {
    subscription: String,
    badge: Badge,
    attempts: u32,
    retries: String,
    worker: Option<String>,
    error: Option<String>,
    updated: When,
    /// What can be done: where to, and what the button says.
    actions: Vec<(&'static str, &'static str)>,
}

struct Fact {
    label: &'static str,
    text: String,
    href: Option<String>,
    when: Option<When>,
}

/// An entry of the timeline.
struct Entry {
    badge: Badge,
    subscription: String,
    attempt: u32,
    worker: Option<String>,
    took: Option<String>,
    code: Option<i32>,
    error: Option<String>,
    detail: Option<String>,
    at: When,
}

async fn show(visit: Visit, EventId(id): EventId) -> Answer {
    let view = visit.queue.get(id).await?;
    let log = visit.queue.log(id).await?;
    let reasons = explain(&visit, &view).await?;
    let older = visit.queue.search(SearchFilter { before: Some(id), limit: 1, ..SearchFilter::default() }).await?;
    let to = |id: i64| visit.path(&format!("events/{id}"));
    let newer = newer(&visit, id).await?.map(to);
    let (payload, payload_is_whole) = indented(view.event.payload.get(), PAYLOAD_SHOWN);
    let events = visit.path("events");
    let tag = |tag: String| (link(&events, [("tag", Some(tag.clone().into()))]), tag);
    let event = &view.event;
    let name = event.title.clone().unwrap_or_else(|| event.event_type.clone());
    page(&EventPage {
        shell: visit.shell(Tab::Events, format!("{name} #{id}")),
        id,
        name,
        description: event.description.clone(),
        deliveries: view.deliveries.iter().map(|delivery| row(&visit, delivery)).collect(),
        reasons,
        facts: facts(&visit, event),
        tags: names(Some(&event.tags)).into_iter().map(tag).collect(),
        payload,
        payload_size: bytes(event.payload.get().len()),
        payload_is_whole,
        metadata: event.metadata.as_ref().map(|metadata| indented(metadata.get(), PAYLOAD_SHOWN).0),
        log_left_out: log.len().saturating_sub(LOG_SHOWN),
        log: {
            let shown = log.into_iter().rev().take(LOG_SHOWN).map(|entry| timeline(&visit, entry));
            shown.chain([published(&visit, event)]).collect()
        },
        older: older.events.first().map(|found| to(found.event_id)),
        newer,
        several: view.deliveries.len() > 1,
    })
}

async fn newer(visit: &Visit, id: i64) -> Result<Option<i64>, ApiError> {
    for next in id.saturating_add(1)..=id.saturating_add(NEXT_WITHIN) {
        match visit.queue.get(next).await {
            Ok(_) => return Ok(Some(next)),
            Err(windlass::Error::EventNotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

async fn explain(visit: &Visit, view: &EventView) -> Result<Vec<Reason>, ApiError> {
    let mut reasons = Vec::new();
    let open = view.deliveries.iter().filter(|delivery| delivery.status != Status::Completed);
    for delivery in open.take(EXPLAINED) {
        let explanation = visit.queue.explain(view.event.id, &delivery.subscription).await?;
        reasons.push(reason(visit, &delivery.subscription, explanation));
    }
    Ok(reasons)
}

fn reason(visit: &Visit, subscription: &str, explanation: Explanation) -> Reason {
    Reason {
        subscription: subscription.to_owned(),
        class: match explanation.reason {
            WaitReason::Running | WaitReason::AboutToRun | WaitReason::Completed => "busy",
            WaitReason::Failed | WaitReason::Expired => "bad",
            WaitReason::Scheduled | WaitReason::Cancelled => "",
            _ => "warn",
        },
        sentence: explanation.sentence,
        advice: prose(explanation.advice.as_deref().unwrap_or_default()),
        until: explanation.until.map(|until| When::new(until, visit.now)),
        behind: explanation.behind.map(|id| (id, visit.path(&format!("events/{id}")))),
    }
}

fn row(visit: &Visit, delivery: &DeliveryView) -> DeliveryRow {
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
        updated: When::new(delivery.updated_at, visit.now),
        actions: if visit.may_act { actions.to_vec() } else { Vec::new() },
    }
}

fn facts(visit: &Visit, event: &Event) -> Vec<Fact> {
    let events = visit.path("events");
    let to = |name: &'static str, value: &str| Some(link(&events, [(name, Some(value.to_owned().into()))]));
    let fact = |label, text: String, href| Fact { label, text, href, when: None };
    let time = |label, at| Fact { label, text: String::new(), href: None, when: Some(When::new(at, visit.now)) };
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
    let schedules = visit.path("schedules");
    facts.extend(event.scheduled_task_id.iter().map(|id| fact("Schedule", id.clone(), Some(schedules.clone()))));
    facts
}

fn timeline(visit: &Visit, entry: LogEntry) -> Entry {
    let class = match entry.action {
        Action::Completed => "good",
        Action::Failed => "bad",
        Action::CompletedWithErrors | Action::Abandoned | Action::Expired => "warn",
        Action::Picked | Action::Started => "busy",
        Action::Redriven | Action::Reset | Action::Snoozed | Action::Released => "calm",
        Action::Published | Action::Cancelled => "faint",
    };
    Entry {
        badge: Badge::new(class, entry.action.as_str()),
        subscription: entry.subscription,
        attempt: entry.attempt,
        worker: entry.worker_id,
        took: entry.execution_time_ms.map(span),
        code: entry.status_code,
        error: entry.error_message,
        detail: entry.detail.map(|detail| indented(detail.get(), PAYLOAD_SHOWN).0),
        at: When::new(entry.created_at, visit.now),
    }
}

/// Where it all began; the log itself does not say so.
fn published(visit: &Visit, event: &Event) -> Entry {
    Entry {
        badge: Badge::new("faint", Action::Published.as_str()),
        subscription: String::new(),
        attempt: 0,
        worker: event.producer.clone(),
        took: None,
        code: None,
        error: None,
        detail: None,
        at: When::new(event.created_at, visit.now),
    }
}

/// All of it, as a file.
async fn payload(visit: Visit, EventId(id): EventId) -> Answer {
    let event = visit.queue.get(id).await?.event;
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"event-{id}.json\"")),
    ];
    Ok((headers, event.payload.get().to_owned()).into_response())
}

/// What is to be done, with which delivery.
struct Meant {
    id: i64,
    subscription: String,
    page: String,
    action: String,
}

impl Meant {
    fn new(visit: &Visit, id: i64, verb: &str, form: &Form) -> Meant {
        let page = visit.path(&format!("events/{id}"));
        let subscription = form.get("subscription").unwrap_or(windlass::MAIN).to_owned();
        Meant { id, subscription, action: format!("{page}/{verb}"), page }
    }

    fn ask(self, visit: &Visit, form: Form, verb: &str, detail: &str, destructive: bool) -> Answer {
        let Meant { id, subscription, page, action } = self;
        let confirm = Confirm {
            tab: Tab::Events,
            question: format!("{verb} event {id} for the subscription {subscription}?"),
            detail: detail.to_owned(),
            button: verb.to_owned(),
            destructive,
            action,
            back: page,
        };
        confirm.ask(visit, form)
    }
}

async fn cancel(visit: Visit, EventId(id): EventId, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let meant = Meant::new(&visit, id, "cancel", &form);
    if !form.is_confirmed() {
        let detail = "It will never be handed out to this subscription. This cannot be undone.";
        return meant.ask(&visit, form, "Cancel", detail, true);
    }
    visit.queue.cancel(id, Some(&meant.subscription)).await?;
    visit.done(&meant.page, &format!("Event {id} is cancelled for {}.", meant.subscription))
}

async fn reset(visit: Visit, EventId(id): EventId, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let meant = Meant::new(&visit, id, "reset", &form);
    if !form.is_confirmed() {
        let detail = "It is taken from its worker, who can no longer finish it, and handed out again at once. If the \
                      worker is still at it, the work is done twice.";
        return meant.ask(&visit, form, "Reset", detail, false);
    }
    visit.queue.reset(id, &meant.subscription, BY_HAND).await?;
    visit.done(&meant.page, &format!("Event {id} is waiting again for {}.", meant.subscription))
}

async fn redrive(visit: Visit, EventId(id): EventId, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let meant = Meant::new(&visit, id, "redrive", &form);
    if !form.is_confirmed() {
        let detail = "It is put back into the queue with fresh retries, and handed out again at once.";
        return meant.ask(&visit, form, "Redrive", detail, false);
    }
    let letter = DeadLetterFilter {
        event_ids: vec![meant.id],
        subscription: Some(meant.subscription.clone()),
        ..DeadLetterFilter::default()
    };
    let notice = match visit.queue.redrive(letter).await? {
        0 => format!("Event {id} is not among the dead letters of {} any more.", meant.subscription),
        _ => format!("Event {id} is waiting again for {}.", meant.subscription),
    };
    visit.done(&meant.page, &notice)
}
