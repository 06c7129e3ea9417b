//! Looking at what is there: one event, its log, lists, what is stuck, counts.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::clock::{SPAN_MAX, Timestamp, after};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::backlog::LiveCount;
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::queue::outcome::Action;
use crate::store::{HeldBy, HeldDelivery};

/// An event and how it stands with each subscription.
#[derive(Debug, Clone, Serialize)]
pub struct EventView {
    /// What happened.
    pub event: Event,
    /// One for each subscription that was told, in the order of their names.
    pub deliveries: Vec<DeliveryView>,
}

impl EventView {
    /// How it stands with one subscription.
    pub fn delivery(&self, subscription: &str) -> Option<&DeliveryView> {
        self.deliveries.iter().find(|delivery| delivery.subscription == subscription)
    }
}

/// How an event stands with one subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryView {
    /// Whose delivery it is.
    pub subscription: String,
    /// Where it stands.
    pub status: Status,
    /// How many times it was acquired.
    pub attempts: u32,
    /// How many failures were reported.
    pub retry_count: u32,
    /// The failure that brings `retry_count` to this is the last.
    pub max_retries: Option<u32>,
    /// While PENDING: when it may be taken; `None` while it waits for its group.
    pub ready_at: Option<DateTime<Utc>>,
    /// While PENDING after a failure: when it is tried again.
    pub next_retry_at: Option<DateTime<Utc>>,
    /// While PROCESSING: who holds it.
    pub worker_id: Option<String>,
    /// While PROCESSING: since when.
    pub picked_at: Option<DateTime<Utc>>,
    /// While PROCESSING: when the worker said that it began.
    pub started_at: Option<DateTime<Utc>>,
    /// While PROCESSING: until when.
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// The newest error.
    pub error_message: Option<String>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

/// One line of an event's log.
#[derive(Debug, Clone, Serialize)]
pub struct LogEntry {
    /// Unique, and growing within an event.
    pub id: i64,
    /// The event.
    pub event_id: i64,
    /// For whom.
    pub subscription: String,
    /// Which acquisition it belongs to; 0 before the first.
    pub attempt: u32,
    /// Who did it; `None` for what nobody in particular did.
    pub worker_id: Option<String>,
    /// What happened.
    pub action: Action,
    /// A number of the worker's own.
    pub status_code: Option<i32>,
    /// What went wrong, or why it was done.
    pub error_message: Option<String>,
    /// How long it took, as reported.
    pub execution_time_ms: Option<u64>,
    /// What else was reported at the end of the attempt, as JSON.
    pub detail: Option<Box<RawValue>>,
    /// When it happened.
    pub created_at: Timestamp,
}

/// Entries of one event have ids from `event_id * LOG_IDS_PER_EVENT + 1` on.
const LOG_IDS_PER_EVENT: i64 = 10_000;

/// Numbers a log that is in order.
pub(crate) fn number(mut log: Vec<LogEntry>) -> Vec<LogEntry> {
    for (entry, n) in log.iter_mut().zip(1..) {
        entry.id = entry.event_id * LOG_IDS_PER_EVENT + n;
    }
    log
}

/// Which events to list; what is empty or `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct ListFilter {
    /// In this state.
    pub status: Option<Status>,
    /// Of any of these types, by exact name or prefix ending in `*`.
    pub types: Vec<String>,
    /// With any of these tags.
    pub tags: Vec<String>,
    /// As this subscription sees them; `main` if `None`.
    pub subscription: Option<String>,
    /// How many; 20 if 0.
    pub limit: usize,
    /// How many to pass over.
    pub offset: usize,
}

/// A part of a list.
#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    /// What was asked for.
    pub items: Vec<T>,
    /// How many match in all.
    pub total: u64,
}

/// A delivery that will not be tried again by itself.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetter {
    /// The original event.
    pub event: Event,
    /// Whose delivery it was.
    pub subscription: String,
    /// FAILED or EXPIRED.
    pub status: Status,
    /// Why, in a few words.
    pub reason: String,
    /// The error's detail.
    pub error: Option<String>,
    /// How many times it was acquired.
    pub attempts: u32,
    /// How many failures were reported.
    pub retry_count: u32,
    /// The failure that brings `retry_count` to this is the last.
    pub max_retries: Option<u32>,
    /// When it was given up.
    pub failed_at: Timestamp,
}

/// Dead letters that have the same reason and type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetterGroup {
    /// Why they were given up.
    pub reason: String,
    /// Their type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// How many.
    pub count: u64,
    /// When the newest was given up.
    pub newest_at: DateTime<Utc>,
}

/// So many of the newest dead letters are put into groups.
pub(crate) const GROUPED_MAX: usize = 10_000;

/// Which dead letters; what is empty or `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    /// Of these events.
    pub event_ids: Vec<i64>,
    /// Of this subscription.
    pub subscription: Option<String>,
    /// FAILED or EXPIRED.
    pub status: Option<Status>,
    /// Of any of these types, by exact name or prefix ending in `*`.
    pub types: Vec<String>,
    /// With exactly this reason.
    pub reason: Option<String>,
    /// Given up before this instant.
    pub failed_before: Option<Timestamp>,
    /// The oldest first, instead of the newest.
    pub oldest_first: bool,
    /// Leaves the payloads in the database; `null` is shown instead.
    pub without_payloads: bool,
    /// How many; 20 if 0. Redrive and purge take all.
    pub limit: usize,
    /// How many to pass over.
    pub offset: usize,
}

