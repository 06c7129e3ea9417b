//! `/ui/{namespace}/schedules/{schedule_id}`: one schedule, its recent ticks, and its actions.

use askama::Template;
use axum::Router;
use axum::routing::get;
use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde::Deserialize;
use windlass::{ScheduleFire, ScheduleView};

use super::PageResult;
use super::confirm::Confirm;
use super::cron::describe;
use super::form::{Form, link};
use super::format::{Badge, RelativeTime, duration};
use super::json::indented;
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use super::schedules::state;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, QueryArgs, ScheduleId, clamp_to_epoch};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/schedules/{schedule_id}", get(show).post(act))
}

/// Number of future ticks to show.
pub(super) const TICKS: usize = 10;

/// Number of recorded ticks per page.
const FIRES: usize = 20;

/// Bytes of a payload that the page shows.
const PAYLOAD_BYTES_SHOWN: usize = 64 << 10;

#[derive(Deserialize)]
struct ShowArgs {
    before: Option<DateTime<Utc>>,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    layout: Layout,
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

/// A tick, also in the schedule's time zone.
pub(super) struct Tick {
    pub when: RelativeTime,
    pub local: String,
}

struct Fire {
    tick: Tick,
    fired: RelativeTime,
    of: ScheduleFire,
}

async fn show(ctx: PageContext, ScheduleId(id): ScheduleId, QueryArgs(args): QueryArgs<ShowArgs>) -> PageResult {
    let view = ctx.queue.schedule(&id).await?;
    let fires = ctx.queue.schedule_fires(&id, args.before.map(clamp_to_epoch), FIRES).await?;
    let path = ctx.path(&format!("schedules/{id}"));
    let older = fires.last().filter(|_| fires.len() == FIRES).map(|last| {
        let before = last.tick_at.to_rfc3339_opts(SecondsFormat::Micros, true);
        link(&path, [("before", Some(before.into()))])
    });
    let now = ctx.now;
    let in_zone = |at| Tick { when: RelativeTime::new(at, now), local: local(at, &view.timezone) };
    let fire = |of: ScheduleFire| Fire { tick: in_zone(of.tick_at), fired: RelativeTime::new(of.fired_at, now), of };
    let (payload, payload_is_whole) = indented(view.payload.get(), PAYLOAD_BYTES_SHOWN);
    render(&SchedulePage {
        layout: ctx.layout(Tab::Schedules, view.name.clone()),
        words: describe(&view.cron),
        badge: state(&view),
        ticks: ticks(&ctx, &view.cron, &view.timezone).await?,
        fires: fires.into_iter().map(fire).collect(),
        expires: view.expires_in_ms.map(duration),
        payload,
        payload_is_whole,
        older,
        path,
        view,
    })
}

/// The next ticks of a cron expression.
pub(super) async fn ticks(ctx: &PageContext, cron: &str, timezone: &str) -> Result<Vec<Tick>, ApiError> {
    let ticks = ctx.queue.preview_schedule(cron, timezone, None, TICKS).await?.into_iter();
    Ok(ticks.map(|at| Tick { when: RelativeTime::new(at, ctx.now), local: local(at, timezone) }).collect())
}

fn local(at: DateTime<Utc>, timezone: &str) -> String {
    let zone: Tz = timezone.parse().unwrap_or(Tz::UTC);
    at.with_timezone(&zone).format("%a %Y-%m-%d %H:%M:%S %Z").to_string()
}

/// An action on a schedule.
#[derive(Clone, Copy)]
enum ScheduleAction {
    Pause,
    Resume,
    Run,
    Remove,
}

impl ScheduleAction {
    fn of(form: &Form) -> Result<ScheduleAction, ApiError> {
        match form.text("action") {
            "pause" => Ok(ScheduleAction::Pause),
            "resume" => Ok(ScheduleAction::Resume),
            "run" => Ok(ScheduleAction::Run),
            "remove" => Ok(ScheduleAction::Remove),
            _ => Err(ApiError::invalid("action", "must be pause, resume, run or remove")),
        }
    }

    /// Question, consequences and button label of the confirmation page.
    fn confirmation(self, view: &ScheduleView) -> (String, String, &'static str) {
        let (name, event_type) = (&view.name, &view.event_type);
        match self {
            ScheduleAction::Pause => (
                format!("Pause the schedule “{name}”?"),
                "It publishes nothing until it is resumed. Ticks during the pause are skipped.".into(),
                "Pause",
            ),
            ScheduleAction::Resume => (
                format!("Resume the schedule “{name}”?"),
                "It continues with its next tick. Ticks during the pause do not count as missed.".into(),
                "Resume",
            ),
            ScheduleAction::Run => (
                format!("Run the schedule “{name}” now?"),
                format!("It publishes one event of the type {event_type}. Its ticks do not change."),
                "Run now",
            ),
            ScheduleAction::Remove => (
                format!("Delete the schedule “{name}”?"),
                "The schedule and its fired ticks are deleted. Published events stay. This cannot be undone.".into(),
                "Delete",
            ),
        }
    }
}

async fn act(ctx: PageContext, ScheduleId(id): ScheduleId, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let act = ScheduleAction::of(&form)?;
    let view = ctx.queue.schedule(&id).await?;
    let path = ctx.path(&format!("schedules/{id}"));
    if !form.is_confirmed() {
        let (question, detail, button) = act.confirmation(&view);
        let destructive = matches!(act, ScheduleAction::Remove);
        let (action, back, button) = (path.clone(), path, button.to_owned());
        return Confirm { tab: Tab::Schedules, question, detail, button, destructive, action, back }.ask(&ctx, form);
    }
    let name = &view.name;
    match act {
        ScheduleAction::Pause => {
            ctx.queue.pause_schedule(&id).await?;
            ctx.redirect_with_notice(&path, &format!("“{name}” is paused."))
        }
        ScheduleAction::Resume => {
            ctx.queue.resume_schedule(&id).await?;
            ctx.redirect_with_notice(&path, &format!("“{name}” is active again."))
        }
        ScheduleAction::Run => {
            let published = ctx.queue.run_schedule(&id).await?;
            ctx.redirect_with_notice(&path, &format!("“{name}” published event {}.", published.event.id))
        }
        ScheduleAction::Remove => {
            ctx.queue.remove_schedule(&id).await?;
            ctx.redirect_with_notice(&ctx.path("schedules"), &format!("“{name}” is deleted."))
        }
    }
}
