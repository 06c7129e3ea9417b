//! Claiming ready deliveries.
//!
//! A claim reads ordered streams, each from a remembered position, and claims the first deliveries of their merge. The
//! order is: deadlines within the horizon, earliest first; then higher priority; then earliest ready.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::{Delivery, Lease};

/// A position in a stream that is ordered by the time at which deliveries became ready: the last one claimed.
pub(crate) type ReadyPosition = (Timestamp, i64);

/// One claim for all waiting requests that share a filter.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub namespace: String,
    /// A claim with an old version claims nothing.
    pub version: i64,
    pub subscription: String,
    pub subscription_id: i64,
    pub source: ClaimSource,
    /// For claims that select lanes: the number of the newest lane that the claimer knows. If there is a newer one, the
    /// claim claims nothing.
    pub known_lanes: Option<i64>,
    pub leases: LeaseTimes,
    /// Deliveries that expire this soon are claimed before all others; `None`: all deliveries with a deadline.
    pub deadline_horizon: Option<Duration>,
    pub requests: Vec<ClaimSlot>,
}

/// Where a claim reads.
#[derive(Debug, Clone)]
pub(crate) enum ClaimSource {
    /// The streams of the subscription. For claims that want everything, or many lanes.
    Subscription {
        /// The lanes that are wanted, sorted; `None`: all.
        lanes: Option<Arc<[i64]>>,
        /// In publish order: after this event.
        after_event: i64,
        /// Out of order: for each priority, after this position. A priority that is not named is read from the start.
        #[cfg_attr(
            not(feature = "postgres"),
            expect(dead_code, reason = "SQLite's partial indexes need no positions")
        )]
        after_ready: Vec<(i16, ReadyPosition)>,
    },
    /// One stream per lane. For claims that want few lanes.
    Lanes(Vec<LaneSource>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LaneSource {
    pub lane_id: i64,
    pub priority: i16,
    pub after: ReadyPosition,
}

/// How long leases last: by event type where the policy says so.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LeaseTimes {
    pub default: Duration,
    /// Type patterns with their own duration; of those that match, the longest pattern decides.
    pub by_type: Vec<(String, Duration)>,
}

#[derive(Debug, Clone)]
pub(crate) struct ClaimSlot {
    pub worker_id: String,
    /// Unique to this request: the deliveries it gets carry it.
    pub lease: Lease,
    pub max: usize,
    /// How many consecutive deliveries of one group it gets at most; they count as one towards `max`.
    pub group_run: usize,
}

impl Claim {
    /// The number of deliveries requested.
    pub fn wanted(&self) -> usize {
        self.requests.iter().map(|request| request.max).sum()
    }

    /// The claimed deliveries that may be the first of a run, each with how many may follow it. Only first attempts are
    /// claimed in runs: if a worker crashes, it is known which delivery it was handling.
    pub fn run_heads<'a>(&self, heads: impl Iterator<Item = RunHead<'a>>) -> Vec<(RunHead<'a>, usize)> {
        let limit = |lease| self.requests.iter().find(|slot| slot.lease == lease).map_or(1, |slot| slot.group_run);
        let heads: Vec<(RunHead<'a>, usize)> =
            heads.map(|head| (head, limit(head.lease).saturating_sub(1))).filter(|(_, more)| *more > 0).collect();
        let share = RUNS_MAX.checked_div(heads.len()).unwrap_or(0);
        heads.into_iter().map(|(head, more)| (head, more.min(share))).filter(|(_, more)| *more > 0).collect()
    }
}

/// The maximum number of deliveries that one claim adds as the rest of runs.
const RUNS_MAX: usize = 1_000;

/// A delivery that may be the first of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunHead<'a> {
    pub event_id: i64,
    pub group_id: &'a str,
    pub lease: Lease,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    /// In claim order; the first request gets the first ones.
    pub deliveries: Vec<Delivery>,
    /// The rest of their runs, each run in order.
    pub followers: Vec<Delivery>,
    /// Where each of `deliveries` was found.
    pub positions: Vec<StreamPosition>,
    /// The newest event of the subscription at that moment, for [`ClaimSource::Subscription`].
    pub newest: Option<i64>,
    /// The namespace has another version. Nothing was claimed.
    pub outdated: bool,
    /// The namespace has newer lanes than the claimer knows. Nothing was claimed.
    pub new_lanes: bool,
    /// Expired leases must be released first. Nothing was claimed.
    pub leases_due: bool,
    /// Other claims got some of the candidates. The claim may find more if it is repeated.
    pub contended: bool,
    /// How many connections the store has opened for claims. If the number changes, the server may have crashed.
    pub connects: u64,
}

/// Where a claimed delivery was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StreamPosition {
    /// Among the deadlines, which are always read from the start.
    Deadline,
    /// In publish order.
    InOrder {
        event_id: i64,
    },
    /// Out of order, by priority.
    OutOfOrder {
        priority: i16,
        position: ReadyPosition,
    },
    Lane {
        lane_id: i64,
        position: ReadyPosition,
    },
}

/// Deliveries that were published in order but are behind a claim's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BehindCheck {
    /// The first event behind the position that can be claimed.
    pub first: Option<i64>,
    /// The namespace has newer lanes than the claimer knows.
    pub new_lanes: bool,
    /// Transactions below this id have ended; those from `next` on had not begun.
    pub ended: i64,
    pub next: i64,
    /// The write-ahead log was written up to here, and synced up to `synced`.
    pub written: i64,
    pub synced: i64,
}

impl BehindCheck {
    /// Whether nothing can appear any more where `earlier` found nothing: all transactions that were open then have ended,
    /// and no crash can undo the claims of that time.
    pub fn settles(&self, earlier: &BehindCheck) -> bool {
        self.ended >= earlier.next && self.synced >= earlier.written
    }
}

#[async_trait]
pub(crate) trait ClaimStore {
    /// Claims deliveries that are ready and not past their deadline, in claim order. Claims nothing with an old version
    /// or while leases of the subscription are due; the result says so.
    async fn claim(&self, claim: &Claim, now: Option<Timestamp>) -> Result<Claimed>;

    /// The first claimable delivery in publish order after `from` and up to `to`, as [`ClaimSource::Subscription`] reads them.
    /// Such a delivery was committed late, was locked when a claim passed it, or its claim was lost in a crash.
    async fn check_behind(&self, claim: &Claim, from: i64, to: i64, now: Option<Timestamp>) -> Result<BehindCheck>;
}
