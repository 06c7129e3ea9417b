//! `…/schedules/new` and `…/schedules/{schedule_id}/edit`: a form for all that can be said of a schedule, with a look at
//! when it would tick.

use std::str::FromStr;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::value::RawValue;
use windlass::{MissedPolicy, NewEvent, NewSchedule, ScheduleView};

use super::Answer;
use super::cron::in_words;
use super::form::Form;
use super::problem::Problem;
use super::schedule::{Tick, ticks};
use super::shell::{Shell, Tab, page, with_status};
use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, ScheduleId};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}/schedules/new", get(ask_new).post(create))
        .route("/ui/{namespace}/schedules/{schedule_id}/edit", get(ask_changes).post(change))
}

/// The fields that say themselves what is wrong with them; from the eighth on those that few need.
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

const PAYLOAD_HINT: &str = "Any JSON. In it and in the title, {{tick.date}}, {{tick.utc}} and the like stand for values of \
     the tick.";

#[derive(Template)]
#[template(path = "schedule_form.html")]
struct FormPage {
    shell: Shell,
    form: Fields,
    /// On the button.
    save: &'static str,
    action: String,
    back: String,
    problem: Option<Problem>,
    words: Option<String>,
    ticks: Vec<Tick>,
}

impl FormPage {
    /// What is wrong with this field.
    fn wrong(&self, field: &str) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.with(field))
    }

    /// Whether what few need is shown.
    fn more(&self) -> bool {
        let Fields { description, group_id, max_retries, expires_in_s, metadata, priority, .. } = &self.form;
        let filled = [description, group_id, max_retries, expires_in_s, metadata].iter().any(|text| !text.is_empty());
        filled || !matches!(&priority[..], "" | "0") || SHOWN[7..].iter().any(|field| !self.wrong(field).is_empty())
    }
}

/// What the form holds, as it was typed.
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
    fn of_new() -> Fields {
        Fields { timezone: "UTC".into(), missed: MissedPolicy::default().as_str().into(), ..Fields::default() }
    }

    fn of_form(form: &Form) -> Fields {
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

    fn of_schedule(view: ScheduleView) -> Fields {
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
            let span = Duration::try_from_secs_f64(seconds);
            event = event.expires_in(span.map_err(|_| ApiError::invalid("expires_in_ms", "is no span of time"))?);
        }
        let texts = [&self.title, &self.description, &self.group_id].map(|text| Some(text).filter(|it| !it.is_empty()));
        let [title, description, group_id] = texts;
        let event = title.map_or(event.clone(), |title| event.title(title));
        let event = description.map_or(event.clone(), |description| event.description(description));
        Ok(group_id.map_or(event.clone(), |group_id| event.group(group_id)))
    }
}

/// Nothing where nothing was typed.
fn number<T: FromStr>(field: &'static str, text: &str) -> Result<Option<T>, ApiError> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| ApiError::invalid(field, "is not such a number")),
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

/// A new one, or this one.
enum Which {
    New,
    Known(String),
}

impl Which {
    fn action(&self, visit: &Visit) -> String {
        match self {
            Which::New => visit.path("schedules/new"),
            Which::Known(id) => visit.path(&format!("schedules/{id}/edit")),
        }
    }

    /// The form, with what is wrong and when it would tick.
    fn form(&self, visit: &Visit, form: Fields, problem: Option<Problem>, ticks: Vec<Tick>) -> FormPage {
        let (title, save, back) = match self {
            Which::New => ("New schedule", "Create", visit.path("schedules")),
            Which::Known(id) => ("Edit schedule", "Save", visit.path(&format!("schedules/{id}"))),
        };
        let (shell, action, words) = (visit.shell(Tab::Schedules, title), self.action(visit), in_words(&form.cron));
        FormPage { shell, form, save, action, back, problem, words, ticks }
    }
}

async fn ask_new(visit: Visit) -> Answer {
    page(&Which::New.form(&visit, Fields::of_new(), None, Vec::new()))
}

async fn ask_changes(visit: Visit, ScheduleId(id): ScheduleId) -> Answer {
    let view = visit.queue.schedule(&id).await?;
    let ticks = ticks(&visit, &view.cron, &view.timezone).await?;
    page(&Which::Known(id).form(&visit, Fields::of_schedule(view), None, ticks))
}

async fn create(visit: Visit, FormBody(form, _room): FormBody) -> Answer {
    submit(visit, Which::New, Form(form)).await
}

async fn change(visit: Visit, ScheduleId(id): ScheduleId, FormBody(form, _room): FormBody) -> Answer {
    submit(visit, Which::Known(id), Form(form)).await
}

async fn submit(visit: Visit, which: Which, form: Form) -> Answer {
    let fields = Fields::of_form(&form);
    let zone = if fields.timezone.is_empty() { "UTC" } else { &fields.timezone };
    let (ticks, problem) = match ticks(&visit, &fields.cron, zone).await {
        Ok(ticks) => (ticks, None),
        Err(error) => (Vec::new(), Some(Problem::of(error)?)),
    };
    if problem.is_some() || form.get("preview").is_some() {
        return answer(&which.form(&visit, fields, problem, ticks));
    }
    match save(&visit, &which, &fields).await {
        Ok(view) => {
            let notice = match which {
                Which::New => format!("“{}” is created.", view.name),
                Which::Known(_) => format!("“{}” is saved.", view.name),
            };
            visit.done(&visit.path(&format!("schedules/{}", view.id)), &notice)
        }
        Err(error) => answer(&which.form(&visit, fields, Some(Problem::of(error)?), ticks)),
    }
}

async fn save(visit: &Visit, which: &Which, fields: &Fields) -> Result<ScheduleView, ApiError> {
    let new = fields.schedule()?;
    Ok(match which {
        Which::New => visit.queue.add_schedule(new).await?,
        Which::Known(id) => visit.queue.put_schedule(id, new).await?,
    })
}

fn answer(form: &FormPage) -> Answer {
    Ok(with_status(form.problem.as_ref().map_or(StatusCode::OK, |problem| problem.status), form))
}