/// A delivery that somebody has held for long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StuckDelivery {
    /// The event.
    pub event_id: i64,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Whose delivery it is.
    pub subscription: String,
    /// Who holds it.
    pub worker_id: String,
    /// Which acquisition it is.
    pub attempts: u32,
    /// Since when it is held.
    pub picked_at: DateTime<Utc>,
    /// When its worker said that it began; `None`: an orphan, picked and never heard of again.
    pub started_at: Option<DateTime<Utc>>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
    /// Until when it is held.
    pub lease_expires_at: DateTime<Utc>,
}

/// Whoever holds leases or ended attempts lately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerView {
    /// The name it gave.
    pub worker_id: String,
    /// How many deliveries it holds.
    pub held: u64,
    /// Since when it holds the oldest.
    pub oldest_picked_at: Option<DateTime<Utc>>,
    /// When it was last heard of: it claimed, began, extended or ended something.
    pub last_seen_at: DateTime<Utc>,
    /// It holds deliveries, and was not heard of for longer than was asked about.
    pub stale: bool,
}

/// How many deliveries stand where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatRow {
    /// Of this subscription.
    pub subscription: String,
    /// Of this type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// In this state.
    pub status: Status,
    /// How many.
    pub count: u64,
    /// The earliest instant among them: ready since, picked at, failed at or finished at.
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
    /// Refuses types and tags that no filter may ask for.
    pub fn check_filter(&self, types: &[String], tags: &[String]) -> Result<()> {
        check_filter(types, tags, self.limits())
    }

    /// The event and how it stands with each subscription.
    pub async fn get(&self, event_id: i64) -> Result<EventView> {
        self.route_before_reading().await;
        let views = self.store().get(self.namespace(), &[event_id]).await?;
        views.into_iter().next().flatten().ok_or_else(|| self.no_event(event_id))
    }

    /// All that happened to the event, in order.
    pub async fn log(&self, event_id: i64) -> Result<Vec<LogEntry>> {
        self.check_exists(event_id).await?;
        self.store().log(self.namespace(), event_id).await.map(number)
    }

    /// Events that match, the newest first.
    pub async fn list(&self, mut filter: ListFilter) -> Result<Page<EventView>> {
        check_page(&mut filter.limit, filter.offset, self.limits())?;
        check_filter(&filter.types, &filter.tags, self.limits())?;
        self.check_subscription_filter(filter.subscription.as_deref()).await?;
        self.route_before_reading().await;
        self.store().list(self.namespace(), &filter).await
    }

    /// Dead letters that match, the newest first unless the filter says otherwise.
    pub async fn dead_letters(&self, mut filter: DeadLetterFilter) -> Result<Page<DeadLetter>> {
        check_page(&mut filter.limit, filter.offset, self.limits())?;
        self.check_dead_letter_filter(&filter).await?;
        self.route_before_reading().await;
        self.store().dead_letters(self.namespace(), &filter).await
    }

    /// The newest 10,000 dead letters by reason and type, the largest groups first.
    pub async fn dead_letter_groups(&self, limit: usize) -> Result<Vec<DeadLetterGroup>> {
        let mut limit = limit;
        check_page(&mut limit, 0, self.limits())?;
        self.topology().await?;
        self.store().dead_letter_groups(self.namespace(), GROUPED_MAX, limit).await
    }

    /// Deliveries held for longer than this, the earliest first.
    pub async fn stuck(&self, older_than: Duration, limit: usize) -> Result<Vec<StuckDelivery>> {
        let mut limit = limit;
        check_page(&mut limit, 0, self.limits())?;
        self.topology().await?;
        self.store().stuck(self.namespace(), older_than.min(SPAN_MAX), limit, self.now()).await
    }

    /// Who holds leases or ended attempts in the last hour; stale: silent for longer than this.
    pub async fn workers(&self, stale_after: Duration) -> Result<Vec<WorkerView>> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let mut workers = self.store().workers(self.namespace(), now - chrono::TimeDelta::hours(1)).await?;
        for worker in &mut workers {
            worker.stale = worker.held > 0 && after(worker.last_seen_at, stale_after) < now;
        }
        Ok(workers)
    }

    /// Counts by subscription, type and status: of all that is live or dead, and of what ended since then.
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

    /// A filter may leave it open, but must not name a subscription that is not there.
    pub(crate) async fn check_subscription_filter(&self, subscription: Option<&str>) -> Result<()> {
        match subscription {
            Some(name) => self.topology_with(name).await.map(drop),
            None => self.topology().await.map(drop),
        }
    }

    pub(crate) async fn check_exists(&self, event_id: i64) -> Result<()> {
        match self.store().exists(self.namespace(), &[event_id]).await?[..] {
            [true] => Ok(()),
            _ => Err(self.no_event(event_id)),
        }
    }

    /// The status of a delivery that is not live, for error messages.
    pub(crate) async fn ended_status(&self, event_id: i64, subscription: &str) -> Result<Status> {
        let view = self.get(event_id).await?;
        view.delivery(subscription).map(|delivery| delivery.status).ok_or_else(|| self.no_event(event_id))
    }

    pub(crate) fn anyone(&self, event_id: i64, subscription: &str) -> HeldDelivery {
        HeldDelivery { event_id, subscription: subscription.to_owned(), by: HeldBy::Anyone }
    }
}
