//! `/schedules`: cron rules that publish events.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::{MissedPolicy, ScheduleFire, ScheduleRunner, ScheduleView};

use crate::NameList;
use crate::event::is_zero;

/// A schedule to create or to replace another with.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "name": "daily report", "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin", "type": "report.due",
    "payload": { "day": "{{tick.date}}" }
}))]
pub struct ScheduleRequest {
    /// Name, unique in the namespace.
    pub name: String,
    /// Cron expression: minute, hour, day of the month, month and day of the week; with six fields, the second first.
    pub cron: String,
    /// IANA time zone of the expression. Default: `UTC`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Type of the events.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Any JSON. Placeholders such as `{{tick.date}}`, here and in the title, are replaced with values of the tick.
    /// Default: `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// A one-line title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A longer description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Tags that consumers can select by.
    #[serde(default, skip_serializing_if = "NameList::is_empty")]
    pub tags: NameList,
    /// Events of a group are handled one at a time, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// Higher priorities are delivered first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i16,
    /// Overrides the policy's `max_retries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// A JSON object delivered with the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Box<RawValue>>,
    /// Deadline of the events: if no attempt has started within this time after publication, the event ends EXPIRED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// What to do about missed ticks. Default: `once`.
    #[serde(default)]
    pub missed: MissedPolicy,
    /// Whether the schedule fires. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
}

/// A page of schedules.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SchedulesBody {
    /// By name. Fewer than `limit` if the payloads are very large.
    pub schedules: Vec<ScheduleView>,
    /// Total number of matches.
    pub total: u64,
    /// Page size.
    pub limit: usize,
    /// Number of schedules before this page.
    pub offset: usize,
}

/// Recorded ticks.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FiresBody {
    /// Newest first.
    pub fires: Vec<ScheduleFire>,
}

/// Future ticks.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PreviewBody {
    /// In order of time.
    pub ticks: Vec<DateTime<Utc>>,
}

/// The process that is to run a schedule.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct RunnerRequest {
    /// `windlass`; or `pg_cron`, on PostgreSQL with that extension.
    pub runner: ScheduleRunner,
}
