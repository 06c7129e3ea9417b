//! The router: turns events that were published in transactions of the application into deliveries, after their commit.
//!
//! Such a transaction stores only the event and a row in the table of arrivals, so that no transaction waits for another.
//! A router reads the arrivals of a namespace in the order of their ids and does everything else that publishing does.
//! One router at a time works in a namespace, in whichever process comes first. That keeps the order: an event whose
//! publishing was called after another one had committed has the larger id, and is visible only together with it.
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
//! An idle router has announced that it listens, and transactions that publish notify it. That costs these transactions
//! time, so an active router announces that it looks every few milliseconds by itself, and they no longer notify it. If there
//! is no router, they send no notification.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::event::tag_set;
use crate::queue::publish::{ROUNDS_MAX, announce, keeps_changing, route_with};
use crate::queue::wake::lock;
use crate::queue::{Core, Queue};
use crate::store::{
    Arrival, ArrivalsLook, Plan, PreparedEvent, PublishOutcome, ROUTE_BATCH, Rejection, RoutePosition, RouteRequest,
    Routed, Routing, Snapshot,
};
use crate::topology::lanes::LaneKey;
use crate::topology::{MAIN, Topology};

/// How often a router looks while events arrive.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// An active router waits for twice as long as the last batch took, and at most this long.
const LOOK_BUSY_MAX: Duration = Duration::from_millis(20);
/// How often it looks for transactions that were open when it became idle.
const LOOK_SLOWLY: Duration = Duration::from_millis(50);
/// A router goes on looking for this long after the last arrival, before it has announced that it does …
const WATCH_FOR: Duration = Duration::from_millis(100);
/// … and after.
const ACTIVE_FOR: Duration = Duration::from_millis(500);
/// An announcement is renewed after this time. It is good for about two seconds.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(700);
/// A position is used from this time on after its events were routed. Most transactions that were open then have ended.
const RECENT: Duration = Duration::from_secs(1);
/// If another router is at work, look again after this time.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Readers and claims wait this long for another router that is at work. It may have been stopped, or cut off from the
/// database, in the middle of a batch.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// An announcement that a router listens is good for at least this time, and is renewed after half of it.
const LISTENS_MIN: Duration = Duration::from_secs(300);
/// After an error.
const RETRY: Duration = Duration::from_secs(1);

/// A request to route the arrivals of a namespace, as this process knows its topology.
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
            // Limits may differ from those that it was published under.
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

/// What follows the commit of a batch: lanes are remembered, events counted, and waiting claims notified.
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
    core.wakes.notify(namespace, routed.freed.iter().copied());
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

/// What one attempt to route came to.
enum Attempt {
    Nothing,
    Busy,
    /// The last event of the batch, and the snapshot if the batch had all that was visible in it.
    Routed {
        last_id: i64,
        snapshot: Option<Snapshot>,
    },
}

async fn attempt(core: &Arc<Core>, namespace: &str, position: &RoutePosition) -> Result<Attempt> {
    for _ in 0..ROUNDS_MAX {
        let topology = core.topology(namespace).await?;
        let request = request(core, &topology, position);
        let routing = match core.store.route(&request, core.clock.overridden()).await {
            Err(Error::DataRefused { .. }) => route_one_by_one(core, request).await?,
            routing => routing?,
        };
        match routing {
            Routing::Nothing => return Ok(Attempt::Nothing),
            Routing::Busy => return Ok(Attempt::Busy),
            Routing::Outdated => drop(core.reload(namespace).await?),
            Routing::Routed(routed) => {
                after_commit(core, &topology, &routed);
                return Ok(Attempt::Routed { last_id: routed.last_id, snapshot: routed.snapshot });
            }
        }
    }
    Err(keeps_changing(namespace))
}

