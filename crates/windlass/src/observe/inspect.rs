//! Reads what is stored: single events, their history, lists, dead letters, stuck deliveries, workers and counts.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::{DURATION_MAX, Timestamp, after};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::backlog::LiveCount;
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::queue::outcome::Action;
use crate::store::{HeldBy, HeldDelivery};

/// An event and its deliveries.
#[derive(Debug, Clone, Serialize)]
pub struct EventView {
    /// The event.
    pub event: Event,
    /// One delivery per subscription, ordered by subscription name.
    pub deliveries: Vec<DeliveryView>,
}

impl EventView {
    /// The delivery to one subscription.
    pub fn delivery(&self, subscription: &str) -> Option<&DeliveryView> {
        self.deliveries.iter().find(|delivery| delivery.subscription == subscription)
    }
}

/// The state of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryView {
    /// The subscription.
    pub subscription: String,
    /// The status.
    pub status: Status,
    /// How many times it was claimed.
    pub attempts: u32,
    /// How many failures were reported.
    pub retry_count: u32,
    /// The delivery becomes a dead letter when `retry_count` reaches this.
    pub max_retries: Option<u32>,
    /// While PENDING: when it can be claimed; `None` while it waits for its group.
    pub ready_at: Option<DateTime<Utc>>,
    /// While PENDING after a failure: when it is retried.
    pub next_retry_at: Option<DateTime<Utc>>,
    /// While PROCESSING: the worker that holds the lease.
    pub worker_id: Option<String>,
    /// While PROCESSING: when it was claimed.
    pub picked_at: Option<DateTime<Utc>>,
    /// While PROCESSING: when the worker reported that it started.
    pub started_at: Option<DateTime<Utc>>,
    /// While PROCESSING: when the lease expires.
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// The newest error.
    pub error_message: Option<String>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

/// An entry of an event's log.
#[derive(Debug, Clone, Serialize)]
pub struct LogEntry {
    /// Unique, and increasing within an event.
    pub id: i64,
    /// The event.
    pub event_id: i64,
    /// The subscription.
    pub subscription: String,
    /// The attempt that it belongs to; 0 before the first claim.
    pub attempt: u32,
    /// The worker that did it; `None` for publishing and maintenance.
    pub worker_id: Option<String>,
    /// The action.
    pub action: Action,
    /// A status code chosen by the worker.
    pub status_code: Option<i32>,
    /// The error, or the reason for the action.
    pub error_message: Option<String>,
    /// The execution time reported by the worker.
    pub execution_time_ms: Option<u64>,
    /// Other details reported with the outcome, as JSON.
    pub detail: Option<Box<RawValue>>,
    /// When it happened.
    pub created_at: Timestamp,
}

/// The entries of an event have ids from `event_id * LOG_IDS_PER_EVENT + 1` on.
const LOG_IDS_PER_EVENT: i64 = 10_000;

/// Assigns ids to the entries of a log, which are in order.
pub(crate) fn assign_log_ids(mut log: Vec<LogEntry>) -> Vec<LogEntry> {
    for (entry, n) in log.iter_mut().zip(1..) {
        entry.id = entry.event_id * LOG_IDS_PER_EVENT + n;
    }
    log
}

/// Which events to list. Empty and `None` fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct ListFilter {
    /// With this status.
    pub status: Option<Status>,
    /// Of any of these types, by exact name or by prefix ending in `*`.
    pub types: Vec<String>,
    /// With any of these tags.
    pub tags: Vec<String>,
    /// With a delivery to this subscription; `main` if `None`.
    pub subscription: Option<String>,
    /// The page size; 20 if 0.
    pub limit: usize,
    /// How many to skip.
    pub offset: usize,
}

/// A page of a list.
#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// The number of all matches.
    pub total: u64,
}

/// A delivery that is not retried automatically.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetter {
    /// The original event.
    pub event: Event,
    /// The subscription.
    pub subscription: String,
    /// FAILED or EXPIRED.
    pub status: Status,
    /// The reason.
    pub reason: String,
    /// The error message.
    pub error: Option<String>,
    /// How many times it was claimed.
    pub attempts: u32,
    /// How many failures were reported.
    pub retry_count: u32,
    /// The delivery becomes a dead letter when `retry_count` reaches this.
    pub max_retries: Option<u32>,
    /// When it became a dead letter.
    pub failed_at: Timestamp,
}

