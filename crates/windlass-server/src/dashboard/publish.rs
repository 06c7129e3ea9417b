//! `/ui/{namespace}/publish`: a form that publishes an event.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde_json::value::RawValue;
use windlass::NewEvent;
use windlass_api::ErrorBody;

use super::form::Form;
use super::layout::{Layout, Tab, render, render_with_status};
use super::page_context::PageContext;
use super::{PUBLISH, PageResult};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::FormBody;

pub(super) fn routes() -> Router<App> {
    Router::new().route(PUBLISH, get(show).post(publish))
}

#[derive(Template)]
#[template(path = "publish.html")]
struct PublishPage {
    layout: Layout,
    fields: Vec<Field>,
    payload: String,
    payload_error: Option<String>,
    /// An error without a field.
    error: Option<String>,
}

struct Field {
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    value: String,
    error: Option<String>,
}

/// Field name as in errors, label, and hint.
const FIELDS: [(&str, &str, &str); 5] = [
    ("type", "Type", "Required, as in order.paid"),
    ("title", "Title", "A line for people"),
    ("tags", "Tags", "Separated by commas"),
    ("group_id", "Group", "Events of a group are handled one at a time, in order"),
    ("key", "Key", "Published only once within the window of the policy"),
];

fn form_page(ctx: &PageContext, form: &Form, problem: Option<&ErrorBody>) -> PublishPage {
    let error_of =
        |name| problem.filter(|problem| problem.field.as_deref() == Some(name)).map(|problem| problem.error.clone());
    let field =
        |(name, label, hint)| Field { name, label, hint, value: form.text(name).to_owned(), error: error_of(name) };
    let named = |field| FIELDS.iter().any(|(name, ..)| *name == field) || field == "payload";
    PublishPage {
        layout: ctx.layout(Tab::Publish, "Publish"),
        fields: FIELDS.map(field).into(),
        payload: form.text("payload").to_owned(),
        payload_error: error_of("payload"),
        error: problem
            .filter(|problem| !problem.field.as_deref().is_some_and(named))
            .map(|problem| problem.error.clone()),
    }
}

async fn show(ctx: PageContext) -> PageResult {
    render(&form_page(&ctx, &Form(Vec::new()), None))
}

async fn publish(ctx: PageContext, FormBody(fields, _memory): FormBody) -> Result<Response, ApiError> {
    let form = Form(fields);
    let stored = match event(&form) {
        Ok(event) => ctx.queue.publish(event).await.map_err(ApiError::from),
        Err(error) => Err(error),
    };
    match stored {
        Ok(published) => {
            let id = published.event.id;
            let notice = match published.duplicate {
                true => format!("An event with this key was published before: it is event {id}."),
                false => format!("Event {id} is published."),
            };
            // A token with the scope `publish` may lack `read`.
            let next = if ctx.caller.allows(windlass::Scope::Read) { format!("events/{id}") } else { "publish".into() };
            ctx.redirect_with_notice(&ctx.path(&next), &notice)
        }
        Err(error) if error.status.is_client_error() => {
            Ok(render_with_status(StatusCode::BAD_REQUEST, &form_page(&ctx, &form, Some(&error.body))))
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
