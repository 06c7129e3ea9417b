//! One task for all claims with the same filter: it gathers them, takes for all of them with one
//! statement, and waits for all of them where there is nothing to take.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Filter;
use crate::change::{apply_counted, change};
use crate::decide::give_back;
use crate::delivery::{Delivery, Lease};
use crate::error::Result;
use crate::maintain;
use crate::outcome::Action;
use crate::queue::Core;
use crate::store::{Change, Claim, ClaimSlot, Guard, LaneClaim};
use crate::topology::Topology;
use crate::wake::Waiter;

/// Without any sign, a waiting claim looks again this often; notifications only make it faster.
const POLL: Duration = Duration::from_secs(1);
/// It never looks again sooner than this by itself.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// Under load, a sweep behind the claims runs this often.
const SWEEP: Duration = Duration::from_secs(1);
/// Sweeps and looks take at most one part in this many of the time.
const SHARE: u32 = 10;
/// A look that takes no longer may be repeated at will.
const LOOK_CHEAP: Duration = Duration::from_millis(5);
/// A claimer that nobody asks for this long ends.
const IDLE: Duration = Duration::from_secs(30);

/// The way to a claimer's task.
#[derive(Clone)]
pub(super) struct Claimer {
    asks: mpsc::UnboundedSender<Ask>,
}

struct Ask {
    slot: ClaimSlot,
    until: Instant,
    reply: oneshot::Sender<Result<Handed>>,
}

impl Claimer {
    pub fn start(core: Arc<Core>, filter: Filter) -> Claimer {
        let (asks, inbox) = mpsc::unbounded_channel();
        let bell = core.wakes.register(&filter.namespace);
        let now = Instant::now();
        let task = Task {
            core,
            filter,
            inbox,
            bell,
            asking: VecDeque::new(),
            lanes: Lanes::default(),
            sweep_from: None,
            sweeping: Arc::default(),
            look_from: now,
            look_again: POLL,
        };
        tokio::spawn(task.run());
        Claimer { asks }
    }

    /// `None` if the task has ended.
    pub async fn ask(&self, worker_id: &str, max: usize, wait: Duration) -> Option<Result<Vec<Delivery>>> {
        let (reply, answer) = oneshot::channel();
        let slot = ClaimSlot { worker_id: worker_id.to_owned(), lease: Lease::random(), max };
        self.asks.send(Ask { slot, until: Instant::now() + wait, reply }).ok()?;
        let handed = answer.await.ok()?;
        Some(handed.map(Handed::keep))
    }

    pub fn has_ended(&self) -> bool {
        self.asks.is_closed()
    }
}

/// Deliveries on their way to who asked. Dropped before they are kept, others may have them at once.
struct Handed {
    deliveries: Vec<Delivery>,
    core: Arc<Core>,
    topology: Option<Arc<Topology>>,
}

impl Handed {
    fn keep(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let (deliveries, Some(topology)) = (std::mem::take(&mut self.deliveries), self.topology.take()) else { return };
        let (core, Ok(runtime)) = (self.core.clone(), tokio::runtime::Handle::try_current()) else { return };
        if !deliveries.is_empty() {
            runtime.spawn(give_back_all(core, topology, deliveries));
        }
    }
}

async fn give_back_all(core: Arc<Core>, topology: Arc<Topology>, deliveries: Vec<Delivery>) {
    let released = |delivery: &Delivery| {
        change(&topology, delivery.live(), Guard::Lease(delivery.lease), (Action::Released, give_back()))
    };
    let changes: Vec<Change> = deliveries.iter().map(released).collect();
    if let Err(error) = apply_counted(&core, &topology.namespace.namespace, &changes).await {
        tracing::warn!(%error, "could not give back deliveries; they come back when their lease runs out");
    }
}

/// The lanes that the filter selects in a topology.
#[derive(Default)]
struct Lanes {
    topology: Option<Arc<Topology>>,
    claims: Vec<LaneClaim>,
    ids: Vec<i64>,
}

struct Task {
    core: Arc<Core>,
    filter: Filter,
    inbox: mpsc::UnboundedReceiver<Ask>,
    bell: Arc<Waiter>,
    asking: VecDeque<Ask>,
    lanes: Lanes,
    /// The next sweep may begin then; `None` before the first.
    sweep_from: Option<Instant>,
    /// Held by the sweep that runs beside the claims, and for a while after it.
    sweeping: Arc<tokio::sync::Mutex<()>>,
    /// The next look may begin then.
    look_from: Instant,
    /// How long to wait for a sign before the next look.
    look_again: Duration,
}

