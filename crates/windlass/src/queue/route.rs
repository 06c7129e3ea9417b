//! The router: creates the deliveries of events that were published in transactions of the application, after the
//! commit.
//!
//! Such a transaction stores only the event and a row in the table of arrivals, so that transactions do not block each
//! other. A router reads the arrivals of a namespace in the order of their ids and does the rest of publishing. Only
//! one router at a time, of any process, routes in a namespace. That keeps the publish order: an event that was
//! published after another one had committed has a larger id, and is never visible without it.
//!
//! Every process that claims from a namespace runs a [`Router`] for it; maintenance routes the other namespaces.
//!
//! ```text
//!            notification, or safety poll           more arrives
//!   Idle ─────────────────────────────▶ Watching ─────────────────▶ Active
//!    ▲  ▲                                 │                            │
//!    │  └──────nothing for a while────────┘                            │ nothing for a while
//!    └───────── older transactions have ended ───────── Leaving ◀──────┴───── New
//! ```
//!
//! An idle router has announced that it listens, so publishing transactions notify it. Notifications cost these
//! transactions time. An active router therefore announces that it polls every few milliseconds, and they no longer
//! notify it. Without a router, they send no notifications.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::event::tag_set;
use crate::queue::publish::{TOPOLOGY_RETRIES_MAX, announce, keeps_changing, route_with};
use crate::queue::wake::lock;
use crate::queue::{Core, Queue};
use crate::store::{
    Arrival, ArrivalsPoll, Plan, PreparedEvent, PublishOutcome, ROUTE_BATCH, Rejection, RoutePosition, RouteRequest,
    Routed, Routing, Snapshot,
};
use crate::topology::lanes::LaneKey;
use crate::topology::{MAIN, Topology};

/// How often a router polls while events arrive.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// An active router pauses for twice as long as the last batch took, at most this long.
const ACTIVE_PAUSE_MAX: Duration = Duration::from_millis(20);
/// How often a leaving router polls for transactions that were open when it became idle.
const LEAVING_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a router goes on polling after the last arrival, while publishers still notify it.
const WATCH_FOR: Duration = Duration::from_millis(100);
/// How long an active router, which publishers do not notify, goes on polling after the last arrival.
const ACTIVE_FOR: Duration = Duration::from_millis(500);
/// An announcement as active is valid for about two seconds and renewed after this time.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(700);
/// A position is used this long after its events were routed, when most transactions that were open have ended.
const POSITION_DELAY: Duration = Duration::from_secs(1);
/// While another router is routing, poll again after this time.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How long readers and claims wait for another router that is routing. The other process may hang, or may have lost
/// its connection, in the middle of a batch.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// An announcement as idle is valid for at least this time, and renewed after half of it.
const IDLE_ANNOUNCEMENT_MIN: Duration = Duration::from_secs(300);
/// The pause after an error.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// A request to route the arrivals of a namespace, with the cached topology.
pub(crate) fn request(core: &Arc<Core>, topology: &Arc<Topology>, position: &RoutePosition) -> RouteRequest {
    let main_id = topology.subscription(MAIN).map_or(0, |main| main.subscription_id);
    RouteRequest {
        namespace: topology.namespace.namespace.clone(),
        version: topology.version,
        main_id,
        position: position.clone(),
        limit: ROUTE_BATCH,
        plan: plan(core.clone(), topology.clone()),
    }
}

fn plan(core: Arc<Core>, topology: Arc<Topology>) -> Plan {
    Arc::new(move |arrivals: &mut [Arrival], created: &dyn Fn(&LaneKey) -> Option<i64>| {
        for arrival in arrivals.iter_mut() {
            // The publisher may have had other limits.
            if let Err(error) = tag_set("tags", &arrival.prepared.event.tags, &core.limits) {
                arrival.rejected = Some(Rejection { reason: "invalid", error: error.to_string() });
            }
        }
        let routable = arrivals.iter_mut().filter(|arrival| arrival.rejected.is_none());
        let mut prepared: Vec<&mut PreparedEvent> = routable.map(|arrival| &mut arrival.prepared).collect();
        core.lanes.look_up(&topology, |known| {
            route_with(&core, &topology, &mut prepared, &|lane| created(lane).or_else(|| known(lane)))
        })
    })
}

