//! One task for all claims with the same filter: it gathers them, takes for all of them with one
//! statement, and lets them wait where there is nothing to take.
//!
//! Who comes to wait while others do joins them without a statement: that there is nothing is known, and
//! should something come then the bell rings, or the [`watcher`] finds it within a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::Filter;
use super::asking::{Ask, Asking};
use super::handed::Handed;
use super::offer::{Offer, Wants};
use super::onward::Got;
use super::turns::Turns;
use super::watcher::{self, POLL, Pace, SHARE};
use crate::delivery::{Delivery, Lease};
use crate::error::{Error, Result};
use crate::maintain;
use crate::queue::Core;
use crate::store::{Claim, ClaimSlot, LaneClaim, Pick};
use crate::topology::{Edition, Topology};
use crate::wake::{Place, lock};

/// Who waits this long sees a look before it gives up, and need not claim when it comes.
const PATIENT: Duration = Duration::from_secs(2);
/// Under load, a sweep behind the claims runs this often.
const SWEEP: Duration = Duration::from_secs(1);
/// A claimer that nobody asks for this long ends.
const IDLE: Duration = Duration::from_secs(30);
/// For this long after the last one, who comes to wait finds things as it left them.
const LINGER: Duration = Duration::from_secs(5);
/// A claim is for no more than this at first; it grows while there is more to take.
const REACH_MIN: usize = 64;

/// The way to a claimer's task.
#[derive(Clone)]
pub(super) struct Claimer {
    asks: mpsc::UnboundedSender<Ask>,
    last_worker: Arc<Mutex<String>>,
}

impl Claimer {
    pub fn start(core: Arc<Core>, filter: Filter) -> Claimer {
        let (asks, inbox) = mpsc::unbounded_channel();
        let place = core.wakes.register(&filter);
        let task = Task {
            hurry: core.hurry.subscribe(),
            home: asks.downgrade(),
            core,
            filter,
            inbox,
            place,
            asking: Asking::default(),
            claim_due: true,
            seen: false,
            reach: REACH_MIN,
            lanes: Lanes::default(),
            more: false,
            sweep_from: None,
            sweeping: Arc::default(),
            pace: Pace::new(),
            look_by: None,
            calm_since: None,
        };
        tokio::spawn(task.run());
        Claimer { asks, last_worker: Arc::default() }
    }

    /// `None` if the task has ended.
    pub async fn ask(&self, worker_id: &str, max: usize, wait: Duration) -> Option<Result<Vec<Delivery>>> {
        self.note_worker(worker_id);
        let (reply, answer) = oneshot::channel();
        let slot = ClaimSlot { worker_id: worker_id.to_owned(), lease: Lease::random(), max };
        let patient = wait >= PATIENT;
        self.asks.send(Ask { slot, until: Instant::now() + wait, patient, reply }).ok()?;
        let handed = answer.await.ok()?;
        Some(handed.map(Handed::keep))
    }

    pub fn note_worker(&self, worker_id: &str) {
        let mut last = lock(&self.last_worker);
        if *last != worker_id {
            worker_id.clone_into(&mut last);
        }
    }

    /// Who asked last.
    pub fn last_worker(&self) -> String {
        lock(&self.last_worker).clone()
    }

    pub fn has_ended(&self) -> bool {
        self.asks.is_closed()
    }
}

/// The lanes that the filter selects in a topology.
#[derive(Default)]
struct Lanes {
    topology: Option<Arc<Topology>>,
    turns: Turns,
    wants: Option<Arc<Wants>>,
    /// In order.
    ids: Vec<i64>,
}

impl Lanes {
    fn edition(&self) -> Option<Edition> {
        self.topology.as_ref().map(|topology| topology.edition())
    }
}

