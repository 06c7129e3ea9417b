//! Schedules as they are shown, and what they fired.

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

/// How many next runs a view shows.
const NEXT_RUNS: usize = 5;

/// Who sees to it that a schedule fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScheduleRunner {
    /// Every server and node.
    Windlass,
    /// The extension pg_cron, in the database.
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

/// A schedule and how it stands.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleView {
    /// Its id: a UUID. Its events carry it as `scheduled_task_id`.
    pub id: String,
    /// Its name, unique in the namespace.
    pub name: String,
    /// When it ticks.
    pub cron: String,
    /// The zone that the expression goes by.
    pub timezone: String,
    /// The type of its events.
    #[serde(rename = "type")]
    pub event_type: String,
    /// A line for people.
    pub title: Option<String>,
    /// A few sentences for people.
    pub description: Option<String>,
    /// The tags of its events, comma-separated.
    pub tags: String,
    /// The payload, before the values of a tick are filled in.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Box<RawValue>,
    /// The group of its events: one at a time, in order.
    pub group_id: Option<String>,
    /// Higher goes first.
    pub priority: i16,
    /// How many failures its events are allowed; as the policy says if `None`.
    pub max_retries: Option<u32>,
    /// Context that travels with its events.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<Box<RawValue>>,
    /// Its events are never started later than this after they were published.
    pub expires_in_ms: Option<u64>,
    /// What becomes of ticks that were missed.
    pub missed: MissedPolicy,
    /// Who sees to it that it fires.
    pub runner: ScheduleRunner,
    /// It does not fire while it is not active.
    pub active: bool,
    /// Its next tick, while it is active and run by Windlass.
    pub next_at: Option<DateTime<Utc>>,
    /// Its next five ticks, while it is active.
    pub next_runs: Vec<DateTime<Utc>>,
    /// The newest tick for which it published an event.
    pub last_at: Option<DateTime<Utc>>,
    /// That event.
    pub last_event_id: Option<i64>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it last changed, or fired.
    pub updated_at: DateTime<Utc>,
}

impl ScheduleView {
    pub(super) fn rule(&self) -> Result<Rule> {
        Rule::parse(&self.cron, &self.timezone)
    }

    /// The event of a tick, published at `now`.
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
        template::fill(&mut event, &template::Values { rule, tick, schedule_id: &self.id, name: &self.name })?;
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

/// Who publishes the events of schedules.
const PRODUCER: &str = "scheduler";

/// A tick of a schedule that is on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleFire {
    /// The tick; for one that somebody asked for, that moment.
    pub tick_at: DateTime<Utc>,
    /// Somebody asked for it.
    pub manual: bool,
    /// When it was seen to.
    pub fired_at: DateTime<Utc>,
    /// Its event; `None` where it was passed over, or its event could not be published.
    pub event_id: Option<i64>,
    /// How many ticks before it were passed over; no more than 1,000 are counted.
    pub skipped: u32,
    /// Why its event could not be published.
    pub error: Option<String>,
}

/// Which schedules to list; what is `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct ScheduleFilter {
    /// Of this name.
    pub name: Option<String>,
    /// That are active, or are not.
    pub active: Option<bool>,
    /// Whose events are of this type.
    pub event_type: Option<String>,
    /// How many; 20 if 0.
    pub limit: usize,
    /// How many to pass over.
    pub offset: usize,
}
