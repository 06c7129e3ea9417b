//! What a router asks of a store. See [`crate::queue::route`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::PreparedEvent;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::queue::wake::ReadyLane;
use crate::topology::lanes::LaneKey;

/// How many arrivals one transaction routes.
pub(crate) const ROUTE_BATCH: usize = 1_000;

/// An event that was published in a transaction of the application and has no deliveries yet.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub event_id: i64,
    pub created_at: Timestamp,
    /// Only what decides about deliveries: no payload, no texts.
    pub prepared: PreparedEvent,
    /// Why it cannot be delivered.
    pub rejected: Option<Rejection>,
}

/// Why an arrival becomes a dead letter of `main`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub reason: &'static str,
    pub error: String,
}

impl Rejection {
    /// Its key was used for an event with another type or payload.
    pub fn key_conflict(key: &str, first_id: i64) -> Rejection {
        let error = format!("key '{key}' was used for event {first_id}, which has another type or payload");
        Rejection { reason: "key_conflict", error }
    }
}

/// Gives arrivals their deliveries, or rejects them; returns the lanes that are missing. The function finds the ids of
/// lanes that were created in this transaction.
pub(crate) type Plan =
    Arc<dyn Fn(&mut [Arrival], &dyn Fn(&LaneKey) -> Option<i64>) -> Result<Vec<LaneKey>> + Send + Sync>;

/// Routes arrivals of one version of a namespace.
#[derive(Clone)]
pub(crate) struct RouteRequest {
    pub namespace: String,
    pub version: i64,
    /// The id of the subscription `main`, which gets the dead letters.
    pub main_id: i64,
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "SQLite leaves no dead rows"))]
    pub position: RoutePosition,
    /// At most so many arrivals.
    pub limit: usize,
    pub plan: Plan,
}

/// What came of an attempt to route.
#[derive(Debug)]
pub(crate) enum Routing {
    /// Nothing has arrived.
    Nothing,
    /// Another router is at work in this namespace.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "SQLite has one writer at a time"))]
    Busy,
    /// The namespace has another version. Nothing was done.
    Outdated,
    Routed(Routed),
}

/// A batch that was routed.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    /// Those that got their deliveries.
    pub delivered: Vec<Arrival>,
    /// How many were dropped because their key was known.
    pub duplicates: usize,
    /// Those that became dead letters.
    pub rejected: Vec<Arrival>,
    /// The lanes that were created.
    pub lanes: Vec<(LaneKey, i64)>,
    /// The lanes in which a delivery became ready, now or for later.
    pub freed: Vec<ReadyLane>,
    /// The last event of the batch.
    pub last_id: i64,
    /// If the batch has all that was visible: the snapshot in which it was read.
    pub snapshot: Option<Snapshot>,
}

/// How far a router has come: all events up to `after` are routed, except those of transactions that were open. Rows before
/// it are not read again, however long they stay because a snapshot is held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoutePosition {
    pub after: i64,
    /// The transactions that were open. As soon as one of them has ended, everything is read again: what it published comes
    /// before what was published after its commit.
    pub open: Vec<i64>,
}

/// Whether something has arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ArrivalsLook {
    /// The first one.
    pub first: Option<i64>,
    /// No event with a larger id has been published.
    pub newest: i64,
    /// Departures are left.
    pub departed: bool,
    pub snapshot: Snapshot,
    /// How many connections the store had opened for routers. Another number than before: the server may have crashed and
    /// undone what was routed.
    pub connects: u64,
}

impl ArrivalsLook {
    /// Whether one of the events up to this one has arrived.
    pub fn any_up_to(&self, event_id: i64) -> bool {
        self.first.is_some_and(|first| first <= event_id)
    }
}

/// Which transactions were open at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// All transactions below this id have ended.
    pub ended: i64,
    /// No transaction from this id on had begun.
    pub next: i64,
    /// The open ones between.
    pub open: Vec<i64>,
}

impl Snapshot {
    /// From `xmin:xmax:open,…`.
    #[cfg(feature = "postgres")]
    pub fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.split(':');
        let (ended, next) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let open = parts.next()?.split(',').filter(|id| !id.is_empty()).map(|id| id.parse().ok());
        Some(Snapshot { ended, next, open: open.collect::<Option<_>>()? })
    }
}

#[async_trait]
pub(crate) trait RouteStore {
    /// Whether publishers notify only idle routers. If not, a router learns of all commits.
    fn announces_routers(&self) -> bool;

    /// Looks for events that have arrived and that a router at this position has not routed; with `departures`, also for
    /// those that are left.
    async fn look_for_arrivals(
        &self,
        namespace: &str,
        position: &RoutePosition,
        departures: bool,
    ) -> Result<ArrivalsLook>;

    /// Lets groups go on after deliveries that were completed in handlers' transactions: these (subscription and group id),
    /// or some of those that a process which ended has left. Returns the lanes in which deliveries became ready.
    async fn settle_departures(
        &self,
        namespace: &str,
        groups: Option<&[(String, String)]>,
        now: Option<Timestamp>,
    ) -> Result<Vec<ReadyLane>>;

    /// When an event was published that is not routed yet.
    async fn arrived_at(&self, namespace: &str, event_id: i64) -> Result<Option<Timestamp>>;

    /// The namespaces in which events have arrived, or departures are left.
    async fn namespaces_with_arrivals(&self) -> Result<Vec<String>>;

    /// Turns some arrivals into deliveries, in the order of their ids and in one transaction.
    async fn route(&self, request: &RouteRequest, now: Option<Timestamp>) -> Result<Routing>;

    /// Announces for about two seconds that this router looks for arrivals by itself. `false`: another one does. It
    /// must have announced itself as idle before.
    async fn announce_active_router(&self, namespace: &str, router: &str) -> Result<bool>;

    /// Announces for this time that publishers have to notify this router. A transaction that does not know it yet has an id
    /// below the one returned.
    async fn announce_idle_router(&self, namespace: &str, router: &str, listens: Duration) -> Result<i64>;

    /// Takes all announcements back, and notifies the routers of other processes once.
    async fn remove_router(&self, namespace: &str, router: &str) -> Result<()>;
}