impl Task {
    async fn run(mut self) {
        while self.gather().await {
            let slots = self.slots();
            let wanted: usize = slots.iter().map(|slot| slot.max).sum();
            let taken = self.take(slots).await;
            let short = taken.as_ref().is_ok_and(|taken| taken.len() < wanted);
            self.answer(taken);
            if short && !self.asking.is_empty() {
                self.wait().await;
            }
        }
    }

    /// Collects whoever asks; `false` once nobody does.
    async fn gather(&mut self) -> bool {
        if self.asking.is_empty() {
            match tokio::time::timeout(IDLE, self.inbox.recv()).await {
                Ok(Some(ask)) => self.asking.push_back(ask),
                Ok(None) => return false,
                Err(_) => {
                    self.inbox.close();
                    // Asks that slipped in before the end are still served.
                    match self.inbox.recv().await {
                        Some(ask) => self.asking.push_back(ask),
                        None => return false,
                    }
                }
            }
        }
        while let Ok(ask) = self.inbox.try_recv() {
            self.asking.push_back(ask);
        }
        self.asking.retain(|ask| !ask.reply.is_closed());
        true
    }

    /// As many requests as one claim may serve, in the order they came.
    fn slots(&self) -> Vec<ClaimSlot> {
        let mut room = self.core.limits.claim_batch_max;
        let fits = |ask: &&Ask| {
            let fits = ask.slot.max <= room;
            room = room.saturating_sub(ask.slot.max);
            fits
        };
        self.asking.iter().take_while(fits).map(|ask| ask.slot.clone()).collect()
    }

    /// Takes what is ready; where that is nothing, makes sure of it.
    async fn take(&mut self, slots: Vec<ClaimSlot>) -> Result<Vec<Delivery>> {
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        self.refresh_lanes().await?;
        self.sweep_if_due().await?;
        let mut taken = self.claim(&slots).await?;
        if taken.is_empty() && self.look().await? {
            taken = self.claim(&slots).await?;
        }
        Ok(taken)
    }

    async fn claim(&self, slots: &[ClaimSlot]) -> Result<Vec<Delivery>> {
        let Some(topology) = &self.lanes.topology else { return Ok(Vec::new()) };
        if self.lanes.ids.is_empty() {
            return Ok(Vec::new());
        }
        let claim = Claim {
            namespace: self.filter.namespace.clone(),
            version: topology.version,
            subscription: self.filter.subscription.clone(),
            lanes: self.lanes.claims.clone(),
            requests: slots.to_vec(),
        };
        self.core.store.claim(&claim, self.core.clock.overridden()).await
    }

    async fn refresh_lanes(&mut self) -> Result<()> {
        let topology = self.core.topology(&self.filter.namespace).await?;
        if self.lanes.topology.as_ref().is_some_and(|known| Arc::ptr_eq(known, &topology)) {
            return Ok(());
        }
        let (subscription, lease) = (&self.filter.subscription, self.filter.lease);
        let selected = topology.claimable(subscription, &self.filter.types, &self.filter.tags);
        let claims: Vec<LaneClaim> = selected
            .into_iter()
            .map(|lane| {
                let policy = topology.policy(subscription, &lane.key.event_type);
                LaneClaim {
                    lane_id: lane.lane_id,
                    priority: lane.key.priority,
                    lease: lease.unwrap_or_else(|| policy.lease()),
                    deadline_horizon: Duration::from_millis(policy.deadline_horizon_ms),
                }
            })
            .collect();
        let ids: Vec<i64> = claims.iter().map(|lane| lane.lane_id).collect();
        let newest = topology.lanes.iter().map(|lane| lane.lane_id).max().unwrap_or(0);
        self.bell.set_lanes(ids.iter().copied(), newest);
        self.lanes = Lanes { topology: Some(topology), claims, ids };
        Ok(())
    }