/// Routes the first event of a batch whose data was refused. If the event is the cause, it becomes a dead letter.
async fn route_one_by_one(core: &Arc<Core>, mut request: RouteRequest) -> Result<Routing> {
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
    // Another router may be at work, so the first event may be another one by now.
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

/// How far the arrivals of each namespace are routed, as the routers of this process know it.
#[derive(Default)]
pub(crate) struct RoutePositions(Mutex<HashMap<String, KnownPosition>>);

#[derive(Clone, Default)]
struct KnownPosition {
    /// See [`ArrivalsLook::connects`](crate::store::ArrivalsLook).
    connects: u64,
    position: RoutePosition,
}

impl RoutePositions {
    fn get(&self, namespace: &str) -> KnownPosition {
        lock(&self.0).get(namespace).cloned().unwrap_or_default()
    }

    fn set(&self, namespace: &str, known: KnownPosition) {
        lock(&self.0).insert(namespace.to_owned(), known);
    }
}

/// Looks from a position, or from the start if the server may have crashed since.
async fn look(core: &Core, namespace: &str, known: &mut KnownPosition, departures: bool) -> Result<ArrivalsLook> {
    let look = core.store.look_for_arrivals(namespace, &known.position, departures).await?;
    if look.connects == known.connects {
        return Ok(look);
    }
    *known = KnownPosition { connects: look.connects, position: RoutePosition::default() };
    core.store.look_for_arrivals(namespace, &known.position, departures).await
}

/// Routes what has arrived until now. `false`: another router is at work and does not end.
pub(crate) async fn route_arrivals(core: &Arc<Core>, namespace: &str) -> Result<bool> {
    let (mut known, begun) = (core.route_positions.get(namespace), Instant::now());
    let mut found = look(core, namespace, &mut known, true).await?;
    let newest = found.newest;
    if found.departed {
        settle_departures(core, namespace, None).await?;
    }
    while found.any_up_to(newest) {
        match attempt(core, namespace, &known.position).await? {
            Attempt::Nothing | Attempt::Routed { snapshot: Some(_), .. } => return Ok(true),
            Attempt::Busy if begun.elapsed() >= BUSY_MAX => return Ok(false),
            Attempt::Busy => tokio::time::sleep(LOOK_EVERY).await,
            Attempt::Routed { .. } => {}
        }
        found = look(core, namespace, &mut known, false).await?;
    }
    Ok(true)
}

/// Lets groups go on after deliveries that handlers completed in their transactions: these, or all that are left.
pub(crate) async fn settle_departures(core: &Core, namespace: &str, groups: Option<&[(String, String)]>) -> Result<()> {
    let freed = core.store.settle_departures(namespace, groups, core.clock.overridden()).await?;
    core.wakes.notify(namespace, freed);
    Ok(())
}

/// The group of a delivery that a handler's transaction completed: subscription and group id.
pub(crate) type Departure = (String, String);

/// Settles the departures of several transactions at once. What fails is left to the routers.
pub(crate) async fn run_departures(
    core: Arc<Core>,
    namespace: Arc<str>,
    groups: Vec<Departure>,
) -> Result<Vec<Result<()>>> {
    settle_departures(&core, &namespace, Some(&groups)).await?;
    Ok(groups.iter().map(|_| Ok(())).collect())
}

impl Queue {
    /// Routes what has arrived in this namespace. `false`: another router is at work and does not end.
    pub(crate) async fn route_arrivals(&self) -> Result<bool> {
        route_arrivals(self.core(), self.namespace()).await
    }

    /// Routes what has arrived before deliveries are read, so that readers see it. If that fails, they see the events
    /// without their deliveries.
    pub(crate) async fn route_before_reading(&self) {
        if let Err(error) = self.route_arrivals().await {
            tracing::debug!(%error, namespace = self.namespace(), "arrived events could not be routed");
        }
    }

    /// Routes what has arrived in any namespace. One that fails does not keep the others from theirs.
    pub(crate) async fn route_all_arrivals(&self) -> Result<()> {
        for namespace in self.store().namespaces_with_arrivals().await? {
            if let Err(error) = route_arrivals(self.core(), &namespace).await {
                tracing::warn!(%error, namespace, "arrived events could not be routed");
            }
        }
        Ok(())
    }
}

/// Where a router stands.
#[derive(Debug, Clone, Copy)]
enum State {
    /// It has just begun, and publishers do not know of it.
    New,
    /// Publishers notify it, since this time.
    Idle { announced: Instant },
    /// Something was routed a moment ago. Publishers still notify it, since this time.
    Watching { until: Instant, announced: Instant },
    /// It has announced that it looks by itself, and does so until then unless more arrives.
    Active { until: Instant, announced: Instant },
    /// It has announced that it listens. Transactions with a smaller id than this do not notify it.
    Leaving { before: i64, until: Instant, announced: Instant },
}

/// What a router has routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Batch {
    None,
    /// More has arrived.
    Partial,
    /// All that had arrived.
    Whole,
}

struct Router {
    core: Arc<Core>,
    namespace: String,
    /// Its name among all routers, also those that this process had before.
    name: String,
    state: State,
    arrived: Arc<Notify>,
    known: KnownPosition,
    /// The newest event that was routed.
    newest: i64,
    /// A later position: all visible events up to this one were routed at this time, when no transaction from this id on had
    /// begun.
    next_position: Option<(i64, i64, Instant)>,
}

