//! `…/schedules/new` and `…/schedules/{schedule_id}/edit`: a form for a schedule, with a preview of its ticks.

use std::str::FromStr;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::value::RawValue;
use windlass::{MissedPolicy, NewEvent, NewSchedule, ScheduleView};

use super::PageResult;
use super::cron::describe;
use super::form::Form;
use super::form_error::FormError;
use super::layout::{Layout, Tab, render, render_with_status};
use super::page_context::PageContext;
use super::schedule::{Tick, ticks};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, ScheduleId};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}/schedules/new", get(ask_new).post(create))
        .route("/ui/{namespace}/schedules/{schedule_id}/edit", get(ask_changes).post(change))
}

/// The fields that show their own error. The rarely used ones start at the eighth.
const SHOWN: &[&str] = &[
    "name",
    "cron",
    "timezone",
    "type",
    "title",
    "tags",
    "payload",
    "description",
    "group_id",
    "priority",
    "max_retries",
    "expires_in_ms",
    "metadata",
];

const PAYLOAD_HINT: &str = "Any JSON. Placeholders such as {{tick.date}} and {{tick.utc}}, here and in the title, are \
     replaced with values of the tick.";

#[derive(Template)]
#[template(path = "schedule_form.html")]
struct FormPage {
    layout: Layout,
    form: Fields,
    /// Label of the button.
    save: &'static str,
    action: String,
    back: String,
    problem: Option<FormError>,
    words: Option<String>,
    ticks: Vec<Tick>,
}

impl FormPage {
    /// The error of this field, or an empty text.
    fn field_error(&self, field: &str) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.message_for(field))
    }

    /// Whether a rarely used field is filled or invalid, so that these fields must be visible.
    fn shows_rare_fields(&self) -> bool {
        let Fields { description, group_id, max_retries, expires_in_s, metadata, priority, .. } = &self.form;
        let filled = [description, group_id, max_retries, expires_in_s, metadata].iter().any(|text| !text.is_empty());
        filled
            || !matches!(&priority[..], "" | "0")
            || SHOWN[7..].iter().any(|field| !self.field_error(field).is_empty())
    }
}

/// The form, as it was typed.
#[derive(Default)]
struct Fields {
    name: String,
    cron: String,
    timezone: String,
    missed: String,
    paused: bool,
    event_type: String,
    title: String,
    description: String,
    tags: String,
    payload: String,
    group_id: String,
    priority: String,
    max_retries: String,
    expires_in_s: String,
    metadata: String,
}

impl Fields {
    fn for_new() -> Fields {
        Fields { timezone: "UTC".into(), missed: MissedPolicy::default().as_str().into(), ..Fields::default() }
    }

    fn from_form(form: &Form) -> Fields {
        let field = |name| form.get(name).unwrap_or_default().to_owned();
        Fields {
            name: field("name"),
            cron: field("cron"),
            timezone: field("timezone"),
            missed: field("missed"),
            paused: form.get("paused").is_some(),
            event_type: field("type"),
            title: field("title"),
            description: field("description"),
            tags: field("tags"),
            payload: field("payload"),
            group_id: field("group_id"),
            priority: field("priority"),
            max_retries: field("max_retries"),
            expires_in_s: field("expires_in_s"),
            metadata: field("metadata"),
        }
    }

    fn from_schedule(view: ScheduleView) -> Fields {
        let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        Fields {
            name: view.name,
            cron: view.cron,
            timezone: view.timezone,
            missed: view.missed.as_str().into(),
            paused: !view.active,
            event_type: view.event_type,
            title: view.title.unwrap_or_default(),
            description: view.description.unwrap_or_default(),
            tags: view.tags,
            payload: view.payload.get().to_owned(),
            group_id: view.group_id.unwrap_or_default(),
            priority: view.priority.to_string(),
            max_retries: number(view.max_retries.map(u64::from)),
            expires_in_s: view.expires_in_ms.map(|ms| (ms as f64 / 1_000.0).to_string()).unwrap_or_default(),
            metadata: view.metadata.map(|metadata| metadata.get().to_owned()).unwrap_or_default(),
        }
    }

    fn schedule(&self) -> Result<NewSchedule, ApiError> {
        let mut new = NewSchedule::new(&self.name, &self.cron, self.event()?).missed(self.missed.parse()?);
        if !self.timezone.is_empty() {
            new = new.timezone(&self.timezone);
        }
        Ok(if self.paused { new.paused() } else { new })
    }

