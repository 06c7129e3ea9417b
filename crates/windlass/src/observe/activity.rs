//! The activity feed: what happens to events, in the order in which it becomes visible.
//!
//! The feed is read from the database, so it covers the work of all processes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::clock::{Timestamp, micros};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::check_page;
use crate::queue::Queue;
use crate::queue::decide::status_after;
use crate::queue::outcome::{Action, Attempt};
use crate::store::{ActivitySince, EventHead, RecentActivity};
use crate::topology::{MAIN, wants};

/// The changes of a transaction appear in the feed if it commits at most this long after it began. Ids and timestamps
/// are assigned before the commit, so a change may become visible after a newer one; therefore this period is read
/// again.
const OVERLAP: Duration = Duration::from_secs(5);
/// The most rows of the overlap that are read again, beyond the requested limit.
const OVERLAP_ROWS: usize = 1_000;

/// Something that happened to an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The event.
    pub event_id: i64,
    /// The event type; empty if the event is no longer stored.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The event's title.
    pub title: Option<String>,
    /// The event's tags, as published.
    pub tags: String,
    /// The subscription; `main` for PUBLISHED.
    pub subscription: String,
    /// What happened.
    pub action: Action,
    /// The resulting status.
    pub status: Status,
    /// The attempt that it belongs to; 0 before the first claim.
    pub attempt: u32,
    /// The worker that did it; `None` for publishing and maintenance.
    pub worker_id: Option<String>,
    /// The error, or the reason for the action.
    pub error_message: Option<String>,
    /// When it happened.
    pub created_at: Timestamp,
}

impl Activity {
    /// Whether it is of one of these types (by exact name or by prefix ending in `*`) and has one of these tags. An
    /// empty list matches everything.
    pub fn matches(&self, types: &[String], tags: &[String]) -> bool {
        let own: Vec<String> = self.tags.split(',').map(|tag| tag.trim().to_owned()).collect();
        wants(types, tags, &self.event_type, &own)
    }
}

/// The position of a reader in the feed of one namespace.
#[derive(Debug, Clone)]
pub struct ActivityCursor {
    /// Published events, by id.
    published: ReadPosition,
    /// Finished attempts, by end and id.
    finished: ReadPosition,
}

/// A page of the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityPage {
    /// The oldest first.
    pub entries: Vec<Activity>,
    /// The least number of older entries that were skipped because more happened than `limit`.
    pub missed: u64,
}

impl Queue {
    /// The current end of the feed: only later activity is new.
    pub async fn activity_now(&self) -> Result<ActivityCursor> {
        self.topology().await?;
        let horizon = self.horizon().await?;
        let mut cursor = ActivityCursor::from(horizon);
        let recent = self.store().recent(self.namespace(), &cursor.since(), OVERLAP_ROWS).await?;
        cursor.advance(recent, OVERLAP_ROWS, horizon);
        Ok(cursor)
    }

    /// Returns what happened since the cursor, the oldest first: published events and finished attempts. If more than
    /// `limit` (20 if 0) happened, returns the newest and skips the others, so that a slow reader cannot fall behind
    /// indefinitely. After an error the cursor is unchanged.
    ///
    /// Claims and starts are not reported until their attempt has finished. If the policy keeps no history, completed
    /// attempts are not reported.
    pub async fn activity(&self, cursor: &mut ActivityCursor, limit: usize) -> Result<ActivityPage> {
        let mut limit = limit;
        check_page(&mut limit, 0, self.limits())?;
        let horizon = self.horizon().await?;
        let (mut next, rows_max) = (cursor.clone(), limit + OVERLAP_ROWS);
        let recent = self.store().recent(self.namespace(), &next.since(), rows_max).await?;
        let mut new = next.advance(recent, rows_max, horizon);
        let missed = new.len().saturating_sub(limit);
        let entries = self.describe_activities(new.split_off(missed)).await?;
        *cursor = next;
        Ok(ActivityPage { entries, missed: missed as u64 })
    }

    /// Transactions that began before this have committed, or are no longer reported.
    async fn horizon(&self) -> Result<Timestamp> {
        Ok(self.store().now(self.now()).await? - TimeDelta::microseconds(micros(OVERLAP)))
    }

    async fn describe_activities(&self, new: Vec<ActivityRecord>) -> Result<Vec<Activity>> {
        let of_attempts = new.iter().filter_map(|record| match record {
            ActivityRecord::Finished(attempt) => Some(attempt.event_id),
            ActivityRecord::Published(_) => None,
        });
        let ids: Vec<i64> = of_attempts.collect::<BTreeSet<i64>>().into_iter().collect();
        let rows = if ids.is_empty() { Vec::new() } else { self.store().heads(self.namespace(), &ids).await? };
        let heads: HashMap<i64, EventHead> = rows.into_iter().map(|head| (head.event_id, head)).collect();
        Ok(new.into_iter().map(|record| record.describe(&heads)).collect())
    }
}

/// Something that happened, as read from the database.
enum ActivityRecord {
    Published(EventHead),
    Finished(Attempt),
}

impl ActivityRecord {
    /// The sort key: an event is published before anything else happens to it.
    fn order(&self) -> (Timestamp, bool) {
        match self {
            ActivityRecord::Published(head) => (head.created_at, false),
            ActivityRecord::Finished(attempt) => (attempt.finished_at, true),
        }
    }

