//! Searches events by status, type, tags, group, key, time or text, the newest first.
//!
//! Each page reads a bounded number of rows and stops early if it takes too long; `next` continues from there.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::inspect::{DeliveryView, check_filter, check_page};
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::store::{EventFilter, SearchStep, Source};
use crate::topology::MAIN;

/// Which events to search for. Empty and `None` fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct SearchFilter {
    /// With this status.
    pub status: Option<Status>,
    /// Of any of these types, by exact name or by prefix ending in `*`.
    pub types: Vec<String>,
    /// With any of these tags.
    pub tags: Vec<String>,
    /// With a delivery to this subscription; `main` if `None`.
    pub subscription: Option<String>,
    /// With this text in the title, description, type or payload, ignoring case. A number also finds the event with
    /// that id, which then comes first.
    pub text: Option<String>,
    /// Of this group.
    pub group_id: Option<String>,
    /// Published with this key.
    pub key: Option<String>,
    /// Published at this time or later.
    pub created_from: Option<Timestamp>,
    /// Published before this time.
    pub created_before: Option<Timestamp>,
    /// With a smaller id than this: the `next` of the previous page.
    pub before: Option<i64>,
    /// The page size; 20 if 0.
    pub limit: usize,
}

/// A search result: an event without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SearchResult {
    /// The event's id.
    pub event_id: i64,
    /// The event's type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The event's title.
    pub title: Option<String>,
    /// Comma-separated, as published.
    pub tags: String,
    /// The event's group.
    pub group_id: Option<String>,
    /// When it was published.
    pub created_at: DateTime<Utc>,
    /// The delivery to the subscription of the filter.
    pub delivery: DeliveryView,
}

/// A page of search results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SearchPage {
    /// The newest first.
    pub events: Vec<SearchResult>,
    /// The `before` of the next page; `None` on the last page.
    pub next: Option<i64>,
    /// How many events or deliveries were read for this page.
    pub looked_at: u64,
}

/// The time after which a page ends early.
const PAGE_TIME_MAX: Duration = Duration::from_millis(100);
/// The size of the first batch of rows. Later batches are larger, because matches seem to be rare, unless a batch is
/// slow.
const BATCH_ROWS_MIN: usize = 100;
const BATCH_GROWTH: usize = 4;
const BATCH_ROWS_MAX: usize = 2_000;

impl Queue {
    /// Returns a page of matching events, the newest first. A page reads a bounded number of rows: it may contain
    /// fewer events than the limit, or none, and still have a `next`.
    pub async fn search(&self, mut filter: SearchFilter) -> Result<SearchPage> {
        check(&mut filter, self.limits())?;
        self.check_subscription_filter(filter.subscription.as_deref()).await?;
        let mut search = Search::new(self, &filter);
        search.add_event_by_id(&filter).await?;
        search.skip_to_key(&filter).await?;
        match search.live_ids().await? {
            Some(ids) => search.filter_ids(&ids).await?,
            None => search.walk().await?,
        }
        let mut events = self.store().found(self.namespace(), search.source.subscription(), &search.ids).await?;
        // The status may have changed since the ids were read.
        events.retain(|found| filter.status.is_none_or(|status| found.delivery.status == status));
        Ok(SearchPage { events, next: search.next, looked_at: search.looked_at as u64 })
    }
}

fn check(filter: &mut SearchFilter, limits: &Limits) -> Result<()> {
    check_page(&mut filter.limit, 0, limits)?;
    check_filter(&filter.types, &filter.tags, limits)?;
    for (field, name) in [("group_id", &filter.group_id), ("key", &filter.key)] {
        name.as_deref().map_or(Ok(()), |name| names::check(field, name))?;
    }
    if let Some(text) = &mut filter.text {
        *text = text.trim().to_owned();
        names::check_text("text", text, limits.search_text_bytes_max)?;
    }
    filter.text.take_if(|text| text.is_empty());
    match (filter.created_from, filter.created_before) {
        (Some(from), Some(before)) if from >= before => {
            Err(Error::invalid("created_from", "must be earlier than created_before"))
        }
        _ => Ok(()),
    }
}

/// The state of a search while its page is filled.
struct Search<'a> {
    queue: &'a Queue,
    source: Source,
    /// `None` if every event of the source matches.
    contents: Option<EventFilter>,
    /// The event whose id was given as the text. It comes first and is not repeated.
    event_by_id: Option<i64>,
    limit: usize,
    /// The size of the next batch.
    batch_rows: usize,
    ids: Vec<i64>,
    looked_at: usize,
    /// Where the next batch begins; `None` at the end.
    next: Option<i64>,
    started: Instant,
}

