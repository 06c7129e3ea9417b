//! The public view of schedules and of the ticks they fired.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::cron::Rule;
use super::{MissedPolicy, template};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::policy::limits::Limits;

/// How many upcoming ticks a view shows.
const NEXT_RUNS: usize = 5;

/// The process that fires a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScheduleRunner {
    /// Any server or node.
    Windlass,
    /// The PostgreSQL extension pg_cron.
    PgCron,
}

impl std::str::FromStr for ScheduleRunner {
    type Err = Error;

    fn from_str(word: &str) -> Result<ScheduleRunner> {
        match word {
            "windlass" => Ok(ScheduleRunner::Windlass),
            "pg_cron" => Ok(ScheduleRunner::PgCron),
            _ => Err(Error::Database { detail: format!("a schedule has the unknown runner '{word}'") }),
        }
    }
}

/// A schedule with its state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleView {
    /// The schedule's id, a UUID. Its events have it as `scheduled_task_id`.
    pub id: String,
    /// The schedule's name, unique in the namespace.
    pub name: String,
    /// The cron expression.
    pub cron: String,
    /// The time zone of the expression.
    pub timezone: String,
    /// The type of the events.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The title of the events.
    pub title: Option<String>,
    /// The description of the events.
    pub description: Option<String>,
    /// The tags of the events, comma-separated.
    pub tags: String,
    /// The payload, with placeholders such as `{{tick.date}}`.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Box<RawValue>,
    /// The group of the events: handled one at a time, in order.
    pub group_id: Option<String>,
    /// The priority of the events; higher is delivered first.
    pub priority: i16,
    /// The retry limit of the events; `None` means that of the policy.
    pub max_retries: Option<u32>,
    /// The metadata of the events.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<Box<RawValue>>,
    /// The events expire this long after they are published.
    pub expires_in_ms: Option<u64>,
    /// The policy for missed ticks.
    pub missed: MissedPolicy,
    /// The process that fires the schedule.
    pub runner: ScheduleRunner,
    /// Whether the schedule fires; `false` while it is paused.
    pub active: bool,
    /// The next tick, while the schedule is active and fired by Windlass.
    pub next_at: Option<DateTime<Utc>>,
    /// The next five ticks, while the schedule is active.
    pub next_runs: Vec<DateTime<Utc>>,
    /// The newest tick that published an event.
    pub last_at: Option<DateTime<Utc>>,
    /// The event of that tick.
    pub last_event_id: Option<i64>,
    /// When the schedule was created.
    pub created_at: DateTime<Utc>,
    /// When the schedule last changed or fired.
    pub updated_at: DateTime<Utc>,
}

impl ScheduleView {
    pub(super) fn rule(&self) -> Result<Rule> {
        Rule::parse(&self.cron, &self.timezone)
    }

    /// Creates the event of a tick that is published at `now`.
    pub(super) fn event(&self, rule: &Rule, tick: Timestamp, now: Timestamp, limits: &Limits) -> Result<NewEvent> {
        let mut event = NewEvent {
            title: self.title.clone(),
            description: self.description.clone(),
            tags: self.tags.clone(),
            group_id: self.group_id.clone(),
            priority: self.priority,
            max_retries: self.max_retries,
            metadata: self.metadata.clone(),
            producer: Some(PRODUCER.to_owned()),
            scheduled_task_id: Some(self.id.clone()),
            expires_in: self.expires_in_ms.map(Duration::from_millis),
            ..NewEvent::new(&self.event_type).payload_raw(self.payload.clone())
        };
        template::fill(&mut event, &template::TickValues { rule, tick, schedule_id: &self.id, name: &self.name })?;
        event.check(limits, now)?;
        Ok(event)
    }

    pub(super) fn with_next_runs(mut self, now: Timestamp) -> ScheduleView {
        if let (true, Ok(rule)) = (self.active, self.rule()) {
            let first = self.next_at.or_else(|| rule.after(now));
            self.next_runs = std::iter::successors(first, |tick| rule.after(*tick)).take(NEXT_RUNS).collect();
        }
        self
    }
}

/// The producer of the events of schedules.
const PRODUCER: &str = "scheduler";

/// A recorded tick of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleFire {
    /// The planned time of the tick; for a manual one, the time of the request.
    pub tick_at: DateTime<Utc>,
    /// Whether the tick was requested manually.
    pub manual: bool,
    /// When the tick was fired or recorded as skipped.
    pub fired_at: DateTime<Utc>,
    /// The event of the tick; `None` if the tick was skipped or its event could not be published.
    pub event_id: Option<i64>,
    /// How many ticks before this one were skipped, at most 1,000.
    pub skipped: u32,
    /// Why the event could not be published.
    pub error: Option<String>,
}

/// Which schedules to list. `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct ScheduleFilter {
    /// Only the schedule with this name.
    pub name: Option<String>,
    /// Only active schedules, or only paused ones.
    pub active: Option<bool>,
    /// Only schedules with this event type.
    pub event_type: Option<String>,
    /// The page size; 0 means 20.
    pub limit: usize,
    /// How many schedules to skip.
    pub offset: usize,
}
