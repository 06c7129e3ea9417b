//! Finding events: by state, type, tags, group, key, time or text, the newest first.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::inspect::{DeliveryView, check_filter, check_page};
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::store::{EventFilter, SearchStep, Source};
use crate::topology::MAIN;

/// Which events to search for; what is empty or `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct SearchFilter {
    /// In this state.
    pub status: Option<Status>,
    /// Of any of these types, by exact name or prefix ending in `*`.
    pub types: Vec<String>,
    /// With any of these tags.
    pub tags: Vec<String>,
    /// As this subscription sees them; `main` if `None`.
    pub subscription: Option<String>,
    /// With this in their title, description, type or payload, in capitals or not. A number also finds the event of
    /// that id, which then comes first.
    pub text: Option<String>,
    /// Of this group.
    pub group_id: Option<String>,
    /// Published with this key.
    pub key: Option<String>,
    /// Published at this instant or later.
    pub created_from: Option<Timestamp>,
    /// Published before this instant.
    pub created_before: Option<Timestamp>,
    /// With a smaller id: the `next` of the page before.
    pub before: Option<i64>,
    /// How many; 20 if 0.
    pub limit: usize,
}

/// An event that was found, without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SearchResult {
    /// Its number.
    pub event_id: i64,
    /// What kind of event it is.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Its title.
    pub title: Option<String>,
    /// Comma-separated, as it was sent.
    pub tags: String,
    /// Its group.
    pub group_id: Option<String>,
    /// When it was published.
    pub created_at: DateTime<Utc>,
    /// How it stands with the subscription.
    pub delivery: DeliveryView,
}

/// A page of what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SearchPage {
    /// The newest first.
    pub events: Vec<SearchResult>,
    /// Where the next page begins: its `before`. `None`: that was all.
    pub next: Option<i64>,
    /// How many events or deliveries were looked at for this page.
    pub looked_at: u64,
}

/// A page that takes longer than this ends where it is.
const PAGE_TIME: Duration = Duration::from_millis(100);
/// How many rows are looked at first. Further looks are larger, since what is asked for seems to be rare, unless they take
/// long.
const LOOK_MIN: usize = 100;
const LOOK_GROWTH: usize = 4;
const LOOK_MAX: usize = 2_000;

