//! What happens to events, as it happens: read from the database, so that it tells every process's doings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::TimeDelta;
use serde::Serialize;

use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::check_page;
use crate::queue::Queue;
use crate::queue::decide::status_led_to;
use crate::queue::outcome::{Action, Attempt};
use crate::store::{ActivitySince, EventHead, RecentActivity};
use crate::topology::{MAIN, wants};

/// What a transaction did is seen if it commits at most this long after it began: ids and instants are
/// given out before the commit, so what is seen later may lie before what was seen already.
const OVERLAP: Duration = Duration::from_secs(5);
/// How much of the overlap is read again at most, beyond what is asked for.
const OVERLAP_ROWS: usize = 1_000;

/// Something that happened to an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Activity {
    /// The event.
    pub event_id: i64,
    /// Its type; empty where the event is no longer kept.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Its title.
    pub title: Option<String>,
    /// Its tags, as they were published.
    pub tags: String,
    /// For whom; `main` for PUBLISHED.
    pub subscription: String,
    /// What happened.
    pub action: Action,
    /// Where that led to.
    pub status: Status,
    /// Which acquisition it belongs to; 0 before the first.
    pub attempt: u32,
    /// Who did it; `None` for what nobody in particular did.
    pub worker_id: Option<String>,
    /// What went wrong, or why it was done.
    pub error_message: Option<String>,
    /// When it happened.
    pub created_at: Timestamp,
}

impl Activity {
    /// Whether it is of any of these types (by exact name, or by prefix ending in `*`) and has any of these
    /// tags; an empty list asks for nothing in particular.
    pub fn matches(&self, types: &[String], tags: &[String]) -> bool {
        let own: Vec<String> = self.tags.split(',').map(|tag| tag.trim().to_owned()).collect();
        wants(types, tags, &self.event_type, &own)
    }
}

/// How far somebody has read. It belongs to one namespace.
#[derive(Debug, Clone)]
pub struct ActivityCursor {
    /// Events, by their id.
    published: Track,
    /// Attempts, by their end and id.
    ended: Track,
}

/// What happened since the last page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityPage {
    /// The oldest first.
    pub entries: Vec<Activity>,
    /// How many older ones were passed over, at least, because more happened than was asked for.
    pub missed: u64,
}

impl Queue {
    /// Where the feed stands now: what happens from here on is new.
    pub async fn activity_now(&self) -> Result<ActivityCursor> {
        self.topology().await?;
        let horizon = self.horizon().await?;
        let mut cursor = ActivityCursor::from(horizon);
        let recent = self.store().recent(self.namespace(), &cursor.since(), OVERLAP_ROWS).await?;
        cursor.take(recent, OVERLAP_ROWS, horizon);
        Ok(cursor)
    }

    /// What happened since, the oldest first: events that were published, and attempts that ended or were
    /// brought to an end. If that is more than `limit` (20 if 0), the newest of it, so that nobody falls
    /// behind for ever. After an error the cursor is where it was.
    ///
    /// That a worker claimed or started something is not told before its attempt has ended. Where the policy
    /// keeps no history, what is done leaves no trace, and is not told at all.
    pub async fn activity(&self, cursor: &mut ActivityCursor, limit: usize) -> Result<ActivityPage> {
        let mut limit = limit;
        check_page(&mut limit, 0, self.limits())?;
        let horizon = self.horizon().await?;
        let (mut next, rows_max) = (cursor.clone(), limit + OVERLAP_ROWS);
        let recent = self.store().recent(self.namespace(), &next.since(), rows_max).await?;
        let mut new = next.take(recent, rows_max, horizon);
        let missed = new.len().saturating_sub(limit);
        let entries = self.described(new.split_off(missed)).await?;
        *cursor = next;
        Ok(ActivityPage { entries, missed: missed as u64 })
    }

    /// Whatever began before this has been committed, or comes too late.
    async fn horizon(&self) -> Result<Timestamp> {
        Ok(self.store().now(self.now()).await? - TimeDelta::microseconds(micros(OVERLAP)))
    }

    async fn described(&self, new: Vec<Happening>) -> Result<Vec<Activity>> {
        let of_attempts = new.iter().filter_map(|happening| match happening {
            Happening::Ended(attempt) => Some(attempt.event_id),
            Happening::Published(_) => None,
        });
        let ids: Vec<i64> = of_attempts.collect::<BTreeSet<i64>>().into_iter().collect();
        let found = if ids.is_empty() { Vec::new() } else { self.store().heads(self.namespace(), &ids).await? };
        let heads: HashMap<i64, EventHead> = found.into_iter().map(|head| (head.event_id, head)).collect();
        Ok(new.into_iter().map(|happening| happening.describe(&heads)).collect())
    }
}

/// Something that happened, as the database tells it.
enum Happening {
    Published(EventHead),
    Ended(Attempt),
}

impl Happening {
    /// An event is published before anything else happens to it.
    fn order(&self) -> (Timestamp, bool) {
        match self {
            Happening::Published(head) => (head.created_at, false),
            Happening::Ended(attempt) => (attempt.finished_at, true),
        }
    }

