//! Serves all claim requests that share a filter.
//!
//! Concurrent requests are combined into one claim statement. If no delivery is ready, the requests wait until a
//! notification or the [`watcher`] reports one.
//!
//! ```text
//!            request                    nothing ready
//!   Idle ───────────────▶ Claiming ───────────────────────▶ Waiting
//!    ▲ ▲                    │  ▲                              │ │
//!    │ └──no requests left──┘  └──notified, or a short request┘ │
//!    └──────────────────────all requests answered───────────────┘
//! ```
//!
//! A long poll that arrives while other requests wait joins them without a statement.

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
use super::watcher::{self, PollThrottle};
use crate::error::{Error, Result};
use crate::event::delivery::{Delivery, Lease};
use crate::maintenance::release_expired::release_expired;
use crate::queue::Core;
use crate::queue::route::{self, route_arrivals};
use crate::queue::wake::{Registration, WakeReasons, lock};
use crate::store::{Claim, ClaimSlot, LeaseTimes};
use crate::topology::Topology;
use crate::topology::lanes::LaneKey;

/// Requests that wait for at least this many poll intervals rely on the watcher, which polls more often than that.
const LONG_POLL_MIN: u32 = 2;
/// Under load, the claimer checks this often for deliveries behind its positions.
const BEHIND_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A claimer without requests ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The initial and minimum batch size of a claim. The size doubles while claims are filled.
const CLAIM_SIZE_MIN: usize = 64;
/// A claim is repeated at most this often because lanes were created.
const NEW_LANES_TRIES_MAX: usize = 3;
/// A claim is repeated at most this often because the namespace changed, leases expired or other workers claimed first.
const TRIES_MAX: usize = 20;
/// An empty claim is not repeated after this many tries, even if a delivery seems to be ready.
const EMPTY_TRIES_MAX: usize = 4;

/// Sends requests to a claimer task.
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
            shutting_down: core.shutting_down.subscribe(),
            registration,
            core,
            filter,
            inbox,
            requests: WaitingClaims::default(),
            phase: Phase::Idle,
            selection: Selection::default(),
            positions: Positions::default(),
            behind_check: PollThrottle::new(BEHIND_CHECK_INTERVAL),
            claim_size: CLAIM_SIZE_MIN,
            last_claim_filled: false,
        };
        tokio::spawn(claimer.run());
        ClaimerHandle { requests, last_worker: Arc::default(), idle_poll }
    }

    /// Returns `None` if the task has ended.
    pub async fn claim(
        &self,
        worker_id: &str,
        max: usize,
        group_run: usize,
        wait: Duration,
    ) -> Option<Result<Vec<Delivery>>> {
        self.note_worker(worker_id);
        let (reply_to, reply) = oneshot::channel();
        let slot = ClaimSlot { worker_id: worker_id.to_owned(), lease: Lease::random(), max, group_run };
        let long_poll = wait >= LONG_POLL_MIN * self.idle_poll;
        let request = WaitingClaim { slot, until: Instant::now() + wait, long_poll, reply_to };
        self.requests.send(request).ok()?;
        let undelivered = reply.await.ok()?;
        Some(undelivered.map(Undelivered::into_received))
    }

    pub fn note_worker(&self, worker_id: &str) {
        let mut last = lock(&self.last_worker);
        if *last != worker_id {
            worker_id.clone_into(&mut last);
        }
    }

    /// The worker that sent the last request.
    pub fn last_worker(&self) -> String {
        lock(&self.last_worker).clone()
    }

    pub fn has_ended(&self) -> bool {
        self.requests.is_closed()
    }
}

/// What the claimer does next. [`Claimer::step`] has all transitions.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// No requests. The task ends after [`IDLE_TIMEOUT`].
    Idle,
    /// Requests are queued and deliveries may be ready: run a claim. `seen_by_watcher`: the watcher found a ready
    /// delivery.
    Claiming { seen_by_watcher: bool },
    /// Requests are queued, but no delivery was ready. `poll_now`: the watcher must poll immediately, to find out when
    /// a delivery becomes ready.
    Waiting { poll_now: bool },
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
    /// When to check behind the positions next. A claim that is not filled checks earlier.
    behind_check: PollThrottle,
    /// The maximum number of deliveries of the next claim.
    claim_size: usize,
    /// The last claim returned as many deliveries as it asked for.
    last_claim_filled: bool,
}

impl Claimer {
    async fn run(mut self) {
        while self.step().await {}
    }