/// After the commit of a batch: caches its lanes, counts and logs its events, and notifies waiting claims.
pub(crate) fn after_commit(core: &Core, topology: &Topology, routed: &Routed) {
    let namespace = topology.namespace.namespace.as_str();
    core.lanes.insert(namespace, topology.version, routed.lanes.iter().cloned());
    let stored: Vec<(&PreparedEvent, PublishOutcome)> = routed
        .delivered
        .iter()
        .chain(&routed.rejected)
        .map(|arrival| (&arrival.prepared, PublishOutcome::new(arrival.event_id, arrival.created_at)))
        .collect();
    announce(core, namespace, stored.iter().map(|(prepared, stored)| (*prepared, stored)));
    core.wakes.notify(namespace, routed.ready_lanes.iter().copied());
    core.metrics.dropped(namespace, routed.duplicates as u64);
    let rejected = routed
        .rejected
        .iter()
        .filter_map(|arrival| Some((arrival.prepared.event.event_type.as_str(), arrival.rejected.as_ref()?.reason)));
    core.metrics.rejected(namespace, rejected);
    for arrival in &routed.rejected {
        let Some(Rejection { reason, error }) = &arrival.rejected else { continue };
        let (event_id, event_type) = (arrival.event_id, &arrival.prepared.event.event_type);
        tracing::error!(
            namespace,
            event_id,
            "type" = event_type,
            reason,
            error,
            "an event cannot be delivered and is a dead letter now"
        );
    }
}

/// The result of routing one batch.
enum RoutedBatch {
    Nothing,
    Busy,
    /// The last event of the batch, and the snapshot if the batch had everything that was visible in it.
    Routed {
        last_id: i64,
        snapshot: Option<Snapshot>,
    },
}

async fn route_batch(core: &Arc<Core>, namespace: &str, position: &RoutePosition) -> Result<RoutedBatch> {
    for _ in 0..TOPOLOGY_RETRIES_MAX {
        let topology = core.topology(namespace).await?;
        let request = request(core, &topology, position);
        let routing = match core.store.route(&request, core.clock.overridden()).await {
            Err(Error::DataRefused { .. }) => route_first_event(core, request).await?,
            routing => routing?,
        };
        match routing {
            Routing::Nothing => return Ok(RoutedBatch::Nothing),
            Routing::Busy => return Ok(RoutedBatch::Busy),
            Routing::Outdated => drop(core.reload(namespace).await?),
            Routing::Routed(routed) => {
                after_commit(core, &topology, &routed);
                return Ok(RoutedBatch::Routed { last_id: routed.last_id, snapshot: routed.snapshot });
            }
        }
    }
    Err(keeps_changing(namespace))
}

/// Routes only the first event of a batch whose data the database rejected. If the event is the cause, it becomes a
/// dead letter.
async fn route_first_event(core: &Arc<Core>, mut request: RouteRequest) -> Result<Routing> {
    let (now, plan, first) = (core.clock.overridden(), request.plan.clone(), Arc::new(AtomicI64::new(0)));
    let (planned, tried) = (plan.clone(), first.clone());
    request.limit = 1;
    request.plan = Arc::new(move |arrivals: &mut [Arrival], lanes: &dyn Fn(&LaneKey) -> Option<i64>| {
        tried.store(arrivals.first().map_or(0, |arrival| arrival.event_id), Ordering::Relaxed);
        planned(arrivals, lanes)
    });
    let error = match core.store.route(&request, now).await {
        Err(Error::DataRefused { detail }) => detail,
        routing => return routing,
    };
    // Another router may have routed meanwhile, so the first event may be a different one by now.
    let refused = first.load(Ordering::Relaxed);
    request.plan = Arc::new(move |arrivals: &mut [Arrival], lanes: &dyn Fn(&LaneKey) -> Option<i64>| match arrivals {
        [arrival] if arrival.event_id == refused => {
            arrival.prepared.event.key = None;
            arrival.rejected = Some(Rejection { reason: "invalid", error: error.clone() });
            Ok(Vec::new())
        }
        _ => plan(arrivals, lanes),
    });
    core.store.route(&request, now).await
}

/// How far the routers of this process have routed the arrivals of each namespace.
#[derive(Default)]
pub(crate) struct RoutePositions(Mutex<HashMap<String, CachedPosition>>);