    fn describe(self, heads: &HashMap<i64, EventHead>) -> Activity {
        match self {
            Happening::Published(head) => Activity {
                event_id: head.event_id,
                event_type: head.event_type,
                title: head.title,
                tags: head.tags,
                subscription: MAIN.to_owned(),
                action: Action::Published,
                status: Status::Pending,
                attempt: 0,
                worker_id: None,
                error_message: None,
                created_at: head.created_at,
            },
            Happening::Ended(attempt) => {
                let head = heads.get(&attempt.event_id);
                Activity {
                    event_id: attempt.event_id,
                    event_type: head.map(|head| head.event_type.clone()).unwrap_or_default(),
                    title: head.and_then(|head| head.title.clone()),
                    tags: head.map(|head| head.tags.clone()).unwrap_or_default(),
                    subscription: attempt.subscription,
                    action: attempt.action,
                    status: status_led_to(attempt.action, attempt.next_retry_at.is_some()),
                    attempt: attempt.attempt,
                    worker_id: attempt.worker_id,
                    error_message: attempt.error_message,
                    created_at: attempt.finished_at,
                }
            }
        }
    }
}

impl ActivityCursor {
    fn from(horizon: Timestamp) -> ActivityCursor {
        let ended = Track { floor: (horizon.timestamp_micros(), 0), ..Track::default() };
        ActivityCursor { published: Track::default(), ended }
    }

    fn since(&self) -> ActivitySince {
        ActivitySince { event_id: self.published.floor.0, ended: self.ended.floor }
    }

    /// Those that are new among what was read, the oldest first. As much as `rows_max` of a kind may not
    /// have been all of it.
    fn take(&mut self, recent: RecentActivity, rows_max: usize, horizon: Timestamp) -> Vec<Happening> {
        let ended = recent.ended.into_iter().map(|(id, attempt)| {
            let at = attempt.finished_at;
            ((at.timestamp_micros(), id), at, Happening::Ended(attempt))
        });
        let published = recent.published.into_iter().map(|head| {
            let at = head.created_at;
            ((head.event_id, 0), at, Happening::Published(head))
        });
        let mut new = self.ended.take(ended.collect(), rows_max, horizon);
        new.append(&mut self.published.take(published.collect(), rows_max, horizon));
        // Nothing of that time can come any more; other namespaces' attempts since then are not read again.
        self.ended.raise((horizon.timestamp_micros(), 0));
        new.sort_by_key(Happening::order);
        new
    }
}

/// A place among things of a kind, in the order in which they are read.
type Spot = (i64, i64);

/// What was read of one kind: all up to the floor, and above it what is remembered.
#[derive(Debug, Clone, Default)]
struct Track {
    floor: Spot,
    /// With the moment at which it happened.
    seen: BTreeMap<Spot, Timestamp>,
}

impl Track {
    /// Those that are seen for the first time, the oldest first, among what was read with the newest first.
    fn take<T>(&mut self, read: Vec<(Spot, Timestamp, T)>, rows_max: usize, horizon: Timestamp) -> Vec<T> {
        let lowest = read.last().filter(|_| read.len() >= rows_max).map(|(spot, ..)| *spot);
        let mut new = Vec::new();
        for (spot, at, item) in read.into_iter().rev() {
            if spot > self.floor && self.seen.insert(spot, at).is_none() {
                new.push(item);
            }
        }
        // There may be more below, which is passed over: so what is remembered stays bounded.
        if let Some(lowest) = lowest {
            self.raise(lowest);
        }
        self.forget(horizon);
        new
    }

    /// Forgets what is older than the horizon.
    fn forget(&mut self, horizon: Timestamp) {
        while let Some((spot, at)) = self.seen.first_key_value()
            && *at < horizon
        {
            self.floor = *spot;
            self.seen.pop_first();
        }
    }

    /// Whatever lies below this is passed over.
    fn raise(&mut self, floor: Spot) {
        if floor > self.floor {
            self.floor = floor;
            self.seen = self.seen.split_off(&floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_micros;

    /// Reads these spots, which happened at the instant of their number.
    fn read(track: &mut Track, spots: &[i64], rows_max: usize, horizon: i64) -> Vec<i64> {
        let rows = spots.iter().map(|n| ((*n, 0), from_micros(*n), *n)).collect();
        track.take(rows, rows_max, from_micros(horizon))
    }

    #[test]
    fn what_comes_late_is_seen_once_and_nothing_twice() {
        let mut track = Track::default();
        assert_eq!(read(&mut track, &[30, 10], 10, 5), [10, 30]);
        assert_eq!(read(&mut track, &[30, 20, 10], 10, 15), [20]);
        assert_eq!(track.floor, (10, 0));
        assert_eq!(read(&mut track, &[40, 30, 20], 10, 35), [40]);
        assert_eq!((track.floor, track.seen.len()), ((30, 0), 1));
    }

    #[test]
    fn a_first_one_that_is_young_keeps_those_after_it() {
        let mut track = Track::default();
        let rows = vec![((2, 0), from_micros(1), 2), ((1, 0), from_micros(50), 1)];
        assert_eq!(track.take(rows, 10, from_micros(20)), [1, 2]);
        assert_eq!((track.floor, track.seen.len()), ((0, 0), 2));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut track = Track::default();
        for n in 0..100 {
            let newest: Vec<i64> = (n * 50 + 1..=n * 50 + 100).rev().collect();
            read(&mut track, &newest, 100, 0);
            assert_eq!(track.seen.len(), 100);
            assert_eq!(track.floor, (n * 50 + 1, 0));
        }
    }
}