/// Dead letters with the same reason and type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetterGroup {
    /// The reason.
    pub reason: String,
    /// The event type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The number.
    pub count: u64,
    /// When the newest became a dead letter.
    pub newest_at: DateTime<Utc>,
}

/// How many of the newest dead letters are grouped.
pub(crate) const GROUPED_MAX: usize = 10_000;

/// Which dead letters to select. Empty and `None` fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    /// Of these events.
    pub event_ids: Vec<i64>,
    /// Of this subscription.
    pub subscription: Option<String>,
    /// FAILED or EXPIRED.
    pub status: Option<Status>,
    /// Of any of these types, by exact name or by prefix ending in `*`.
    pub types: Vec<String>,
    /// With exactly this reason.
    pub reason: Option<String>,
    /// Dead-lettered before this time.
    pub failed_before: Option<Timestamp>,
    /// Oldest first instead of newest first.
    pub oldest_first: bool,
    /// Does not load the payloads; `null` is returned instead.
    pub without_payloads: bool,
    /// The page size; 20 if 0. Redrive and purge ignore it.
    pub limit: usize,
    /// How many to skip.
    pub offset: usize,
}

/// A delivery that has been processing for a long time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StuckDelivery {
    /// The event.
    pub event_id: i64,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The subscription.
    pub subscription: String,
    /// The worker that holds the lease.
    pub worker_id: String,
    /// The number of the attempt.
    pub attempts: u32,
    /// When it was claimed.
    pub picked_at: DateTime<Utc>,
    /// When its worker reported that it started; `None` for an orphan: claimed, and not heard of since.
    pub started_at: Option<DateTime<Utc>>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
    /// When the lease expires.
    pub lease_expires_at: DateTime<Utc>,
}

/// A worker that holds leases or finished attempts within the last hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerView {
    /// The id that it claims with.
    pub worker_id: String,
    /// How many deliveries it holds.
    pub held: u64,
    /// When it claimed the oldest of them.
    pub oldest_picked_at: Option<DateTime<Utc>>,
    /// When it last claimed, started, extended or finished a delivery.
    pub last_seen_at: DateTime<Utc>,
    /// It holds deliveries and has been silent for longer than the requested time.
    pub stale: bool,
}

/// The number of deliveries of one subscription, type and status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatRow {
    /// The subscription.
    pub subscription: String,
    /// The event type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// With this status.
    pub status: Status,
    /// The number.
    pub count: u64,
    /// The earliest timestamp among them: when it became ready, was claimed, failed or finished.
    pub oldest_at: Option<DateTime<Utc>>,
}

pub(crate) const PAGE_DEFAULT: usize = 20;

pub(crate) fn check_page(limit: &mut usize, offset: usize, limits: &Limits) -> Result<()> {
    if *limit == 0 {
        *limit = PAGE_DEFAULT.min(limits.page_max);
    }
    if *limit > limits.page_max {
        return Err(Error::invalid("limit", format!("must be from 1 to {}", limits.page_max)));
    }
    if i64::try_from(offset).is_err() {
        return Err(Error::invalid("offset", "is too large"));
    }
    Ok(())
}

pub(crate) fn check_filter(types: &[String], tags: &[String], limits: &Limits) -> Result<()> {
    check_types("types", types, limits)?;
    check_length("tags", tags, limits.tags_max)?;
    tags.iter().try_for_each(|tag| names::check("tags", tag))
}

pub(crate) fn check_types(field: &'static str, types: &[String], limits: &Limits) -> Result<()> {
    check_length(field, types, limits.types_max)?;
    types.iter().try_for_each(|pattern| names::check_type_pattern(field, pattern))
}

fn check_length(field: &'static str, list: &[String], max: usize) -> Result<()> {
    if list.len() > max {
        return Err(Error::invalid(field, format!("has {} entries; the limit is {max}", list.len())));
    }
    Ok(())
}

impl Queue {
    /// Returns an error for types or tags that are invalid in a filter.
    pub fn check_filter(&self, types: &[String], tags: &[String]) -> Result<()> {
        check_filter(types, tags, self.limits())
    }

