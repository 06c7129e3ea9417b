//! Serves all claim requests that share a filter.
//!
//! Concurrent requests are combined into one claim statement. If nothing is ready, the requests wait until a notification,
//! or the [`watcher`], reports that something is.
//!
//! ```text
//!            request                    nothing ready
//!   Idle ───────────────▶ Claiming ───────────────────────▶ Waiting
//!    ▲ ▲                    │  ▲                              │ │
//!    │ └──no requests left──┘  └──notified, or a short request┘ │
//!    └──────────────────────all requests answered───────────────┘
//! ```
//!
//! A long poll that arrives while others wait joins them without a statement.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::Filter;
use super::positions::Positions;
use super::requests::{WaitingClaim, WaitingClaims};
use super::selection::Selection;
use super::undelivered::Undelivered;
use super::watcher::{self, Pace};
use crate::error::{Error, Result};
use crate::event::delivery::{Delivery, Lease};
use crate::maintenance::release_expired::release_expired;
use crate::queue::Core;
use crate::queue::route::{self, route_arrivals};
use crate::queue::wake::{Registration, WakeReasons, lock};
use crate::store::{Claim, ClaimSlot, LeaseTimes};
use crate::topology::Topology;
use crate::topology::lanes::LaneKey;

/// Requests that wait for at least this many poll intervals rely on the watcher.
const LONG_POLL_MIN: u32 = 2;
/// Under load, the claimer looks behind its positions this often.
const LOOK_BEHIND_EVERY: Duration = Duration::from_secs(1);
/// A claimer without requests ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// A claim asks for at most this many deliveries at first. The number grows while claims are filled.
const CLAIM_SIZE_MIN: usize = 64;
/// How often one claim is repeated because lanes were created.
const NEW_LANES_ROUNDS_MAX: usize = 3;
/// How often one claim is repeated because the namespace changed, leases expired or other workers were faster.
const ROUNDS_MAX: usize = 20;
/// After how many rounds a claim that takes nothing is not repeated, although something seems to be ready.
const EMPTY_ROUNDS_MAX: usize = 4;

/// The sending end of a claimer.
#[derive(Clone)]
pub(super) struct ClaimerHandle {
    requests: mpsc::UnboundedSender<WaitingClaim>,
    last_worker: Arc<Mutex<String>>,
    idle_poll: Duration,
}

impl ClaimerHandle {
    pub fn start(core: Arc<Core>, filter: Filter) -> ClaimerHandle {
        let (requests, inbox) = mpsc::unbounded_channel();
        let idle_poll = core.idle_poll;
        let selects = filter.clone();
        let selects = Box::new(move |key: &LaneKey| selects.may_select(key));
        let registration = core.wakes.register(&filter.namespace, selects);
        if core.wakes.begin_routing(&filter.namespace) {
            tokio::spawn(route::run(core.clone(), filter.namespace.clone()));
        }
        let claimer = Claimer {
            shutting_down: core.hurry.subscribe(),
            registration,
            core,
            filter,
            inbox,
            requests: WaitingClaims::default(),
            phase: Phase::Idle,
            selection: Selection::default(),
            positions: Positions::default(),
            look_behind: Pace::every(LOOK_BEHIND_EVERY),
            claim_size: CLAIM_SIZE_MIN,
            was_filled: false,
        };
        tokio::spawn(claimer.run());
        ClaimerHandle { requests, last_worker: Arc::default(), idle_poll }
    }

    /// `None` if the task has ended.
    pub async fn claim(
        &self,
        worker_id: &str,
        max: usize,
        group_run: usize,
        wait: Duration,
    ) -> Option<Result<Vec<Delivery>>> {
        self.note_worker(worker_id);
        let (reply, answer) = oneshot::channel();
        let slot = ClaimSlot { worker_id: worker_id.to_owned(), lease: Lease::random(), max, group_run };
        let long_poll = wait >= LONG_POLL_MIN * self.idle_poll;
        let request = WaitingClaim { slot, until: Instant::now() + wait, long_poll, reply };
        self.requests.send(request).ok()?;
        let undelivered = answer.await.ok()?;
        Some(undelivered.map(Undelivered::receive))
    }

    pub fn note_worker(&self, worker_id: &str) {
        let mut last = lock(&self.last_worker);
        if *last != worker_id {
            worker_id.clone_into(&mut last);
        }
    }

    /// The worker of the last request.
    pub fn last_worker(&self) -> String {
        lock(&self.last_worker).clone()
    }

    pub fn has_ended(&self) -> bool {
        self.requests.is_closed()
    }
}

