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
//!    ▲                                    │                            │
//!    └──────────nothing for a while───────┴────────────────────────────┘
//! ```
//!
//! An idle router is notified by the transactions that publish. That costs these transactions time, so an active router
//! announces that it looks every few milliseconds by itself, and they no longer notify it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::event::tag_set;
use crate::lanes::LaneKey;
use crate::publish::{ROUNDS_MAX, announce, keeps_changing, route_with};
use crate::queue::{Core, Queue};
use crate::store::{
    Arrival, Plan, Prepared, Rejection, RoutePosition, RouteRequest, Routed, Routing, Snapshot, Stored,
};
use crate::topology::{MAIN, Topology};

/// How often a router looks while events arrive.
const LOOK_EVERY: Duration = Duration::from_millis(2);
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
        let mut prepared: Vec<&mut Prepared> = routable.map(|arrival| &mut arrival.prepared).collect();
        core.lanes.look_up(&topology, |known| {
            route_with(&core, &topology, &mut prepared, &|lane| created(lane).or_else(|| known(lane)))
        })
    })
}

/// What follows the commit of a batch: lanes are remembered, events counted, and waiting claims notified.
pub(crate) fn after_commit(core: &Core, topology: &Topology, routed: &Routed) {
    let namespace = topology.namespace.namespace.as_str();
    core.lanes.insert(namespace, topology.version, routed.lanes.iter().cloned());
    let stored: Vec<(&Prepared, Stored)> = routed
        .delivered
        .iter()
        .chain(&routed.rejected)
        .map(|arrival| (&arrival.prepared, Stored::new(arrival.event_id, arrival.created_at)))
        .collect();
    announce(core, namespace, stored.iter().map(|(prepared, stored)| (*prepared, stored)));
    core.wakes.notify(namespace, routed.freed.iter().copied());
    core.meter.dropped(namespace, routed.duplicates as u64);
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
    /// The last event of the batch.
    Routed {
        last_id: i64,
    },
}

async fn attempt(core: &Arc<Core>, namespace: &str, position: &RoutePosition) -> Result<Attempt> {
    for _ in 0..ROUNDS_MAX {
        let topology = core.topology(namespace).await?;
        match core.store.route(&request(core, &topology, position), core.clock.overridden()).await? {
            Routing::Nothing => return Ok(Attempt::Nothing),
            Routing::Busy => return Ok(Attempt::Busy),
            Routing::Outdated => drop(core.reload(namespace).await?),
            Routing::Routed(routed) => {
                after_commit(core, &topology, &routed);
                return Ok(Attempt::Routed { last_id: routed.last_id });
            }
        }
    }
    Err(keeps_changing(namespace))
}

/// Routes everything that has arrived; how many batches. Waits for another router that is at work.
pub(crate) async fn route_arrivals(core: &Arc<Core>, namespace: &str) -> Result<usize> {
    let (mut batches, start) = (0, RoutePosition::default());
    settle_departures(core, namespace, None).await?;
    while core.store.look_for_arrivals(namespace, &start).await?.any {
        match attempt(core, namespace, &start).await? {
            Attempt::Nothing => break,
            Attempt::Busy => tokio::time::sleep(LOOK_EVERY).await,
            Attempt::Routed { .. } => batches += 1,
        }
    }
    Ok(batches)
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
    /// Routes what has arrived in this namespace; how many batches.
    pub(crate) async fn route_arrivals(&self) -> Result<usize> {
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
    pub(crate) async fn route_all_arrivals(&self) -> Result<usize> {
        let mut batches = 0;
        for namespace in self.store().namespaces_with_arrivals().await? {
            match route_arrivals(self.core(), &namespace).await {
                Ok(more) => batches += more,
                Err(error) => tracing::warn!(%error, namespace, "arrived events could not be routed"),
            }
        }
        Ok(batches)
    }
}

/// Where a router stands.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Publishers notify it.
    Idle,
    /// Something was routed a moment ago. Publishers still notify it.
    Watching { until: Instant },
    /// It has announced that it looks by itself, and does so until then unless more arrives.
    Active { until: Instant, announced: Instant },
    /// It was active. Transactions with a smaller id than this do not notify it.
    Leaving { before: i64, until: Instant },
}

struct Router {
    core: Arc<Core>,
    namespace: String,
    state: State,
    arrived: Arc<Notify>,
    /// See [`ArrivalsLook::connects`](crate::store::ArrivalsLook).
    connects: u64,
    /// The newest event that was routed.
    newest: i64,
    position: RoutePosition,
    /// A later position: all visible events up to this one were routed at this time, when no transaction from this id on had
    /// begun.
    next_position: Option<(i64, i64, Instant)>,
}