    fn event(&self) -> Result<NewEvent, ApiError> {
        let mut event = NewEvent::new(&self.event_type).tags_text(&self.tags);
        if let Some(payload) = json("payload", &self.payload)? {
            event = event.payload_raw(payload);
        }
        if let Some(metadata) = json("metadata", &self.metadata)? {
            event = event.metadata(&metadata)?;
        }
        if let Some(priority) = number("priority", &self.priority)? {
            event = event.priority(priority);
        }
        if let Some(max_retries) = number("max_retries", &self.max_retries)? {
            event = event.max_retries(max_retries);
        }
        if let Some(seconds) = number("expires_in_ms", &self.expires_in_s)? {
            let duration = Duration::try_from_secs_f64(seconds);
            event =
                event.expires_in(duration.map_err(|_| ApiError::invalid("expires_in_ms", "is not a valid duration"))?);
        }
        let texts = [&self.title, &self.description, &self.group_id].map(|text| Some(text).filter(|it| !it.is_empty()));
        let [title, description, group_id] = texts;
        let event = title.map_or(event.clone(), |title| event.title(title));
        let event = description.map_or(event.clone(), |description| event.description(description));
        Ok(group_id.map_or(event.clone(), |group_id| event.group(group_id)))
    }
}

/// `None` if the field is empty.
fn number<T: FromStr>(field: &'static str, text: &str) -> Result<Option<T>, ApiError> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| ApiError::invalid(field, "is not a valid number")),
    }
}

fn json(field: &'static str, text: &str) -> Result<Option<Box<RawValue>>, ApiError> {
    match text {
        "" => Ok(None),
        text => serde_json::from_str(text)
            .map(Some)
            .map_err(|error| ApiError::invalid(field, format!("is not JSON: {error}"))),
    }
}

/// The schedule that the form is for.
enum FormTarget {
    New,
    Existing(String),
}

impl FormTarget {
    fn action(&self, ctx: &PageContext) -> String {
        match self {
            FormTarget::New => ctx.path("schedules/new"),
            FormTarget::Existing(id) => ctx.path(&format!("schedules/{id}/edit")),
        }
    }

    /// Renders the form with its error and the preview.
    fn form(&self, ctx: &PageContext, form: Fields, problem: Option<FormError>, ticks: Vec<Tick>) -> FormPage {
        let (title, save, back) = match self {
            FormTarget::New => ("New schedule", "Create", ctx.path("schedules")),
            FormTarget::Existing(id) => ("Edit schedule", "Save", ctx.path(&format!("schedules/{id}"))),
        };
        let (layout, action, words) = (ctx.layout(Tab::Schedules, title), self.action(ctx), describe(&form.cron));
        FormPage { layout, form, save, action, back, problem, words, ticks }
    }
}

async fn ask_new(ctx: PageContext) -> PageResult {
    render(&FormTarget::New.form(&ctx, Fields::for_new(), None, Vec::new()))
}

async fn ask_changes(ctx: PageContext, ScheduleId(id): ScheduleId) -> PageResult {
    let view = ctx.queue.schedule(&id).await?;
    let ticks = ticks(&ctx, &view.cron, &view.timezone).await?;
    render(&FormTarget::Existing(id).form(&ctx, Fields::from_schedule(view), None, ticks))
}

async fn create(ctx: PageContext, FormBody(form, _memory): FormBody) -> PageResult {
    submit(ctx, FormTarget::New, Form(form)).await
}

async fn change(ctx: PageContext, ScheduleId(id): ScheduleId, FormBody(form, _memory): FormBody) -> PageResult {
    submit(ctx, FormTarget::Existing(id), Form(form)).await
}

async fn submit(ctx: PageContext, target: FormTarget, form: Form) -> PageResult {
    let fields = Fields::from_form(&form);
    let timezone = if fields.timezone.is_empty() { "UTC" } else { &fields.timezone };
    let (ticks, problem) = match ticks(&ctx, &fields.cron, timezone).await {
        Ok(ticks) => (ticks, None),
        Err(error) => (Vec::new(), Some(FormError::from_api_error(error)?)),
    };
    if problem.is_some() || form.get("preview").is_some() {
        return render_form(&target.form(&ctx, fields, problem, ticks));
    }
    match save(&ctx, &target, &fields).await {
        Ok(view) => {
            let notice = match target {
                FormTarget::New => format!("“{}” is created.", view.name),
                FormTarget::Existing(_) => format!("“{}” is saved.", view.name),
            };
            ctx.redirect_with_notice(&ctx.path(&format!("schedules/{}", view.id)), &notice)
        }
        Err(error) => render_form(&target.form(&ctx, fields, Some(FormError::from_api_error(error)?), ticks)),
    }
}

async fn save(ctx: &PageContext, target: &FormTarget, fields: &Fields) -> Result<ScheduleView, ApiError> {
    let new = fields.schedule()?;
    Ok(match target {
        FormTarget::New => ctx.queue.add_schedule(new).await?,
        FormTarget::Existing(id) => ctx.queue.put_schedule(id, new).await?,
    })
}

fn render_form(form: &FormPage) -> PageResult {
    Ok(render_with_status(form.problem.as_ref().map_or(StatusCode::OK, |problem| problem.status), form))
}