    fn describe(self, heads: &HashMap<i64, EventHead>) -> Activity {
        match self {
            ActivityRecord::Published(head) => Activity {
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
            ActivityRecord::Finished(attempt) => {
                let head = heads.get(&attempt.event_id);
                Activity {
                    event_id: attempt.event_id,
                    event_type: head.map(|head| head.event_type.clone()).unwrap_or_default(),
                    title: head.and_then(|head| head.title.clone()),
                    tags: head.map(|head| head.tags.clone()).unwrap_or_default(),
                    subscription: attempt.subscription,
                    action: attempt.action,
                    status: status_after(attempt.action, attempt.next_retry_at.is_some()),
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
        let finished = ReadPosition { floor: (horizon.timestamp_micros(), 0), ..ReadPosition::default() };
        ActivityCursor { published: ReadPosition::default(), finished }
    }

    fn since(&self) -> ActivitySince {
        ActivitySince { event_id: self.published.floor.0, ended: self.finished.floor }
    }

    /// Records the rows that were read and returns the new ones, the oldest first. If `rows_max` rows of a kind were
    /// read, there may be more.
    fn advance(&mut self, recent: RecentActivity, rows_max: usize, horizon: Timestamp) -> Vec<ActivityRecord> {
        let finished = recent.ended.into_iter().map(|(id, attempt)| {
            let at = attempt.finished_at;
            ((at.timestamp_micros(), id), at, ActivityRecord::Finished(attempt))
        });
        let published = recent.published.into_iter().map(|head| {
            let at = head.created_at;
            ((head.event_id, 0), at, ActivityRecord::Published(head))
        });
        let mut new = self.finished.advance(finished.collect(), rows_max, horizon);
        new.append(&mut self.published.advance(published.collect(), rows_max, horizon));
        // Older attempts can no longer appear. Without this, the attempts of other namespaces would be read again.
        self.finished.raise_floor((horizon.timestamp_micros(), 0));
        new.sort_by_key(ActivityRecord::order);
        new
    }
}

/// The sort key of an event or an attempt.
type RowKey = (i64, i64);

/// The rows of one kind that were read: all up to `floor`, and those in `seen`.
#[derive(Debug, Clone, Default)]
struct ReadPosition {
    floor: RowKey,
    /// Rows above the floor, with their timestamps.
    seen: BTreeMap<RowKey, Timestamp>,
}

impl ReadPosition {
    /// Records rows, given the newest first, and returns those that were not seen before, the oldest first.
    fn advance<T>(&mut self, rows: Vec<(RowKey, Timestamp, T)>, rows_max: usize, horizon: Timestamp) -> Vec<T> {
        let lowest = rows.last().filter(|_| rows.len() >= rows_max).map(|(key, ..)| *key);
        let mut new = Vec::new();
        for (key, at, item) in rows.into_iter().rev() {
            if key > self.floor && self.seen.insert(key, at).is_none() {
                new.push(item);
            }
        }
        // There may be more rows below, which are skipped. This bounds the size of `seen`.
        if let Some(lowest) = lowest {
            self.raise_floor(lowest);
        }
        self.prune(horizon);
        new
    }

    /// Removes rows older than the horizon.
    fn prune(&mut self, horizon: Timestamp) {
        while let Some((key, at)) = self.seen.first_key_value()
            && *at < horizon
        {
            self.floor = *key;
            self.seen.pop_first();
        }
    }

    /// Skips all rows up to `floor`.
    fn raise_floor(&mut self, floor: RowKey) {
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

    /// Reads rows with these keys; each key is also the timestamp.
    fn read(position: &mut ReadPosition, keys: &[i64], rows_max: usize, horizon: i64) -> Vec<i64> {
        let rows = keys.iter().map(|n| ((*n, 0), from_micros(*n), *n)).collect();
        position.advance(rows, rows_max, from_micros(horizon))
    }

    #[test]
    fn late_rows_are_returned_exactly_once() {
        let mut position = ReadPosition::default();
        assert_eq!(read(&mut position, &[30, 10], 10, 5), [10, 30]);
        assert_eq!(read(&mut position, &[30, 20, 10], 10, 15), [20]);
        assert_eq!(position.floor, (10, 0));
        assert_eq!(read(&mut position, &[40, 30, 20], 10, 35), [40]);
        assert_eq!((position.floor, position.seen.len()), ((30, 0), 1));
    }

    #[test]
    fn recent_first_row_keeps_the_rows_after_it() {
        let mut position = ReadPosition::default();
        let rows = vec![((2, 0), from_micros(1), 2), ((1, 0), from_micros(50), 1)];
        assert_eq!(position.advance(rows, 10, from_micros(20)), [1, 2]);
        assert_eq!((position.floor, position.seen.len()), ((0, 0), 2));
    }

    #[test]
    fn remembered_rows_are_bounded() {
        let mut position = ReadPosition::default();
        for n in 0..100 {
            let newest: Vec<i64> = (n * 50 + 1..=n * 50 + 100).rev().collect();
            read(&mut position, &newest, 100, 0);
            assert_eq!(position.seen.len(), 100);
            assert_eq!(position.floor, (n * 50 + 1, 0));
        }
    }
}
