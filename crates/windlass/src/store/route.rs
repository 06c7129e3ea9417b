//! Routing arrivals. See [`crate::queue::route`].

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
    /// The fields that decide about deliveries: no payload, title or description.
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
    /// The maximum number of arrivals.
    pub limit: usize,
    pub plan: Plan,
}

/// The result of routing.
#[derive(Debug)]
pub(crate) enum Routing {
    /// There are no arrivals.
    Nothing,
    /// Another router is routing this namespace.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "SQLite has one writer at a time"))]
    Busy,
    /// The namespace has another version. Nothing was done.
    Outdated,
    Routed(Routed),
}

/// A batch that was routed.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    /// The arrivals that got their deliveries.
    pub delivered: Vec<Arrival>,
    /// How many were dropped because their key was known.
    pub duplicates: usize,
    /// The arrivals that became dead letters.
    pub rejected: Vec<Arrival>,
    /// The lanes that were created.
    pub lanes: Vec<(LaneKey, i64)>,
    /// The lanes in which a delivery became ready, now or for later.
    pub ready_lanes: Vec<ReadyLane>,
    /// The last event of the batch.
    pub last_id: i64,
    /// If the batch contains all visible arrivals: the snapshot in which it was read.
    pub snapshot: Option<Snapshot>,
}

/// The progress of a router: all events up to `after` are routed, except those of transactions that were open. Rows
/// before it are not read again, even if a long-running snapshot keeps their dead versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoutePosition {
    pub after: i64,
    /// The transactions that were open. When one of them ends, everything is read again: its events precede events
    /// published after its commit.
    pub open: Vec<i64>,
}

/// The arrivals and departures that a router has to process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ArrivalsPoll {
    /// The first arrival.
    pub first: Option<i64>,
    /// No event with a larger id has been published.
    pub newest: i64,
    /// There are departures of a process that ended.
    pub departed: bool,
    pub snapshot: Snapshot,
    /// How many connections the store has opened for routers. If the number changes, the server may have crashed and
    /// undone routed batches.
    pub connects: u64,
}

impl ArrivalsPoll {
    /// Whether an event with an id up to this one is an arrival.
    pub fn any_up_to(&self, event_id: i64) -> bool {
        self.first.is_some_and(|first| first <= event_id)
    }
}

/// The transactions that were open at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// All transactions below this id have ended.
    pub ended: i64,
    /// No transaction from this id on had begun.
    pub next: i64,
    /// The open transactions between them.
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
    /// Whether publishers notify only idle routers. If not, a router notices all commits.
    fn announces_routers(&self) -> bool;

    /// The first arrival that a router at this position has not routed; with `departures`, also whether departures are
    /// left.
    async fn poll_arrivals(&self, namespace: &str, position: &RoutePosition, departures: bool) -> Result<ArrivalsPoll>;

    /// Advances groups after deliveries that were completed in handlers' transactions: these groups (subscription and
    /// group id), or some that a process which ended has left. Returns the lanes in which deliveries became ready.
    async fn settle_departures(
        &self,
        namespace: &str,
        groups: Option<&[(String, String)]>,
        now: Option<Timestamp>,
    ) -> Result<Vec<ReadyLane>>;

    /// When an event that is not routed yet was published.
    async fn arrived_at(&self, namespace: &str, event_id: i64) -> Result<Option<Timestamp>>;

    /// The namespaces with arrivals or departures.
    async fn namespaces_with_arrivals(&self) -> Result<Vec<String>>;

    /// Turns some arrivals into deliveries, in the order of their ids and in one transaction.
    async fn route(&self, request: &RouteRequest, now: Option<Timestamp>) -> Result<Routing>;

    /// Announces for about two seconds that this router polls for arrivals. Returns `false` if another router does.
    /// This router must have announced itself as idle before.
    async fn announce_active_router(&self, namespace: &str, router: &str) -> Result<bool>;

    /// Announces for this duration that publishers must notify this router. Returns a transaction id: transactions that
    /// do not see the announcement have a smaller one.
    async fn announce_idle_router(&self, namespace: &str, router: &str, listens: Duration) -> Result<i64>;

    /// Removes all announcements, and notifies the routers of other processes once.
    async fn remove_router(&self, namespace: &str, router: &str) -> Result<()>;
}