struct Task {
    /// Nobody waits any more.
    hurry: watch::Receiver<bool>,
    core: Arc<Core>,
    filter: Filter,
    inbox: mpsc::UnboundedReceiver<Ask>,
    /// The way to this task.
    home: mpsc::WeakUnboundedSender<Ask>,
    place: Place,
    asking: Asking,
    /// A claim may find something, or somebody wants to be sure that it does not.
    claim_due: bool,
    /// The watcher has just seen what this claim is for.
    seen: bool,
    /// How many deliveries the next claim is for, at most.
    reach: usize,
    lanes: Lanes,
    /// The last claim did not ask every lane.
    more: bool,
    /// The next sweep may begin then; `None` before the first.
    sweep_from: Option<Instant>,
    /// Held by the sweep that runs beside the claims, and for a while after it.
    sweeping: Arc<tokio::sync::Mutex<()>>,
    pace: Pace,
    /// When the watcher has to look: a delivery becomes ready by itself, or nobody has made sure that there is none.
    look_by: Option<Instant>,
    /// Since when the watcher looks for this claimer.
    calm_since: Option<Instant>,
}

impl Task {
    async fn run(mut self) {
        while self.gather().await {
            self.hear();
            if self.claim_due {
                self.round().await;
            }
            if !self.claim_due {
                self.answer_ended();
                if !self.asking.is_empty() {
                    self.wait().await;
                }
            }
        }
    }

    /// Collects whoever asks; `false` once nobody does.
    async fn gather(&mut self) -> bool {
        if self.asking.is_empty() && !self.first().await {
            return false;
        }
        while let Ok(ask) = self.inbox.try_recv() {
            self.admit(ask);
        }
        true
    }

    /// Waits for the first to ask; `false` once nobody does.
    async fn first(&mut self) -> bool {
        let mut asked = Ok(None);
        if self.place.waiter.is_calm() {
            asked = tokio::time::timeout(LINGER, self.inbox.recv()).await;
            // What went wrong before it came is none of its business: it finds out for itself.
            let news = self.place.waiter.news();
            self.claim_due |= news.rang || news.failed.is_some();
        }
        if !matches!(asked, Ok(Some(_))) {
            self.place.rise();
            (self.claim_due, self.calm_since) = (true, None);
            asked = tokio::time::timeout(IDLE, self.inbox.recv()).await;
        }
        if asked.is_err() {
            self.inbox.close();
            // Asks that slipped in before the end are still served.
            asked = Ok(self.inbox.recv().await);
        }
        match asked {
            Ok(Some(ask)) => {
                self.admit(ask);
                true
            }
            _ => false,
        }
    }

    /// Under a test clock time passes without a sign: then everyone claims.
    fn admit(&mut self, ask: Ask) {
        self.claim_due |= !ask.patient || self.core.clock.overridden().is_some();
        self.asking.push(ask);
    }

    fn hear(&mut self) {
        let news = self.place.waiter.news();
        self.claim_due |= news.rang;
        self.seen = news.seen;
        if let Some(error) = news.failed {
            self.fail(&error);
        }
    }

    /// Takes for those whose turn it is.
    async fn round(&mut self) {
        let room = self.reach.min(self.core.limits.claim_batch_max);
        let batch = self.asking.take_first(room);
        if batch.is_empty() {
            return;
        }
        let _busy = self.core.busy.begin();
        // While it claims, nobody looks for it: that would move marks back.
        self.place.rise();
        let slots: Vec<ClaimSlot> = batch.iter().map(|(_, ask)| ask.slot.clone()).collect();
        let wanted: usize = slots.iter().map(|slot| slot.max).sum();
        let taken = if batch.iter().all(|(_, ask)| ask.patient) && self.core.clock.overridden().is_none() {
            self.take_at_leisure(&slots).await
        } else {
            self.take(&slots).await
        };
        match taken {
            Ok(taken) => {
                self.claim_due = taken.len() >= wanted || self.more;
                self.reach = (taken.len() * 2).max(REACH_MIN);
                self.hand_out(batch, taken);
            }
            Err(error) => {
                batch.into_iter().for_each(|(_, ask)| ask.answer(Err(error.clone())));
                self.fail(&error);
            }
        }
        self.calm_since = None;
    }

    fn fail(&mut self, error: &Error) {
        self.claim_due = true;
        self.asking.take_all().for_each(|ask| ask.answer(Err(error.clone())));
    }