    /// Returns an event and its deliveries.
    pub async fn get(&self, event_id: i64) -> Result<EventView> {
        self.route_before_reading().await;
        let views = self.store().get(self.namespace(), &[event_id]).await?;
        views.into_iter().next().flatten().ok_or_else(|| self.event_not_found(event_id))
    }

    /// Returns the history of an event, in order.
    pub async fn log(&self, event_id: i64) -> Result<Vec<LogEntry>> {
        self.check_exists(event_id).await?;
        self.store().log(self.namespace(), event_id).await.map(assign_log_ids)
    }

    /// Returns matching events, the newest first.
    pub async fn list(&self, mut filter: ListFilter) -> Result<Page<EventView>> {
        check_page(&mut filter.limit, filter.offset, self.limits())?;
        check_filter(&filter.types, &filter.tags, self.limits())?;
        self.check_subscription_filter(filter.subscription.as_deref()).await?;
        self.route_before_reading().await;
        self.store().list(self.namespace(), &filter).await
    }

    /// Returns matching dead letters, the newest first unless the filter says otherwise.
    pub async fn dead_letters(&self, mut filter: DeadLetterFilter) -> Result<Page<DeadLetter>> {
        check_page(&mut filter.limit, filter.offset, self.limits())?;
        self.check_dead_letter_filter(&filter).await?;
        self.route_before_reading().await;
        self.store().dead_letters(self.namespace(), &filter).await
    }

    /// Returns the newest 10,000 dead letters grouped by reason and type, the largest groups first.
    pub async fn dead_letter_groups(&self, limit: usize) -> Result<Vec<DeadLetterGroup>> {
        let mut limit = limit;
        check_page(&mut limit, 0, self.limits())?;
        self.topology().await?;
        self.store().dead_letter_groups(self.namespace(), GROUPED_MAX, limit).await
    }

    /// Returns deliveries that have been processing for longer than this, the oldest first.
    pub async fn stuck(&self, older_than: Duration, limit: usize) -> Result<Vec<StuckDelivery>> {
        let mut limit = limit;
        check_page(&mut limit, 0, self.limits())?;
        self.topology().await?;
        self.store().stuck(self.namespace(), older_than.min(DURATION_MAX), limit, self.now()).await
    }

    /// Returns workers that hold leases or finished attempts in the last hour. They are stale if silent for longer
    /// than `stale_after`.
    pub async fn workers(&self, stale_after: Duration) -> Result<Vec<WorkerView>> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let mut workers = self.store().workers(self.namespace(), now - chrono::TimeDelta::hours(1)).await?;
        for worker in &mut workers {
            worker.stale = worker.held > 0 && after(worker.last_seen_at, stale_after) < now;
        }
        Ok(workers)
    }

    /// Returns counts by subscription, type and status: of all pending, processing and dead deliveries, and of those
    /// finished since then.
    pub async fn stats(&self, since: Timestamp) -> Result<Vec<StatRow>> {
        self.topology().await?;
        self.route_before_reading().await;
        let (live, mut rows) = self.store().stats(self.namespace(), since, self.now()).await?;
        rows.extend(live.iter().flat_map(LiveCount::stats));
        rows.sort_by(|a, b| {
            (&a.subscription, &a.event_type, a.status).cmp(&(&b.subscription, &b.event_type, b.status))
        });
        Ok(rows)
    }

    /// Returns an error if the filter names a subscription that does not exist.
    pub(crate) async fn check_subscription_filter(&self, subscription: Option<&str>) -> Result<()> {
        match subscription {
            Some(name) => self.topology_with(name).await.map(drop),
            None => self.topology().await.map(drop),
        }
    }

    pub(crate) async fn check_exists(&self, event_id: i64) -> Result<()> {
        match self.store().exists(self.namespace(), &[event_id]).await?[..] {
            [true] => Ok(()),
            _ => Err(self.event_not_found(event_id)),
        }
    }

    /// The status of a finished delivery, for error messages.
    pub(crate) async fn ended_status(&self, event_id: i64, subscription: &str) -> Result<Status> {
        let view = self.get(event_id).await?;
        view.delivery(subscription).map(|delivery| delivery.status).ok_or_else(|| self.event_not_found(event_id))
    }

    pub(crate) fn anyone(&self, event_id: i64, subscription: &str) -> HeldDelivery {
        HeldDelivery { event_id, subscription: subscription.to_owned(), by: HeldBy::Anyone }
    }
}