/// Routes for as long as there are claimers in the namespace.
pub(crate) async fn run(core: Arc<Core>, namespace: String) {
    let mut router = Router {
        state: State::Idle,
        arrived: core.wakes.arrivals(&namespace),
        connects: 0,
        newest: 0,
        position: RoutePosition::default(),
        next_position: None,
        core,
        namespace,
    };
    while router.core.wakes.goes_on_routing(&router.namespace) {
        match router.step().await {
            Ok(()) => {}
            Err(Error::Closed) => return,
            Err(error) => {
                tracing::debug!(%error, namespace = router.namespace, "arrived events could not be routed; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

impl Router {
    /// Routes what has arrived, then waits for more.
    async fn step(&mut self) -> Result<()> {
        let routed = self.route_all().await?;
        if matches!(self.state, State::Idle) && !routed {
            // Those of processes that ended before they settled them.
            settle_departures(&self.core, &self.namespace, None).await?;
        }
        self.state = self.next_state(routed).await?;
        let safety_poll = self.core.idle_poll.mul_f64(1.0 - 0.1 * fastrand::f64());
        let pause = match self.state {
            State::Idle => safety_poll,
            State::Watching { .. } | State::Active { .. } => LOOK_EVERY,
            State::Leaving { .. } => LOOK_SLOWLY.min(safety_poll),
        };
        let _ = tokio::time::timeout(pause, self.arrived.notified()).await;
        Ok(())
    }

    async fn next_state(&mut self, routed: bool) -> Result<State> {
        let (now, namespace) = (Instant::now(), self.namespace.as_str());
        let (store, process) = (&self.core.store, self.core.process.as_str());
        if !store.announces_routers() {
            return Ok(State::Idle);
        }
        Ok(match (self.state, routed) {
            (State::Idle, true) => State::Watching { until: now + WATCH_FOR },
            (State::Watching { .. } | State::Leaving { .. }, true) => {
                match store.announce_active_router(namespace, process).await? {
                    true => State::Active { until: now + ACTIVE_FOR, announced: now },
                    false => State::Idle,
                }
            }
            (State::Active { announced, .. }, true) => {
                let announced = self.renew(announced).await?;
                State::Active { until: now + ACTIVE_FOR, announced }
            }
            (State::Active { until, announced }, false) if now < until => {
                State::Active { until, announced: self.renew(announced).await? }
            }
            (State::Active { .. }, false) => {
                let before = store.announce_idle_router(namespace, process).await?;
                State::Leaving { before, until: now + ACTIVE_FOR }
            }
            (State::Watching { until }, false) if now >= until => State::Idle,
            (State::Leaving { before, until }, false) if now >= until => {
                match store.look_for_arrivals(namespace, &self.position).await?.snapshot.ended >= before {
                    true => State::Idle,
                    false => self.state,
                }
            }
            (state, false) => state,
        })
    }

    async fn renew(&self, announced: Instant) -> Result<Instant> {
        if announced.elapsed() < ANNOUNCE_EVERY {
            return Ok(announced);
        }
        self.core.store.announce_active_router(&self.namespace, &self.core.process).await?;
        Ok(Instant::now())
    }

    /// Routes batch after batch; whether there was any.
    async fn route_all(&mut self) -> Result<bool> {
        let mut routed = false;
        loop {
            let look = self.core.store.look_for_arrivals(&self.namespace, &self.position).await?;
            if look.connects != self.connects {
                (self.connects, self.position, self.next_position) = (look.connects, RoutePosition::default(), None);
                continue;
            }
            if !look.any {
                self.advance(&look.snapshot);
                return Ok(routed);
            }
            match attempt(&self.core, &self.namespace, &self.position).await? {
                Attempt::Nothing => {}
                Attempt::Busy => tokio::time::sleep(BUSY_PAUSE).await,
                Attempt::Routed { last_id } => {
                    routed = true;
                    self.newest = self.newest.max(last_id);
                }
            }
        }
    }

    /// Moves the position: in this snapshot, everything that is visible was routed.
    fn advance(&mut self, snapshot: &Snapshot) {
        self.position.open.retain(|id| snapshot.open.contains(id));
        match self.next_position {
            Some((after, next, since)) if since.elapsed() >= RECENT => {
                // A transaction that published an event up to this one, and is not visible, had begun by then and is open.
                let open = snapshot.open.iter().copied().filter(|id| *id < next).collect();
                self.position = RoutePosition { after, open };
                self.next_position = None;
            }
            Some(_) => {}
            None if self.newest > self.position.after => {
                self.next_position = Some((self.newest, snapshot.next, Instant::now()));
            }
            None => {}
        }
    }
}
