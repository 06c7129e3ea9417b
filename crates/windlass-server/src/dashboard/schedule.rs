//! `/ui/{namespace}/schedules/{schedule_id}`: one schedule, what it fired, and what can be done about it.

use askama::Template;
use axum::Router;
use axum::routing::get;
use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde::Deserialize;
use windlass::{ScheduleFire, ScheduleView};

use super::Answer;
use super::confirm::Confirm;
use super::cron::in_words;
use super::form::{Form, link};
use super::format::{Badge, When, span};
use super::json::indented;
use super::schedules::state;
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, FormBody, ScheduleId, known};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/schedules/{schedule_id}", get(show).post(act))
}

/// How many ticks to come are shown.
pub(super) const TICKS: usize = 10;

/// How many that are on record.
const FIRES: usize = 20;

/// How much of a payload is shown, in bytes.
const PAYLOAD_SHOWN: usize = 64 << 10;

#[derive(Deserialize)]
struct ShowArgs {
    before: Option<DateTime<Utc>>,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    shell: Shell,
    path: String,
    words: Option<String>,
    badge: Badge,
    ticks: Vec<Tick>,
    fires: Vec<Fire>,
    older: Option<String>,
    expires: Option<String>,
    payload: String,
    payload_is_whole: bool,
    view: ScheduleView,
}

/// An instant, also as clocks in the schedule's zone show it.
pub(super) struct Tick {
    pub when: When,
    pub local: String,
}

struct Fire {
    tick: Tick,
    fired: When,
    of: ScheduleFire,
}

async fn show(visit: Visit, ScheduleId(id): ScheduleId, Args(args): Args<ShowArgs>) -> Answer {
    let view = visit.queue.schedule(&id).await?;
    let fires = visit.queue.schedule_fires(&id, args.before.map(known), FIRES).await?;
    let path = visit.path(&format!("schedules/{id}"));
    let older = fires.last().filter(|_| fires.len() == FIRES).map(|last| {
        let before = last.tick_at.to_rfc3339_opts(SecondsFormat::Micros, true);
        link(&path, [("before", Some(before.into()))])
    });
    let now = visit.now;
    let in_zone = |at| Tick { when: When::new(at, now), local: local(at, &view.timezone) };
    let fire = |of: ScheduleFire| Fire { tick: in_zone(of.tick_at), fired: When::new(of.fired_at, now), of };
    let (payload, payload_is_whole) = indented(view.payload.get(), PAYLOAD_SHOWN);
    page(&SchedulePage {
        shell: visit.shell(Tab::Schedules, view.name.clone()),
        words: in_words(&view.cron),
        badge: state(&view),
        ticks: ticks(&visit, &view.cron, &view.timezone).await?,
        fires: fires.into_iter().map(fire).collect(),
        expires: view.expires_in_ms.map(span),
        payload,
        payload_is_whole,
        older,
        path,
        view,
    })
}

/// The next ticks of such a schedule.
pub(super) async fn ticks(visit: &Visit, cron: &str, timezone: &str) -> Result<Vec<Tick>, ApiError> {
    let ticks = visit.queue.preview_schedule(cron, timezone, None, TICKS).await?.into_iter();
    Ok(ticks.map(|at| Tick { when: When::new(at, visit.now), local: local(at, timezone) }).collect())
}

fn local(at: DateTime<Utc>, timezone: &str) -> String {
    let zone: Tz = timezone.parse().unwrap_or(Tz::UTC);
    at.with_timezone(&zone).format("%a %Y-%m-%d %H:%M:%S %Z").to_string()
}

/// What can be done about a schedule.
#[derive(Clone, Copy)]
enum Act {
    Pause,
    Resume,
    Run,
    Remove,
}

impl Act {
    fn of(form: &Form) -> Result<Act, ApiError> {
        match form.text("action") {
            "pause" => Ok(Act::Pause),
            "resume" => Ok(Act::Resume),
            "run" => Ok(Act::Run),
            "remove" => Ok(Act::Remove),
            _ => Err(ApiError::invalid("action", "must be pause, resume, run or remove")),
        }
    }

    /// The question, what follows, and the word on the button.
    fn asks(self, view: &ScheduleView) -> (String, String, &'static str) {
        let (name, event_type) = (&view.name, &view.event_type);
        match self {
            Act::Pause => (
                format!("Pause the schedule “{name}”?"),
                "It publishes nothing until it is resumed. What comes meanwhile is not made up for.".into(),
                "Pause",
            ),
            Act::Resume => (
                format!("Resume the schedule “{name}”?"),
                "It goes on with its next tick. What came while it was paused was not missed.".into(),
                "Resume",
            ),
            Act::Run => (
                format!("Run the schedule “{name}” now?"),
                format!("It publishes one event of the type {event_type}. Its ticks come as before."),
                "Run now",
            ),
            Act::Remove => (
                format!("Delete the schedule “{name}”?"),
                "It and the record of its ticks are gone for good. The events that it published stay.".into(),
                "Delete",
            ),
        }
    }
}

async fn act(visit: Visit, ScheduleId(id): ScheduleId, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let act = Act::of(&form)?;
    let view = visit.queue.schedule(&id).await?;
    let path = visit.path(&format!("schedules/{id}"));
    if !form.is_confirmed() {
        let (question, detail, button) = act.asks(&view);
        let destructive = matches!(act, Act::Remove);
        let (action, back, button) = (path.clone(), path, button.to_owned());
        return Confirm { tab: Tab::Schedules, question, detail, button, destructive, action, back }.ask(&visit, form);
    }
    let name = &view.name;
    match act {
        Act::Pause => {
            visit.queue.pause_schedule(&id).await?;
            visit.done(&path, &format!("“{name}” is paused."))
        }
        Act::Resume => {
            visit.queue.resume_schedule(&id).await?;
            visit.done(&path, &format!("“{name}” is active again."))
        }
        Act::Run => {
            let published = visit.queue.run_schedule(&id).await?;
            visit.done(&path, &format!("“{name}” published event {}.", published.event.id))
        }
        Act::Remove => {
            visit.queue.remove_schedule(&id).await?;
            visit.done(&visit.path("schedules"), &format!("“{name}” is deleted."))
        }
    }
}