#[derive(Clone, Default)]
struct CachedPosition {
    /// See [`ArrivalsPoll::connects`](crate::store::ArrivalsPoll).
    connects: u64,
    position: RoutePosition,
}

impl RoutePositions {
    fn get(&self, namespace: &str) -> CachedPosition {
        lock(&self.0).get(namespace).cloned().unwrap_or_default()
    }

    fn set(&self, namespace: &str, position: CachedPosition) {
        lock(&self.0).insert(namespace.to_owned(), position);
    }
}

/// Polls for arrivals from the cached position, or from the start if the server may have crashed since.
async fn poll_arrivals(
    core: &Core,
    namespace: &str,
    cached: &mut CachedPosition,
    departures: bool,
) -> Result<ArrivalsPoll> {
    let found = core.store.poll_arrivals(namespace, &cached.position, departures).await?;
    if found.connects == cached.connects {
        return Ok(found);
    }
    *cached = CachedPosition { connects: found.connects, position: RoutePosition::default() };
    core.store.poll_arrivals(namespace, &cached.position, departures).await
}

/// Routes the events that have arrived until now. Returns `false` if another router is routing and does not finish in
/// time.
pub(crate) async fn route_arrivals(core: &Arc<Core>, namespace: &str) -> Result<bool> {
    let (mut cached, begun) = (core.route_positions.get(namespace), Instant::now());
    let mut found = poll_arrivals(core, namespace, &mut cached, true).await?;
    let newest = found.newest;
    if found.departed {
        settle_departures(core, namespace, None).await?;
    }
    while found.any_up_to(newest) {
        match route_batch(core, namespace, &cached.position).await? {
            RoutedBatch::Nothing | RoutedBatch::Routed { snapshot: Some(_), .. } => return Ok(true),
            RoutedBatch::Busy if begun.elapsed() >= BUSY_TIMEOUT => return Ok(false),
            RoutedBatch::Busy => tokio::time::sleep(POLL_INTERVAL).await,
            RoutedBatch::Routed { .. } => {}
        }
        found = poll_arrivals(core, namespace, &mut cached, false).await?;
    }
    Ok(true)
}

/// Moves on the groups of deliveries that handlers completed in their transactions: these groups, or all that are left.
pub(crate) async fn settle_departures(core: &Core, namespace: &str, groups: Option<&[(String, String)]>) -> Result<()> {
    let ready_lanes = core.store.settle_departures(namespace, groups, core.clock.overridden()).await?;
    core.wakes.notify(namespace, ready_lanes);
    Ok(())
}

/// The group of a delivery that a handler's transaction completed: subscription and group id.
pub(crate) type Departure = (String, String);

/// Settles the departures of several transactions in one. If this fails, a router settles them later.
pub(crate) async fn run_departures(
    core: Arc<Core>,
    namespace: Arc<str>,
    groups: Vec<Departure>,
) -> Result<Vec<Result<()>>> {
    settle_departures(&core, &namespace, Some(&groups)).await?;
    Ok(groups.iter().map(|_| Ok(())).collect())
}

impl Queue {
    /// Routes the arrivals of this namespace. Returns `false` if another router is routing and does not finish in time.
    pub(crate) async fn route_arrivals(&self) -> Result<bool> {
        route_arrivals(self.core(), self.namespace()).await
    }

    /// Routes arrivals before deliveries are read, so that readers see them. If this fails, readers see the events
    /// without their deliveries.
    pub(crate) async fn route_before_reading(&self) {
        if let Err(error) = self.route_arrivals().await {
            tracing::debug!(%error, namespace = self.namespace(), "could not route arrived events");
        }
    }

    /// Routes the arrivals of all namespaces. An error in one namespace does not affect the others.
    pub(crate) async fn route_all_arrivals(&self) -> Result<()> {
        for namespace in self.store().namespaces_with_arrivals().await? {
            if let Err(error) = route_arrivals(self.core(), &namespace).await {
                tracing::warn!(%error, namespace, "could not route arrived events");
            }
        }
        Ok(())
    }
}