/// What the claimer does next. [`Claimer::step`] has every transition.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// There is no request.
    Idle,
    /// Requests wait, and deliveries may be ready; the watcher may have seen one.
    Claiming { seen_by_watcher: bool },
    /// Requests wait, and nothing was ready. `look`: the watcher must look at once, to learn when something will be.
    Waiting { look: bool },
}

struct Claimer {
    core: Arc<Core>,
    filter: Filter,
    inbox: mpsc::UnboundedReceiver<WaitingClaim>,
    shutting_down: watch::Receiver<bool>,
    requests: WaitingClaims,
    registration: Registration,
    phase: Phase,
    selection: Selection,
    positions: Positions,
    /// When to look behind the positions next, if no claim comes back unfilled before.
    look_behind: Pace,
    /// How many deliveries the next claim asks for, at most.
    claim_size: usize,
    /// The last claim got all that it asked for.
    was_filled: bool,
}

impl Claimer {
    async fn run(mut self) {
        while self.step().await {}
    }

    /// One transition; `false` when the claimer ends.
    async fn step(&mut self) -> bool {
        self.phase = match self.phase {
            Phase::Idle => match self.next_request().await {
                Some(request) => {
                    self.requests.push(request);
                    Phase::Claiming { seen_by_watcher: false }
                }
                None => return false,
            },
            Phase::Claiming { seen_by_watcher } => self.claim_for_requests(seen_by_watcher).await,
            Phase::Waiting { look } => self.wait(look).await,
        };
        true
    }

    /// Waits for the first request. `None` if none comes.
    async fn next_request(&mut self) -> Option<WaitingClaim> {
        self.registration.stop_waiting();
        match tokio::time::timeout(IDLE_TIMEOUT, self.inbox.recv()).await {
            Ok(request) => request,
            Err(_) => {
                self.inbox.close();
                // Requests that were sent before that are still served.
                self.inbox.recv().await
            }
        }
    }

    /// Adds the requests that have come; whether all of them may wait without a claim.
    fn admit_all(&mut self) -> bool {
        let mut long_polls = true;
        while let Ok(request) = self.inbox.try_recv() {
            long_polls &= request.long_poll;
            self.requests.push(request);
        }
        long_polls
    }

    /// The phase when no request can be served now.
    fn without_ready_deliveries(&mut self, look: bool) -> Phase {
        self.answer_ended();
        if self.requests.is_empty() { Phase::Idle } else { Phase::Waiting { look } }
    }

    async fn claim_for_requests(&mut self, seen_by_watcher: bool) -> Phase {
        self.admit_all();
        let batch = self.requests.take_first(self.claim_size.min(self.core.limits.claim_batch_max));
        if batch.is_empty() {
            return self.without_ready_deliveries(false);
        }
        let _busy = self.core.busy.begin();
        self.registration.stop_waiting();
        // The claim finds everything that the waiter was notified of until now.
        drop(self.registration.waiter.news());
        let slots: Vec<ClaimSlot> = batch.iter().map(|(_, request)| request.slot.clone()).collect();
        let exact = batch.iter().any(|(_, request)| !request.long_poll);
        match self.claim(slots, exact).await {
            Ok(deliveries) => {
                let empty = deliveries.is_empty();
                self.claim_size = (deliveries.len() * 2).max(CLAIM_SIZE_MIN);
                self.deliver(batch, deliveries);
                // If the watcher saw a ready delivery, another worker claimed it first. Do not look again at once.
                if empty {
                    self.without_ready_deliveries(!seen_by_watcher)
                } else {
                    Phase::Claiming { seen_by_watcher: false }
                }
            }
            Err(error) => {
                // If the server crashed, it may have lost claims that it had confirmed.
                self.positions = Positions::default();
                batch.into_iter().for_each(|(_, request)| request.answer(Err(error.clone())));
                self.fail_all(&error);
                Phase::Idle
            }
        }
    }

