//! `GET /events`, `/stuck`, `/workers`, `/stats`, `/stats/maintenance`: the current state.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::{ConsumerView, MaintenanceTaskView, StatRow, Status, StuckDelivery, WorkerView};

/// A page of events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventsBody {
    /// Newest first.
    pub events: Vec<EventSummaryBody>,
    /// Total number of matches.
    pub total: u64,
    /// Page size.
    pub limit: usize,
    /// Number of events before this page.
    pub offset: usize,
}

/// An event in a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventSummaryBody {
    /// Unique across all namespaces.
    pub id: i64,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// A one-line title.
    pub title: Option<String>,
    /// Current status.
    pub status: Status,
    /// Comma-separated, as published.
    pub tags: String,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of reported failures.
    pub retry_count: u32,
    /// After a failure: when the event is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<DateTime<Utc>>,
    /// Time of publication.
    pub created_at: DateTime<Utc>,
    /// Time of the last change.
    pub updated_at: DateTime<Utc>,
}

/// Events that have been held for long.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StuckBody {
    /// Oldest first. An event without `started_at` is an orphan: it was claimed, and its worker has not reported since.
    pub stuck: Vec<StuckDelivery>,
}

/// The workers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkersBody {
    /// The workers.
    pub workers: Vec<WorkerView>,
    /// Consumers that sent claim requests within the last hour, with their filters. Active consumers were seen within the
    /// last minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers: Option<Vec<ConsumerView>>,
}

/// Event counts.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StatsBody {
    /// Name of the namespace.
    pub namespace: String,
    /// Events that finished before this are not counted.
    pub since: DateTime<Utc>,
    /// Whether the namespace is paused: nothing can be claimed from it.
    pub paused: bool,
    /// By subscription, type and status: all pending, processing and dead deliveries, and those finished since `since`.
    pub stats: Vec<StatRow>,
}

/// State of the maintenance tasks.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MaintenanceBody {
    /// Name of the namespace.
    pub namespace: String,
    /// By name. Tasks of the whole database are listed in the namespace `default`.
    pub tasks: Vec<MaintenanceTaskView>,
}