impl Search<'_> {
    fn new<'a>(queue: &'a Queue, filter: &SearchFilter) -> Search<'a> {
        let (source, contents) = (Source::of(filter), EventFilter::of(filter));
        // Without a condition that is checked per row, the limit is enough.
        let all_match = contents.is_none() && !matches!(source, Source::Matched { .. } | Source::Ended { .. });
        Search {
            queue,
            source,
            event_by_id: filter.text.as_deref().and_then(parse_event_id),
            limit: filter.limit,
            batch_rows: if all_match { filter.limit } else { BATCH_ROWS_MIN.max(filter.limit) },
            contents,
            ids: Vec::new(),
            looked_at: 0,
            next: Some(filter.before.unwrap_or(i64::MAX)),
            started: Instant::now(),
        }
    }

    async fn add_event_by_id(&mut self, filter: &SearchFilter) -> Result<()> {
        if let (Some(event_id), None) = (self.event_by_id, filter.before) {
            let other_conditions = SearchFilter { text: None, ..filter.clone() };
            self.ids = self.matching(EventFilter::of(&other_conditions).as_ref(), vec![event_id]).await?;
        }
        Ok(())
    }

    /// Starts at the event that owns the key: events with the same key are never newer.
    async fn skip_to_key(&mut self, filter: &SearchFilter) -> Result<()> {
        let Some(key) = &filter.key else { return Ok(()) };
        let newest = self.queue.store().event_of_key(self.queue.namespace(), key).await?;
        self.next = self.next.min(newest.map(|id| id.saturating_add(1)).or(self.next));
        Ok(())
    }

    /// The ids of all pending or processing deliveries, the newest first, if the filter asks for them and there are
    /// not too many.
    async fn live_ids(&self) -> Result<Option<Vec<i64>>> {
        let Source::Live { subscription, held } = &self.source else { return Ok(None) };
        let (store, rows) = (self.queue.store(), self.queue.limits().search_rows_max);
        let mut ids = store.live_ids(self.queue.namespace(), subscription, *held, rows).await?;
        if let Some(ids) = &mut ids {
            ids.retain(|id| self.next.is_none_or(|before| *id < before));
            ids.sort_unstable_by(|a, b| b.cmp(a));
        }
        Ok(ids)
    }

    async fn filter_ids(&mut self, mut ids: &[i64]) -> Result<()> {
        while self.is_unfinished() {
            let (batch, rest) = ids.split_at(self.batch_rows.min(ids.len()));
            let next = batch.last().copied().filter(|_| !rest.is_empty());
            self.add(SearchStep { ids: batch.to_vec(), looked_at: batch.len(), next }).await?;
            ids = rest;
        }
        Ok(())
    }

    async fn walk(&mut self) -> Result<()> {
        while let Some(before) = self.next.filter(|_| self.is_unfinished()) {
            let rows = self.batch_rows.min(self.queue.limits().search_rows_max - self.looked_at);
            let step = self.queue.store().walk(self.queue.namespace(), &self.source, before, rows).await?;
            self.add(step).await?;
        }
        Ok(())
    }

    /// Whether to read another batch. Each page reads at least one batch, so that a slow database still makes
    /// progress.
    fn is_unfinished(&self) -> bool {
        let in_time = self.looked_at == 0 || self.started.elapsed() < PAGE_TIME_MAX;
        let few_rows = self.looked_at < self.queue.limits().search_rows_max;
        self.next.is_some() && self.ids.len() < self.limit && few_rows && in_time
    }

    /// Adds the matching events of a batch, up to the limit.
    async fn add(&mut self, mut step: SearchStep) -> Result<()> {
        step.ids.retain(|id| Some(*id) != self.event_by_id);
        let ids = self.matching(self.contents.as_ref(), step.ids).await?;
        let remaining = self.limit - self.ids.len();
        let last = remaining.checked_sub(1).and_then(|last| ids.get(last)).copied();
        self.next = if ids.len() > remaining { last } else { step.next };
        self.ids.extend(ids.into_iter().take(remaining));
        self.looked_at += step.looked_at;
        if self.started.elapsed() < PAGE_TIME_MAX / 4 {
            self.batch_rows = (self.batch_rows * BATCH_GROWTH).min(BATCH_ROWS_MAX);
        }
        Ok(())
    }

    async fn matching(&self, contents: Option<&EventFilter>, ids: Vec<i64>) -> Result<Vec<i64>> {
        match contents {
            Some(contents) if !ids.is_empty() => {
                self.queue.store().matching(self.queue.namespace(), contents, ids).await
            }
            _ => Ok(ids),
        }
    }
}

/// The text as an event id.
fn parse_event_id(text: &str) -> Option<i64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Source {
    fn of(filter: &SearchFilter) -> Source {
        let subscription = filter.subscription.clone().unwrap_or_else(|| MAIN.to_owned());
        match filter.status {
            None if subscription == MAIN => Source::All,
            None => Source::Matched { subscription },
            Some(Status::Pending) => Source::Live { subscription, held: false },
            Some(Status::Processing) => Source::Live { subscription, held: true },
            Some(status @ (Status::Failed | Status::Expired)) => Source::Dead { subscription, status },
            Some(status) => Source::Ended { subscription, status },
        }
    }

    fn subscription(&self) -> &str {
        match self {
            Source::All => MAIN,
            Source::Matched { subscription }
            | Source::Live { subscription, .. }
            | Source::Dead { subscription, .. }
            | Source::Ended { subscription, .. } => subscription,
        }
    }
}

impl EventFilter {
    /// The conditions that are checked per event; `None` if there are none.
    fn of(filter: &SearchFilter) -> Option<EventFilter> {
        let contents = EventFilter {
            types: filter.types.clone(),
            tags: filter.tags.clone(),
            text: filter.text.clone(),
            group_id: filter.group_id.clone(),
            key: filter.key.clone(),
            created_from: filter.created_from,
            created_before: filter.created_before,
        };
        Some(contents).filter(|contents| *contents != EventFilter::default())
    }
}
