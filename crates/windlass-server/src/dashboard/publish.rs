//! `/ui/{namespace}/publish`: publishing an event by hand.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde_json::value::RawValue;
use windlass::NewEvent;

use super::form::Form;
use super::shell::{Shell, Tab, page, with_status};
use super::visit::Visit;
use super::{Answer, PUBLISH};
use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::FormBody;

pub(super) fn routes() -> Router<App> {
    Router::new().route(PUBLISH, get(show).post(publish))
}

#[derive(Template)]
#[template(path = "publish.html")]
struct PublishPage {
    shell: Shell,
    fields: Vec<Field>,
    payload: String,
    payload_error: Option<String>,
    /// About no field in particular.
    error: Option<String>,
}

struct Field {
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    value: String,
    error: Option<String>,
}

/// By the names that errors have for them.
const FIELDS: [(&str, &str, &str); 5] = [
    ("type", "Type", "Required, as in order.paid"),
    ("title", "Title", "A line for people"),
    ("tags", "Tags", "Separated by commas"),
    ("group_id", "Group", "Events of a group are handled one at a time, in order"),
    ("key", "Key", "Published only once within the window of the policy"),
];

fn form_page(visit: &Visit, form: &Form, problem: Option<&ErrorBody>) -> PublishPage {
    let error_of = |name| problem.filter(|problem| problem.field == Some(name)).map(|problem| problem.error.clone());
    let field =
        |(name, label, hint)| Field { name, label, hint, value: form.text(name).to_owned(), error: error_of(name) };
    let named = |field| FIELDS.iter().any(|(name, ..)| *name == field) || field == "payload";
    PublishPage {
        shell: visit.shell(Tab::Publish, "Publish"),
        fields: FIELDS.map(field).into(),
        payload: form.text("payload").to_owned(),
        payload_error: error_of("payload"),
        error: problem.filter(|problem| !problem.field.is_some_and(named)).map(|problem| problem.error.clone()),
    }
}

async fn show(visit: Visit) -> Answer {
    page(&form_page(&visit, &Form(Vec::new()), None))
}

async fn publish(visit: Visit, FormBody(fields, _room): FormBody) -> Result<Response, ApiError> {
    let form = Form(fields);
    let stored = match event(&form) {
        Ok(event) => visit.queue.publish(event).await.map_err(ApiError::from),
        Err(error) => Err(error),
    };
    match stored {
        Ok(published) => {
            let id = published.event.id;
            let notice = match published.duplicate {
                true => format!("An event with this key was published before: it is event {id}."),
                false => format!("Event {id} is published."),
            };
            // Who may publish may not look, perhaps.
            let next =
                if visit.caller.allows(windlass::Scope::Read) { format!("events/{id}") } else { "publish".into() };
            visit.done(&visit.path(&next), &notice)
        }
        Err(error) if error.status.is_client_error() => {
            Ok(with_status(StatusCode::BAD_REQUEST, &form_page(&visit, &form, Some(&error.body))))
        }
        Err(error) => Err(error),
    }
}

fn event(form: &Form) -> Result<NewEvent, ApiError> {
    let mut event = NewEvent::new(form.get("type").unwrap_or_default()).tags_text(form.get("tags").unwrap_or_default());
    if let Some(title) = form.get("title") {
        event = event.title(title);
    }
    if let Some(group) = form.get("group_id") {
        event = event.group(group);
    }
    if let Some(key) = form.get("key") {
        event = event.key(key);
    }
    if let Some(payload) = form.get("payload") {
        let payload: Box<RawValue> = serde_json::from_str(payload)
            .map_err(|error| ApiError::invalid("payload", format!("is not valid JSON: {error}")))?;
        event = event.payload_raw(payload);
    }
    Ok(event)
}