    /// Takes what is ready; where that is nothing, makes sure of it.
    async fn take(&mut self, slots: &[ClaimSlot]) -> Result<Vec<Delivery>> {
        self.refresh_lanes().await?;
        self.sweep_if_due().await?;
        let mut taken = self.claim(slots).await?;
        if taken.is_empty() && self.look().await? {
            taken = self.claim(slots).await?;
        }
        Ok(taken)
    }

    /// Takes what is ready, for those who wait anyway: where that is nothing the watcher makes sure of it, at
    /// once and for everyone.
    async fn take_at_leisure(&mut self, slots: &[ClaimSlot]) -> Result<Vec<Delivery>> {
        self.refresh_lanes().await?;
        self.sweep_from.get_or_insert_with(|| Instant::now() + SWEEP);
        self.sweep_if_due().await?;
        let taken = self.claim(slots).await?;
        // What was seen and cannot be had, somebody else has, or is about to.
        self.look_by = (taken.is_empty() && !self.seen).then(Instant::now);
        Ok(taken)
    }

    /// Takes from the lanes whose turn it is; where that is nothing, from all.
    async fn claim(&mut self, slots: &[ClaimSlot]) -> Result<Vec<Delivery>> {
        self.more = false;
        let wanted = slots.iter().map(|slot| slot.max).sum();
        while self.core.clock.overridden().is_none()
            && let Some((some, pick)) = self.lanes.turns.next(wanted)
        {
            let taken = self.claim_from(some, pick, slots).await?;
            if !taken.is_empty() {
                self.more = true;
                return Ok(taken);
            }
        }
        self.claim_from(self.lanes.turns.all(), Pick::Earliest, slots).await
    }

    async fn claim_from(&mut self, lanes: Vec<LaneClaim>, pick: Pick, slots: &[ClaimSlot]) -> Result<Vec<Delivery>> {
        let Some(topology) = &self.lanes.topology else { return Ok(Vec::new()) };
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let claim = Claim {
            namespace: self.filter.namespace.clone(),
            version: topology.version,
            subscription: self.filter.subscription.clone(),
            lanes,
            pick,
            requests: slots.to_vec(),
        };
        let taken = self.core.store.claim(&claim, self.core.clock.overridden()).await?;
        self.core.count_claimed(topology, &claim.namespace, &claim.subscription, &taken);
        self.lanes.turns.note(&claim, &taken.iter().map(Got::from).collect::<Vec<_>>());
        Ok(taken)
    }