    /// Claims for these slots. If nothing is ready, makes sure of it. `exact`: also of what has arrived; otherwise the router
    /// notifies the claims.
    async fn claim(&mut self, slots: Vec<ClaimSlot>, exact: bool) -> Result<Vec<Delivery>> {
        let wanted: usize = slots.iter().map(|slot| slot.max).sum();
        // A claim that will find something need not look for arrivals first.
        let mut routed = exact && !self.was_filled;
        if routed {
            self.route_arrivals().await?;
        }
        for round in 0..ROUNDS_MAX {
            self.refresh_selection().await?;
            let look_behind = self.look_behind.is_due();
            if look_behind {
                self.check_behind().await?;
            }
            if self.registration.waiter.take_rewind() || look_behind {
                self.positions.restart_ready_streams();
            }
            let Some(mut claim) = self.statement(&slots) else {
                // Paused, as far as this process knows. Another process may have resumed it.
                let topology = self.core.reload(&self.filter.namespace).await?;
                if self.selection.version() != Some(topology.version) {
                    continue;
                }
                return Ok(Vec::new());
            };
            // Where lanes are created all the time, a claim does without the newest of them.
            let without_newest = claim.known_lanes.take_if(|_| round >= NEW_LANES_ROUNDS_MAX).is_some();
            let claimed = self.core.store.claim(&claim, self.core.clock.overridden()).await?;
            let missed = self.positions.note_connects(claimed.connects);
            if claimed.outdated {
                self.core.reload(&self.filter.namespace).await?;
                continue;
            }
            if claimed.new_lanes {
                self.list_lanes().await?;
                continue;
            }
            if claimed.leases_due {
                release_expired(&self.core, &self.filter.namespace).await?;
                continue;
            }
            let filled = claimed.deliveries.len() >= wanted;
            self.was_filled = filled;
            self.positions.advance(&claimed, filled);
            let restarted = !filled && self.positions.restart_ready_streams();
            if without_newest {
                // The claim may have passed deliveries in lanes that are listed later.
                self.positions.rewind();
            }
            let deliveries = with_runs(claimed.deliveries, claimed.followers);
            if let Some(topology) = &self.selection.topology {
                self.core.count_claimed(topology, &claim.namespace, &claim.subscription, &deliveries);
            }
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            // A row may be locked for long by a transaction that gives it back or finishes it. It is left to the next poll.
            let mut more = missed || claimed.contended || self.check_behind().await? || restarted;
            if !more && exact && !routed {
                (routed, more) = (true, true);
                self.route_arrivals().await?;
            }
            if !more || (round >= EMPTY_ROUNDS_MAX && !claimed.contended) {
                return Ok(deliveries);
            }
        }
        // The namespace keeps changing, or other workers took every candidate. The requests wait for a notification.
        Ok(Vec::new())
    }

    /// Routes what was committed before the claim, so that the claim finds it.
    async fn route_arrivals(&self) -> Result<()> {
        match route_arrivals(&self.core, &self.filter.namespace).await {
            // The queue is being closed: the claim returns what there is.
            Err(Error::Closed) => Ok(()),
            routed => routed.map(drop),
        }
    }

    fn statement(&self, slots: &[ClaimSlot]) -> Option<Claim> {
        let topology = self.selection.topology.as_ref()?;
        Some(Claim {
            namespace: self.filter.namespace.clone(),
            version: topology.version,
            subscription: self.filter.subscription.clone(),
            subscription_id: self.selection.subscription_id,
            source: self.selection.source(&self.positions)?,
            known_lanes: self.selection.newest_lane(),
            leases: self.lease_times(topology),
            deadline_horizon: topology.deadline_horizon(&self.filter.subscription),
            requests: slots.to_vec(),
        })
    }

    fn lease_times(&self, topology: &Topology) -> LeaseTimes {
        match self.filter.lease {
            Some(default) => LeaseTimes { default, by_type: Vec::new() },
            None => topology.lease_times(&self.filter.subscription),
        }
    }

    /// Brings the selection up to date with the namespace, as far as this process knows it.
    async fn refresh_selection(&mut self) -> Result<()> {
        let topology = self.core.topology(&self.filter.namespace).await?;
        if self.selection.version() != Some(topology.version) {
            if Selection::needs_lanes(&self.filter, &topology) {
                self.core.list_lanes(&topology).await?;
            }
            self.selection = Selection::new(&self.core, &self.filter, topology);
            self.positions = Positions::default();
            self.registration.set_interest(self.selection.interest());
        } else {
            self.add_listed_lanes();
        }
        Ok(())
    }

    fn add_listed_lanes(&mut self) {
        if self.selection.add_listed(&self.core, &self.filter) {
            self.registration.set_interest(self.selection.interest());
        }
    }

    /// Lists the lanes that other processes have created.
    async fn list_lanes(&mut self) -> Result<()> {
        if let Some(topology) = self.selection.topology.clone() {
            self.core.list_lanes(&topology).await?;
            self.add_listed_lanes();
        }
        Ok(())
    }