/// Routes for as long as there are claimers in the namespace.
pub(crate) async fn run(core: Arc<Core>, namespace: String) {
    let mut router = Router {
        state: State::New,
        name: format!("{}-{:08x}", core.process, fastrand::u32(..)),
        arrived: core.wakes.arrivals(&namespace),
        known: core.route_positions.get(&namespace),
        newest: 0,
        next_position: None,
        core,
        namespace,
    };
    while router.core.wakes.goes_on_routing(&router.namespace) {
        match router.step().await {
            Ok(()) => {}
            Err(Error::Closed) => break,
            Err(error) => {
                tracing::debug!(%error, namespace = router.namespace, "arrived events could not be routed; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    router.end().await;
}

impl Router {
    /// Routes a batch of what has arrived, or waits for more.
    async fn step(&mut self) -> Result<()> {
        let begun = Instant::now();
        let batch = self.route_batch().await?;
        self.state = self.next_state(batch != Batch::None).await?;
        match batch {
            Batch::Partial => return Ok(()),
            Batch::Whole => {
                // Small batches cost nearly as much as large ones.
                tokio::time::sleep((begun.elapsed() * 2).clamp(LOOK_EVERY, LOOK_BUSY_MAX)).await;
                return Ok(());
            }
            Batch::None => {}
        }
        let safety_poll = self.core.idle_poll.mul_f64(1.0 - 0.1 * fastrand::f64());
        let pause = match self.state {
            State::Idle { .. } => safety_poll,
            State::New | State::Watching { .. } | State::Active { .. } => LOOK_EVERY,
            State::Leaving { .. } => LOOK_SLOWLY.min(safety_poll),
        };
        let _ = tokio::time::timeout(pause, self.arrived.notified()).await;
        Ok(())
    }

    /// The transactions that were told not to notify this router have to notify another one.
    async fn end(&self) {
        if !matches!(self.state, State::New) {
            // If the store is closed, other routers find the events by their safety poll.
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
            (State::Watching { until, announced }, false) if now >= until => match self.is_due(announced) {
                true => self.listen(now).await?,
                false => State::Idle { announced },
            },
            (State::Leaving { before, until, announced }, false) if now >= until => {
                match store.look_for_arrivals(namespace, &self.known.position, false).await?.snapshot.ended >= before {
                    true => State::Idle { announced },
                    false => self.state,
                }
            }
            (State::Idle { announced }, false) if self.is_due(announced) => self.listen(now).await?,
            (state, false) => state,
        })
    }

    /// How long an announcement is good for: longer than it takes to come back to it.
    fn listens(&self) -> Duration {
        LISTENS_MIN.max(self.core.idle_poll * 4)
    }

    /// Whether the announcement must be renewed.
    fn is_due(&self, announced: Instant) -> bool {
        announced.elapsed() > self.listens() / 2
    }

    /// Announces that publishers have to notify this router.
    async fn listen(&self, until: Instant) -> Result<State> {
        let (store, announced) = (&self.core.store, Instant::now());
        let before = store.announce_idle_router(&self.namespace, &self.name, self.listens()).await?;
        Ok(State::Leaving { before, until, announced })
    }

    async fn renew(&self, announced: Instant) -> Result<Instant> {
        if announced.elapsed() < ANNOUNCE_EVERY {
            return Ok(announced);
        }
        self.core.store.announce_active_router(&self.namespace, &self.name).await?;
        Ok(Instant::now())
    }

    async fn route_batch(&mut self) -> Result<Batch> {
        let connects = self.known.connects;
        // Those of processes that ended before they settled them.
        let departures = matches!(self.state, State::New | State::Idle { .. });
        let found = look(&self.core, &self.namespace, &mut self.known, departures).await?;
        if found.departed {
            settle_departures(&self.core, &self.namespace, None).await?;
        }
        if self.known.connects != connects {
            (self.newest, self.next_position) = (0, None);
        }
        if found.first.is_none() {
            self.advance(&found.snapshot);
            return Ok(Batch::None);
        }
        match attempt(&self.core, &self.namespace, &self.known.position).await? {
            Attempt::Nothing => Ok(Batch::None),
            Attempt::Busy => {
                tokio::time::sleep(BUSY_PAUSE).await;
                Ok(Batch::None)
            }
            Attempt::Routed { last_id, snapshot } => {
                self.newest = self.newest.max(last_id);
                let Some(snapshot) = snapshot else { return Ok(Batch::Partial) };
                self.advance(&snapshot);
                Ok(Batch::Whole)
            }
        }
    }

    /// Moves the position: in this snapshot, everything that is visible was routed.
    fn advance(&mut self, snapshot: &Snapshot) {
        let position = &mut self.known.position;
        let open = position.open.len();
        position.open.retain(|id| snapshot.open.contains(id));
        let mut moved = position.open.len() != open;
        match self.next_position {
            Some((after, next, since)) if since.elapsed() >= RECENT => {
                // A transaction that published an event up to this one, and is not visible, had begun by then and is open.
                let open = snapshot.open.iter().copied().filter(|id| *id < next).collect();
                (*position, moved) = (RoutePosition { after, open }, true);
                self.next_position = None;
            }
            Some(_) => {}
            None if self.newest > position.after => {
                self.next_position = Some((self.newest, snapshot.next, Instant::now()));
            }
            None => {}
        }
        if moved {
            self.core.route_positions.set(&self.namespace, self.known.clone());
        }
    }
}