/// The state of a router. `announced` is the time of its last announcement. The module documentation has the
/// transitions.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Started, but not announced: publishers do not notify it.
    New,
    /// Publishers notify the router.
    Idle { announced: Instant },
    /// Events were routed recently. Publishers still notify the router, but it also polls until `until`.
    Watching { until: Instant, announced: Instant },
    /// Announced that it polls: publishers do not notify it. It becomes idle at `until` unless more events arrive.
    Active { until: Instant, announced: Instant },
    /// Announced that it listens again. Transactions with an id below `before` do not know that yet, so it keeps
    /// polling until they have ended, and at least until `until`.
    Leaving { before: i64, until: Instant, announced: Instant },
}

/// How much of the arrivals a router has routed in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchExtent {
    None,
    /// More events have arrived.
    Partial,
    /// Everything that had arrived.
    Whole,
}

struct Router {
    core: Arc<Core>,
    namespace: String,
    /// Unique among all routers, including earlier ones of this process.
    name: String,
    state: State,
    arrived: Arc<Notify>,
    cached: CachedPosition,
    /// The newest event that was routed.
    newest: i64,
    next_position: Option<NextPosition>,
}

/// A position that can be used [`POSITION_DELAY`] after `since`.
#[derive(Debug, Clone, Copy)]
struct NextPosition {
    /// All visible events up to this one were routed.
    after: i64,
    /// No transaction from this id on had begun.
    next_transaction: i64,
    since: Instant,
}