    /// Looks for deliveries in publish order behind the position. `true` if there may be one.
    async fn check_behind(&mut self) -> Result<bool> {
        let begun = Instant::now();
        let check = match (self.positions.unsettled(), self.statement(&[])) {
            (Some((from, to)), Some(claim)) => {
                Some(self.core.store.check_behind(&claim, from, to, self.core.clock.overridden()).await)
            }
            _ => None,
        };
        self.look_behind.note(begun);
        let Some(check) = check.transpose()? else { return Ok(false) };
        // Deliveries in lanes that the claimer does not know yet were passed. The next claim lists these lanes.
        Ok(check.new_lanes || self.positions.note_check(&check))
    }

    /// Gives each request what it got. Requests that got nothing keep their place.
    fn deliver(&mut self, batch: Vec<(u64, WaitingClaim)>, deliveries: Vec<Delivery>) {
        let mut of_lease: HashMap<Lease, Vec<Delivery>> = HashMap::new();
        match (&batch[..], deliveries.first()) {
            ([_], Some(first)) => drop(of_lease.insert(first.lease, deliveries)),
            _ => deliveries.into_iter().for_each(|delivery| of_lease.entry(delivery.lease).or_default().push(delivery)),
        }
        for (arrival, request) in batch {
            match of_lease.remove(&request.slot.lease) {
                Some(deliveries) => request.answer(Ok(self.undelivered(deliveries))),
                None => self.requests.put_back(arrival, request),
            }
        }
    }

    fn undelivered(&self, deliveries: Vec<Delivery>) -> Undelivered {
        Undelivered { deliveries, core: self.core.clone(), topology: self.selection.topology.clone() }
    }

    /// Answers the requests that do not wait any longer.
    fn answer_ended(&mut self) {
        let ended = match *self.shutting_down.borrow() {
            true => self.requests.take_all().collect(),
            false => self.requests.take_ended(Instant::now()),
        };
        for request in ended {
            request.answer(Ok(self.undelivered(Vec::new())));
        }
    }

    fn fail_all(&mut self, error: &Error) {
        self.requests.take_all().for_each(|request| request.answer(Err(error.clone())));
    }

    /// Waits until something may be ready, a request comes, or the first one stops waiting.
    async fn wait(&mut self, look: bool) -> Phase {
        if self.registration.wait(self.positions.settled(), look) {
            tokio::spawn(watcher::watch(self.core.clone(), self.filter.namespace.clone()));
        }
        let first_end = self.requests.first_end().unwrap_or_else(|| Instant::now() + self.core.idle_poll);
        let (unsettled, mut long_polls) = (self.positions.unsettled().is_some(), true);
        tokio::select! {
            () = self.registration.waiter.notified() => {}
            () = tokio::time::sleep_until(first_end) => {}
            // The watcher reads all that is not settled, so settle it. If this fails, the watcher's next look reports why.
            () = tokio::time::sleep_until(self.look_behind.next()), if unsettled => {
                if self.check_behind().await.unwrap_or(false) {
                    return Phase::Claiming { seen_by_watcher: true };
                }
            }
            Some(request) = self.inbox.recv() => {
                long_polls = request.long_poll;
                self.requests.push(request);
            }
            () = until_shutdown(&mut self.shutting_down) => {}
        }
        long_polls &= self.admit_all();
        let WakeReasons { ready, seen_by_watcher, lanes_changed, failed } = self.registration.waiter.news();
        if let Some(error) = failed {
            self.fail_all(&error);
            return Phase::Idle;
        }
        if ready || lanes_changed || !long_polls {
            return Phase::Claiming { seen_by_watcher };
        }
        self.without_ready_deliveries(false)
    }
}

async fn until_shutdown(shutting_down: &mut watch::Receiver<bool>) {
    // The core has the other end, and the claimer has the core.
    let _ = shutting_down.wait_for(|shutting_down| *shutting_down).await;
}

/// Deliveries, each directly before the rest of its run.
fn with_runs(deliveries: Vec<Delivery>, followers: Vec<Delivery>) -> Vec<Delivery> {
    if followers.is_empty() {
        return deliveries;
    }
    let mut runs: HashMap<String, Vec<Delivery>> = HashMap::new();
    for follower in followers {
        runs.entry(follower.event.group_id.clone().unwrap_or_default()).or_default().push(follower);
    }
    let mut merged = Vec::new();
    for delivery in deliveries {
        let run = delivery.event.group_id.as_ref().and_then(|group_id| runs.remove(group_id));
        merged.push(delivery);
        merged.extend(run.unwrap_or_default());
    }
    merged
}