    /// Brings back run-out leases: before the first claim, under a test clock before every one, and
    /// else beside the claims, a small part of the time.
    async fn sweep_if_due(&mut self) -> Result<()> {
        let begun = Instant::now();
        let first = self.sweep_from.is_none();
        if first || self.core.clock.overridden().is_some() {
            self.sweep_from = Some(begun + SWEEP);
            return maintain::sweep_lanes(&self.core, &self.filter.namespace, &self.lanes.ids).await.map(drop);
        }
        if self.sweeping.try_lock().is_ok() && self.sweep_from.is_some_and(|from| from <= begun) {
            self.sweep_from = Some(begun + SWEEP);
            tokio::spawn(sweep(self.core.clone(), self.filter.clone(), self.lanes.ids.clone(), self.sweeping.clone()));
        }
        Ok(())
    }

    /// After an empty claim: looks for new lanes, changes, run-out leases and deliveries that
    /// committed late. `true` if claiming again may find something.
    async fn look(&mut self) -> Result<bool> {
        let begun = Instant::now();
        if begun < self.look_from {
            self.look_again = POLL;
            return Ok(false);
        }
        let namespace = &self.filter.namespace;
        let look = self.core.store.look(namespace, &self.lanes.ids, self.core.clock.overridden()).await?;
        let took = begun.elapsed();
        if took > LOOK_CHEAP {
            self.look_from = Instant::now() + took * (SHARE - 1);
        }
        self.look_again = look.next_ready_in.map_or(POLL, |soon| soon.clamp(LOOK_MIN, POLL));
        let known = self.lanes.topology.as_ref();
        let changed = known.is_none_or(|known| known.version != look.version || known.lanes.len() != look.lanes);
        if changed {
            self.core.reload(&self.filter.namespace).await?;
            self.refresh_lanes().await?;
        }
        if look.run_out {
            maintain::sweep_lanes(&self.core, &self.filter.namespace, &self.lanes.ids).await?;
        }
        self.core.store.rewind(&self.lanes.ids);
        Ok(changed || look.run_out || look.claimable)
    }

    /// Gives everyone what they got, and an answer to those who will not wait.
    fn answer(&mut self, taken: Result<Vec<Delivery>>) {
        let mut of_lease: HashMap<Lease, Vec<Delivery>> = HashMap::new();
        match taken {
            Ok(taken) => {
                taken.into_iter().for_each(|delivery| of_lease.entry(delivery.lease).or_default().push(delivery))
            }
            Err(error) => {
                for ask in self.asking.drain(..) {
                    let _ = ask.reply.send(Err(error.clone()));
                }
                return;
            }
        }
        let now = Instant::now();
        for ask in std::mem::take(&mut self.asking) {
            let deliveries = of_lease.remove(&ask.slot.lease).unwrap_or_default();
            if deliveries.is_empty() && ask.until > now {
                self.asking.push_back(ask);
            } else {
                let (core, topology) = (self.core.clone(), self.lanes.topology.clone());
                // Who no longer listens drops it, and so gives it back.
                let _ = ask.reply.send(Ok(Handed { deliveries, core, topology }));
            }
        }
    }

    /// Until something may have come, somebody new asks, or the first one gives up.
    async fn wait(&mut self) {
        let first_end = self.asking.iter().map(|ask| ask.until).min();
        let look = Instant::now() + self.look_again.mul_f64(1.0 - 0.1 * fastrand::f64());
        let until = first_end.map_or(look, |end| end.min(look));
        tokio::select! {
            () = self.bell.wait() => {}
            () = tokio::time::sleep_until(until) => {}
            Some(ask) = self.inbox.recv() => self.asking.push_back(ask),
        }
    }
}

/// One sweep, and then the pause that keeps sweeps to their share of the time.
async fn sweep(core: Arc<Core>, filter: Filter, lanes: Vec<i64>, sweeping: Arc<tokio::sync::Mutex<()>>) {
    let _held = sweeping.lock().await;
    let begun = Instant::now();
    // While claims are never empty nobody looks around: this is when new lanes are noticed.
    let swept = match maintain::sweep_lanes(&core, &filter.namespace, &lanes).await {
        Ok(_) => core.reload(&filter.namespace).await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = swept {
        tracing::warn!(%error, namespace = filter.namespace, "the sweep for run-out leases failed; another follows");
    }
    tokio::time::sleep(begun.elapsed() * (SHARE - 1)).await;
}