impl Queue {
    /// Events that match, the newest first. A page looks at a bounded number of them: it may hold fewer than the limit,
    /// or none, and still have a `next`.
    pub async fn search(&self, mut filter: SearchFilter) -> Result<SearchPage> {
        check(&mut filter, self.limits())?;
        self.check_subscription_filter(filter.subscription.as_deref()).await?;
        let mut search = Search::new(self, &filter);
        search.add_named(&filter).await?;
        search.skip_to_key(&filter).await?;
        match search.live().await? {
            Some(live) => search.go_through(&live).await?,
            None => search.walk().await?,
        }
        let mut events = self.store().found(self.namespace(), search.source.subscription(), &search.ids).await?;
        // It may have changed meanwhile.
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

/// A page in the making.
struct Search<'a> {
    queue: &'a Queue,
    source: Source,
    /// `None`: every event of the source will do.
    contents: Option<EventFilter>,
    /// The event whose number was given as the text. It is found first, and not again.
    named: Option<i64>,
    limit: usize,
    /// How many rows the next look is for.
    look: usize,
    ids: Vec<i64>,
    looked_at: usize,
    /// Where to go on; `None` at the end.
    next: Option<i64>,
    begun: Instant,
}

impl Search<'_> {
    fn new<'a>(queue: &'a Queue, filter: &SearchFilter) -> Search<'a> {
        let (source, contents) = (Source::of(filter), EventFilter::of(filter));
        // Without a condition that each has to be looked at for, so many are enough.
        let exact = contents.is_none() && !matches!(source, Source::Told { .. } | Source::Ended { .. });
        Search {
            queue,
            source,
            named: filter.text.as_deref().and_then(number),
            limit: filter.limit,
            look: if exact { filter.limit } else { LOOK_MIN.max(filter.limit) },
            contents,
            ids: Vec::new(),
            looked_at: 0,
            next: Some(filter.before.unwrap_or(i64::MAX)),
            begun: Instant::now(),
        }
    }

    async fn add_named(&mut self, filter: &SearchFilter) -> Result<()> {
        if let (Some(named), None) = (self.named, filter.before) {
            let others = SearchFilter { text: None, ..filter.clone() };
            self.ids = self.matching(EventFilter::of(&others).as_ref(), vec![named]).await?;
        }
        Ok(())
    }

    /// No event with a key is newer than the one that it stands for.
    async fn skip_to_key(&mut self, filter: &SearchFilter) -> Result<()> {
        let Some(key) = &filter.key else { return Ok(()) };
        let newest = self.queue.store().event_of_key(self.queue.namespace(), key).await?;
        self.next = self.next.min(newest.map(|id| id.saturating_add(1)).or(self.next));
        Ok(())
    }

    /// All that is live, the newest first, if that is asked for and not too much to go through.
    async fn live(&self) -> Result<Option<Vec<i64>>> {
        let Source::Live { subscription, held } = &self.source else { return Ok(None) };
        let (store, rows) = (self.queue.store(), self.queue.limits().search_rows_max);
        let mut live = store.live_ids(self.queue.namespace(), subscription, *held, rows).await?;
        if let Some(live) = &mut live {
            live.retain(|id| self.next.is_none_or(|before| *id < before));
            live.sort_unstable_by(|a, b| b.cmp(a));
        }
        Ok(live)
    }

    async fn go_through(&mut self, mut live: &[i64]) -> Result<()> {
        while self.goes_on() {
            let (these, others) = live.split_at(self.look.min(live.len()));
            let next = these.last().copied().filter(|_| !others.is_empty());
            self.add(SearchStep { ids: these.to_vec(), looked_at: these.len(), next }).await?;
            live = others;
        }
        Ok(())
    }

    async fn walk(&mut self) -> Result<()> {
        while let Some(before) = self.next.filter(|_| self.goes_on()) {
            let rows = self.look.min(self.queue.limits().search_rows_max - self.looked_at);
            let walked = self.queue.store().walk(self.queue.namespace(), &self.source, before, rows).await?;
            self.add(walked).await?;
        }
        Ok(())
    }

    /// However slow the database is, every page comes a little further.
    fn goes_on(&self) -> bool {
        let in_time = self.looked_at == 0 || self.begun.elapsed() < PAGE_TIME;
        let few_rows = self.looked_at < self.queue.limits().search_rows_max;
        self.next.is_some() && self.ids.len() < self.limit && few_rows && in_time
    }

    /// Adds those that match, as far as there is room.
    async fn add(&mut self, mut walked: SearchStep) -> Result<()> {
        walked.ids.retain(|id| Some(*id) != self.named);
        let ids = self.matching(self.contents.as_ref(), walked.ids).await?;
        let room = self.limit - self.ids.len();
        let last = room.checked_sub(1).and_then(|last| ids.get(last)).copied();
        self.next = if ids.len() > room { last } else { walked.next };
        self.ids.extend(ids.into_iter().take(room));
        self.looked_at += walked.looked_at;
        if self.begun.elapsed() < PAGE_TIME / 4 {
            self.look = (self.look * LOOK_GROWTH).min(LOOK_MAX);
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

/// The text as the number of an event.
fn number(text: &str) -> Option<i64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Source {
    fn of(filter: &SearchFilter) -> Source {
        let subscription = filter.subscription.clone().unwrap_or_else(|| MAIN.to_owned());
        match filter.status {
            None if subscription == MAIN => Source::All,
            None => Source::Told { subscription },
            Some(Status::Pending) => Source::Live { subscription, held: false },
            Some(Status::Processing) => Source::Live { subscription, held: true },
            Some(status @ (Status::Failed | Status::Expired)) => Source::Dead { subscription, status },
            Some(status) => Source::Ended { subscription, status },
        }
    }

    fn subscription(&self) -> &str {
        match self {
            Source::All => MAIN,
            Source::Told { subscription }
            | Source::Live { subscription, .. }
            | Source::Dead { subscription, .. }
            | Source::Ended { subscription, .. } => subscription,
        }
    }
}

impl EventFilter {
    /// `None`: every event will do.
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