/// Runs a router until the namespace has no claimers left.
pub(crate) async fn run(core: Arc<Core>, namespace: String) {
    let mut router = Router {
        state: State::New,
        name: format!("{}-{:08x}", core.process, fastrand::u32(..)),
        arrived: core.wakes.arrivals(&namespace),
        cached: core.route_positions.get(&namespace),
        newest: 0,
        next_position: None,
        core,
        namespace,
    };
    while router.core.wakes.continue_routing(&router.namespace) {
        match router.step().await {
            Ok(()) => {}
            Err(Error::Closed) => break,
            Err(error) => {
                tracing::debug!(%error, namespace = router.namespace, "could not route arrived events; will retry");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
    router.end().await;
}

impl Router {
    /// Routes a batch of arrivals, or waits for more.
    async fn step(&mut self) -> Result<()> {
        let begun = Instant::now();
        let batch = self.route_next_batch().await?;
        self.state = self.next_state(batch != BatchExtent::None).await?;
        match batch {
            BatchExtent::Partial => return Ok(()),
            BatchExtent::Whole => {
                // A small batch costs nearly as much as a large one, so let arrivals collect.
                tokio::time::sleep((begun.elapsed() * 2).clamp(POLL_INTERVAL, ACTIVE_PAUSE_MAX)).await;
                return Ok(());
            }
            BatchExtent::None => {}
        }
        let safety_poll = self.core.idle_poll.mul_f64(1.0 - 0.1 * fastrand::f64());
        let pause = match self.state {
            State::Idle { .. } => safety_poll,
            State::New | State::Watching { .. } | State::Active { .. } => POLL_INTERVAL,
            State::Leaving { .. } => LEAVING_POLL_INTERVAL.min(safety_poll),
        };
        let _ = tokio::time::timeout(pause, self.arrived.notified()).await;
        Ok(())
    }

    /// Withdraws the announcements, so that publishing transactions notify other routers again.
    async fn end(&self) {
        if !matches!(self.state, State::New) {
            // If the store is closed, the safety polls of other routers find the events.
            let _ = self.core.store.remove_router(&self.namespace, &self.name).await;
        }
    }

    async fn next_state(&mut self, routed: bool) -> Result<State> {
        let (now, namespace) = (Instant::now(), self.namespace.as_str());
        let (store, name) = (&self.core.store, self.name.as_str());
        if !store.announces_routers() {
            return Ok(State::Idle { announced: now });
        }
        Ok(match (self.state, routed) {
            (State::New, _) => self.listen(now).await?,
            (State::Idle { announced }, true) => State::Watching { until: now + WATCH_FOR, announced },
            (State::Watching { announced, .. } | State::Leaving { announced, .. }, true) => {
                match store.announce_active_router(namespace, name).await? {
                    true => State::Active { until: now + ACTIVE_FOR, announced: now },
                    false => State::Idle { announced },
                }
            }
            (State::Active { announced, .. }, true) => {
                let announced = self.renew(announced).await?;
                State::Active { until: now + ACTIVE_FOR, announced }
            }
            (State::Active { until, announced }, false) if now < until => {
                State::Active { until, announced: self.renew(announced).await? }
            }
            (State::Active { .. }, false) => self.listen(now + ACTIVE_FOR).await?,
            (State::Watching { until, announced }, false) if now >= until => match self.must_renew(announced) {
                true => self.listen(now).await?,
                false => State::Idle { announced },
            },
            (State::Leaving { before, until, announced }, false) if now >= until => {
                match store.poll_arrivals(namespace, &self.cached.position, false).await?.snapshot.ended >= before {
                    true => State::Idle { announced },
                    false => self.state,
                }
            }
            (State::Idle { announced }, false) if self.must_renew(announced) => self.listen(now).await?,
            (state, false) => state,
        })
    }

    /// How long an announcement as idle is valid: longer than the time until the router renews it.
    fn idle_announcement(&self) -> Duration {
        IDLE_ANNOUNCEMENT_MIN.max(self.core.idle_poll * 4)
    }

    /// Whether the announcement as idle must be renewed.
    fn must_renew(&self, announced: Instant) -> bool {
        announced.elapsed() > self.idle_announcement() / 2
    }

    /// Announces that publishers have to notify this router.
    async fn listen(&self, until: Instant) -> Result<State> {
        let (store, announced) = (&self.core.store, Instant::now());
        let before = store.announce_idle_router(&self.namespace, &self.name, self.idle_announcement()).await?;
        Ok(State::Leaving { before, until, announced })
    }

    /// Renews the announcement as active if it is due. Returns the time of the last announcement.
    async fn renew(&self, announced: Instant) -> Result<Instant> {
        if announced.elapsed() < ANNOUNCE_INTERVAL {
            return Ok(announced);
        }
        self.core.store.announce_active_router(&self.namespace, &self.name).await?;
        Ok(Instant::now())
    }

    async fn route_next_batch(&mut self) -> Result<BatchExtent> {
        let connects = self.cached.connects;
        // Also settle the departures of processes that ended before they could.
        let departures = matches!(self.state, State::New | State::Idle { .. });
        let found = poll_arrivals(&self.core, &self.namespace, &mut self.cached, departures).await?;
        if found.departed {
            settle_departures(&self.core, &self.namespace, None).await?;
        }
        if self.cached.connects != connects {
            (self.newest, self.next_position) = (0, None);
        }
        if found.first.is_none() {
            self.advance(&found.snapshot);
            return Ok(BatchExtent::None);
        }
        match route_batch(&self.core, &self.namespace, &self.cached.position).await? {
            RoutedBatch::Nothing => Ok(BatchExtent::None),
            RoutedBatch::Busy => {
                tokio::time::sleep(BUSY_PAUSE).await;
                Ok(BatchExtent::None)
            }
            RoutedBatch::Routed { last_id, snapshot } => {
                self.newest = self.newest.max(last_id);
                let Some(snapshot) = snapshot else { return Ok(BatchExtent::Partial) };
                self.advance(&snapshot);
                Ok(BatchExtent::Whole)
            }
        }
    }

    /// Moves the position, after everything that is visible in this snapshot was routed.
    fn advance(&mut self, snapshot: &Snapshot) {
        let position = &mut self.cached.position;
        let open = position.open.len();
        position.open.retain(|id| snapshot.open.contains(id));
        let mut moved = position.open.len() != open;
        match self.next_position {
            Some(NextPosition { after, next_transaction, since }) if since.elapsed() >= POSITION_DELAY => {
                // An invisible event up to `after` belongs to a transaction that had begun by then and is still open.
                let open = snapshot.open.iter().copied().filter(|id| *id < next_transaction).collect();
                (*position, moved) = (RoutePosition { after, open }, true);
                self.next_position = None;
            }
            Some(_) => {}
            None if self.newest > position.after => {
                let (after, next_transaction, since) = (self.newest, snapshot.next, Instant::now());
                self.next_position = Some(NextPosition { after, next_transaction, since });
            }
            None => {}
        }
        if moved {
            self.core.route_positions.set(&self.namespace, self.cached.clone());
        }
    }
}