    /// Makes one transition. Returns `false` when the claimer ends.
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
            Phase::Waiting { poll_now } => self.wait(poll_now).await,
        };
        true
    }

    /// Waits for the first request. Returns `None` on the idle timeout.
    async fn next_request(&mut self) -> Option<WaitingClaim> {
        self.registration.stop_waiting();
        match tokio::time::timeout(IDLE_TIMEOUT, self.inbox.recv()).await {
            Ok(request) => request,
            Err(_) => {
                self.inbox.close();
                // Serve a request that was sent before the inbox was closed.
                self.inbox.recv().await
            }
        }
    }

    /// Admits the requests in the inbox. Returns whether all of them are long polls, which may wait without a claim.
    fn admit_requests(&mut self) -> bool {
        let mut long_polls = true;
        while let Ok(request) = self.inbox.try_recv() {
            long_polls &= request.long_poll;
            self.requests.push(request);
        }
        long_polls
    }

    /// The next phase while no delivery is ready.
    fn wait_or_idle(&mut self, poll_now: bool) -> Phase {
        self.reply_to_timed_out();
        if self.requests.is_empty() { Phase::Idle } else { Phase::Waiting { poll_now } }
    }

    async fn claim_for_requests(&mut self, seen_by_watcher: bool) -> Phase {
        self.admit_requests();
        let batch = self.requests.take_first(self.claim_size.min(self.core.limits.claim_batch_max));
        if batch.is_empty() {
            return self.wait_or_idle(false);
        }
        let _in_flight = self.core.in_flight.begin();
        self.registration.stop_waiting();
        // The claim finds everything that earlier notifications reported.
        drop(self.registration.waiter.take_reasons());
        let slots: Vec<ClaimSlot> = batch.iter().map(|(_, request)| request.slot.clone()).collect();
        let exact = batch.iter().any(|(_, request)| !request.long_poll);
        match self.claim(slots, exact).await {
            Ok(deliveries) => {
                let empty = deliveries.is_empty();
                self.claim_size = (deliveries.len() * 2).max(CLAIM_SIZE_MIN);
                self.deliver(batch, deliveries);
                // If the watcher saw a ready delivery, another worker claimed it first. Do not poll again immediately.
                if empty { self.wait_or_idle(!seen_by_watcher) } else { Phase::Claiming { seen_by_watcher: false } }
            }
            Err(error) => {
                // If the server crashed, it may have lost acknowledged claims.
                self.positions = Positions::default();
                batch.into_iter().for_each(|(_, request)| request.reply(Err(error.clone())));
                self.fail_all(&error);
                Phase::Idle
            }
        }
    }

    /// Claims for these slots. Returns nothing only after checking that nothing is ready. With `exact`, the check
    /// includes arrivals; without it, the router notifies the requests after it has routed them.
    async fn claim(&mut self, slots: Vec<ClaimSlot>, exact: bool) -> Result<Vec<Delivery>> {
        let wanted: usize = slots.iter().map(|slot| slot.max).sum();
        // After a filled claim, more deliveries are probably ready, so skip the arrivals at first.
        let mut routed = exact && !self.last_claim_filled;
        if routed {
            self.route_arrivals().await?;
        }
        for tries in 0..TRIES_MAX {
            self.refresh_selection().await?;
            let check_behind = self.behind_check.is_due();
            if check_behind {
                self.check_behind().await?;
            }
            if self.registration.waiter.take_rewind() || check_behind {
                self.positions.restart_ready_streams();
            }
            let Some(mut claim) = self.build_claim(&slots) else {
                // Paused in the cached topology. Another process may have resumed it.
                let topology = self.core.reload(&self.filter.namespace).await?;
                if self.selection.version() != Some(topology.version) {
                    continue;
                }
                return Ok(Vec::new());
            };
            // If lanes are created all the time, claim without the newest lanes.
            let without_newest = claim.known_lanes.take_if(|_| tries >= NEW_LANES_TRIES_MAX).is_some();
            let claimed = self.core.store.claim(&claim, self.core.clock.overridden()).await?;
            let missed = self.positions.reset_on_reconnect(claimed.connects);
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
            self.last_claim_filled = filled;
            self.positions.advance(&claimed, filled);
            let restarted = !filled && self.positions.restart_ready_streams();
            if without_newest {
                // The claim may have passed deliveries in lanes that this process has not listed yet.
                self.positions.rewind();
            }
            let deliveries = merge_runs(claimed.deliveries, claimed.followers);
            if let Some(topology) = &self.selection.topology {
                self.core.count_claimed(topology, &claim.namespace, &claim.subscription, &deliveries);
            }
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            // If a transaction that releases or finishes a row keeps it locked for long, leave the row to the next
            // poll.
            let mut retry = missed || claimed.contended || self.check_behind().await? || restarted;
            if !retry && exact && !routed {
                (routed, retry) = (true, true);
                self.route_arrivals().await?;
            }
            if !retry || (tries >= EMPTY_TRIES_MAX && !claimed.contended) {
                return Ok(deliveries);
            }
        }
        // The namespace keeps changing, or other workers claimed every candidate. The requests wait for a notification.
        Ok(Vec::new())
    }

    /// Routes events that were committed before the claim, so that the claim finds them.
    async fn route_arrivals(&self) -> Result<()> {
        match route_arrivals(&self.core, &self.filter.namespace).await {
            // The queue is closing: claim without them.
            Err(Error::Closed) => Ok(()),
            routed => routed.map(drop),
        }
    }

    /// The claim for these slots; `None` if nothing can be claimed because of a pause.
    fn build_claim(&self, slots: &[ClaimSlot]) -> Option<Claim> {
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

    /// Updates the selection to the cached topology and lanes.
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

    /// Checks for claimable deliveries behind the position in publish order. Returns `true` if there may be one.
    async fn check_behind(&mut self) -> Result<bool> {
        let begun = Instant::now();
        let check = match (self.positions.unsettled(), self.build_claim(&[])) {
            (Some((from, to)), Some(claim)) => {
                Some(self.core.store.check_behind(&claim, from, to, self.core.clock.overridden()).await)
            }
            _ => None,
        };
        self.behind_check.record(begun);
        let Some(check) = check.transpose()? else { return Ok(false) };
        // The check skips lanes that this claimer does not know yet. The next claim lists them.
        Ok(check.new_lanes || self.positions.apply_check(&check))
    }

    /// Replies to the requests that got deliveries. The others keep their position.
    fn deliver(&mut self, batch: Vec<(u64, WaitingClaim)>, deliveries: Vec<Delivery>) {
        let mut by_lease: HashMap<Lease, Vec<Delivery>> = HashMap::new();
        match (&batch[..], deliveries.first()) {
            ([_], Some(first)) => drop(by_lease.insert(first.lease, deliveries)),
            _ => deliveries.into_iter().for_each(|delivery| by_lease.entry(delivery.lease).or_default().push(delivery)),
        }
        for (arrival, request) in batch {
            match by_lease.remove(&request.slot.lease) {
                Some(deliveries) => request.reply(Ok(self.undelivered(deliveries))),
                None => self.requests.put_back(arrival, request),
            }
        }
    }

    fn undelivered(&self, deliveries: Vec<Delivery>) -> Undelivered {
        Undelivered { deliveries, core: self.core.clone(), topology: self.selection.topology.clone() }
    }

    /// Replies to the requests that have timed out; on shutdown, to all of them.
    fn reply_to_timed_out(&mut self) {
        let timed_out = match *self.shutting_down.borrow() {
            true => self.requests.take_all().collect(),
            false => self.requests.take_timed_out(Instant::now()),
        };
        for request in timed_out {
            request.reply(Ok(self.undelivered(Vec::new())));
        }
    }

    fn fail_all(&mut self, error: &Error) {
        self.requests.take_all().for_each(|request| request.reply(Err(error.clone())));
    }

    /// Waits for a notification, a new request, the next check behind the positions, or the first timeout.
    async fn wait(&mut self, poll_now: bool) -> Phase {
        if self.registration.wait(self.positions.settled(), poll_now) {
            tokio::spawn(watcher::watch(self.core.clone(), self.filter.namespace.clone()));
        }
        let first_timeout = self.requests.first_timeout().unwrap_or_else(|| Instant::now() + self.core.idle_poll);
        let (unsettled, mut long_polls) = (self.positions.unsettled().is_some(), true);
        tokio::select! {
            () = self.registration.waiter.notified() => {}
            () = tokio::time::sleep_until(first_timeout) => {}
            // The watcher's polls scan everything after the settled event, so move it. If the check fails, the
            // watcher's next poll reports the error.
            () = tokio::time::sleep_until(self.behind_check.next_at()), if unsettled => {
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
        long_polls &= self.admit_requests();
        let WakeReasons { ready, seen_by_watcher, lanes_changed, failed } = self.registration.waiter.take_reasons();
        if let Some(error) = failed {
            self.fail_all(&error);
            return Phase::Idle;
        }
        if ready || lanes_changed || !long_polls {
            return Phase::Claiming { seen_by_watcher };
        }
        self.wait_or_idle(false)
    }
}

async fn until_shutdown(shutting_down: &mut watch::Receiver<bool>) {
    // The sender cannot be dropped: the claimer keeps the core alive, which owns it.
    let _ = shutting_down.wait_for(|shutting_down| *shutting_down).await;
}

/// Inserts the rest of each run directly after its first delivery.
fn merge_runs(deliveries: Vec<Delivery>, followers: Vec<Delivery>) -> Vec<Delivery> {
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