    async fn refresh_lanes(&mut self) -> Result<()> {
        let topology = self.core.topology(&self.filter.namespace).await?;
        if self.lanes.edition() == Some(topology.edition()) {
            return Ok(());
        }
        let subscription = &self.filter.subscription;
        let selected = self.filter.lanes(&topology).into_iter();
        let claims: Vec<LaneClaim> = selected
            .map(|lane| {
                let policy = topology.policy(subscription, &lane.key.event_type);
                LaneClaim {
                    lane_id: lane.lane_id,
                    priority: lane.key.priority,
                    lease: self.filter.lease.unwrap_or_else(|| policy.lease()),
                    deadline_horizon: Duration::from_millis(policy.deadline_horizon_ms),
                }
            })
            .collect();
        let ids = self.filter.lane_ids(&topology);
        self.place.set_lanes(&topology, ids.clone());
        let leases = claims.iter().map(|lane| (lane.lane_id, lane.lease)).collect();
        let wants = Arc::new(Wants { topology: topology.clone(), subscription: subscription.clone(), leases });
        self.lanes = Lanes {
            topology: Some(topology),
            turns: Turns::new(claims, self.core.store.goes_onward()),
            wants: Some(wants),
            ids,
        };
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
        // Until just now the watcher has seen to it.
        if self.calm_since.is_some_and(|since| since + 2 * POLL <= begun) {
            self.sweep_from = Some(begun + SWEEP);
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
        // Under a test clock every claim is exact, however slow the machine.
        if !self.pace.allows() && self.core.clock.overridden().is_none() {
            return Ok(false);
        }
        let (begun, namespace) = (Instant::now(), &self.filter.namespace);
        let look = self.core.store.look(namespace, &self.lanes.ids, self.core.clock.overridden()).await?;
        self.pace.note(begun);
        self.look_by = look.next_ready_in().map(|soon| begun + soon.min(POLL));
        let changed = self.lanes.edition() != Some(look.edition());
        if changed {
            self.core.reload(&self.filter.namespace).await?;
            self.refresh_lanes().await?;
        }
        let run_out = !look.run_out().is_empty();
        if run_out {
            maintain::sweep_lanes(&self.core, &self.filter.namespace, &self.lanes.ids).await?;
        }
        self.core.store.rewind(&self.lanes.ids);
        Ok(changed || run_out || !look.claimable().is_empty())
    }

    /// Gives everyone what they got; the others keep their turn.
    fn hand_out(&mut self, batch: Vec<(u64, Ask)>, taken: Vec<Delivery>) {
        let mut of_lease: HashMap<Lease, Vec<Delivery>> = HashMap::new();
        match (&batch[..], taken.first()) {
            ([_], Some(first)) => drop(of_lease.insert(first.lease, taken)),
            _ => taken.into_iter().for_each(|delivery| of_lease.entry(delivery.lease).or_default().push(delivery)),
        }
        for (turn, ask) in batch {
            match of_lease.remove(&ask.slot.lease) {
                Some(deliveries) => ask.answer(Ok(self.handed(deliveries))),
                None => self.asking.put_back(turn, ask),
            }
        }
    }

    /// Answers those who will not wait any longer.
    fn answer_ended(&mut self) {
        let ended = match *self.hurry.borrow() {
            true => self.asking.take_all().collect(),
            false => self.asking.take_ended(Instant::now()),
        };
        for ask in ended {
            ask.answer(Ok(self.handed(Vec::new())));
        }
    }

    fn handed(&self, deliveries: Vec<Delivery>) -> Handed {
        Handed { deliveries, core: self.core.clone(), topology: self.lanes.topology.clone() }
    }

    /// Until something may have come, somebody new asks, or the first one gives up.
    async fn wait(&mut self) {
        self.rest();
        let first_end = self.asking.first_end().unwrap_or_else(|| Instant::now() + POLL);
        self.lay_out();
        tokio::select! {
            () = self.place.waiter.wait() => {}
            () = tokio::time::sleep_until(first_end) => {}
            Some(ask) = self.inbox.recv() => self.admit(ask),
            () = hurried(&mut self.hurry) => {}
        }
        if let Some(Offer { turn, ask, .. }) = self.place.waiter.take_offer() {
            self.asking.put_back(turn, ask);
        }
    }

    /// Lets publishers see the one whose turn it is.
    fn lay_out(&mut self) {
        let Some(wants) = &self.lanes.wants else { return };
        if let Some((turn, ask)) = self.asking.take_first(1).pop() {
            self.place.waiter.lay_out(Offer { ask, turn, wants: wants.clone(), home: self.home.clone() });
        }
    }

    /// From here on the watcher looks for it.
    fn rest(&mut self) {
        self.calm_since.get_or_insert_with(Instant::now);
        if self.place.rest(self.look_by.take()) {
            tokio::spawn(watcher::watch(self.core.clone(), self.filter.namespace.clone()));
        }
    }
}

/// Until nobody waits any more.
async fn hurried(hurry: &mut watch::Receiver<bool>) {
    // The core has the other end, and the claimer has the core.
    let _ = hurry.wait_for(|hurry| *hurry).await;
}

/// One sweep, and then the pause that keeps sweeps to their share of the time.
async fn sweep(core: Arc<Core>, filter: Filter, lanes: Vec<i64>, sweeping: Arc<tokio::sync::Mutex<()>>) {
    let _held = sweeping.lock().await;
    let begun = Instant::now();
    // While claims are never empty nobody looks around: this is when new lanes are noticed.
    let swept = match maintain::sweep_lanes(&core, &filter.namespace, &lanes).await {
        Ok(_) => core.refresh(&filter.namespace, SWEEP).await,
        Err(error) => Err(error),
    };
    if let Err(error) = swept {
        tracing::warn!(%error, namespace = filter.namespace, "the sweep for run-out leases failed; another follows");
    }
    tokio::time::sleep(begun.elapsed() * (SHARE - 1)).await;
}
