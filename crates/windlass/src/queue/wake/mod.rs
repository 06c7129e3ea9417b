//! Notifies the claimers, watchers and routers of this process.
//!
//! Each claimer registers a [`WakeReceiver`] with the lanes or the subscription that it claims from. A notification
//! that names lanes wakes the waiters that claim from them. A notification without lanes, or with a lane that this
//! process does not know yet, makes the namespace's [watcher](crate::claim) poll. The watcher wakes the waiters that
//! have something to claim.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::Error;
use crate::store::WatchRequest;
use crate::topology::lanes::{Lane, LaneKey};

/// A lane in which a delivery became ready, or will be ready at a known time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReadyLane {
    pub subscription_id: i64,
    pub lane_id: i64,
    /// The delivery may be ordered before deliveries that were claimed already, because it was released or its group
    /// moved on. Claimers must go back behind their positions.
    pub rewind: bool,
}

/// What a waiter claims from, which decides which notifications reach it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ClaimInterest {
    /// Nothing: the waiter is paused or has not started.
    #[default]
    Nothing,
    /// The subscription's streams: all lanes, or these, sorted.
    Subscription { subscription_id: i64, lanes: Option<Arc<[i64]>> },
    /// These lanes, sorted.
    Lanes { subscription_id: i64, lanes: Arc<[i64]> },
}

impl ClaimInterest {
    fn selects_lanes(&self) -> bool {
        !matches!(self, ClaimInterest::Subscription { lanes: None, .. })
    }

    fn includes(&self, ready: ReadyLane) -> bool {
        match self {
            ClaimInterest::Nothing => false,
            ClaimInterest::Subscription { subscription_id, lanes } => {
                *subscription_id == ready.subscription_id
                    && lanes.as_ref().is_none_or(|lanes| lanes.binary_search(&ready.lane_id).is_ok())
            }
            ClaimInterest::Lanes { lanes, .. } => lanes.binary_search(&ready.lane_id).is_ok(),
        }
    }
}

/// The waiters of this process, by namespace.
#[derive(Default)]
pub(crate) struct WakeRegistry(Mutex<HashMap<String, NamespaceWaiters>>);

#[derive(Default)]
struct NamespaceWaiters {
    waiters: BTreeMap<u64, RegisteredWaiter>,
    last_id: u64,
    /// Waiters that claim from a subscription's streams.
    by_subscription: HashMap<i64, BTreeMap<u64, Arc<WakeReceiver>>>,
    /// Waiters that claim from single lanes.
    by_lane: HashMap<i64, BTreeMap<u64, Arc<WakeReceiver>>>,
    /// The topology version and the newest lane that all waiters have been notified of.
    version: i64,
    newest_lane: i64,
    /// The ids of the lanes up to `newest_lane`.
    known_lanes: HashSet<i64>,
    watcher: WatcherState,
    router_running: bool,
    /// Notifies the router of arrivals.
    arrived: Arc<Notify>,
}

struct RegisteredWaiter {
    waiter: Arc<WakeReceiver>,
    interest: ClaimInterest,
}

#[derive(Default)]
struct WatcherState {
    running: bool,
    /// The watcher polls at this time at the latest; `None`: at its next regular poll.
    poll_by: Option<Instant>,
    /// Wakes the watcher when `poll_by` changes.
    alarm: Arc<Notify>,
}

/// Tests whether a filter selects a lane.
type LaneTest = Box<dyn Fn(&LaneKey) -> bool + Send + Sync>;

/// Receives the notifications for one claimer.
pub(crate) struct WakeReceiver {
    selects: LaneTest,
    /// The claimer waits for a notification. While it is claiming, the watcher does not poll for it.
    waiting: AtomicBool,
    reasons: Mutex<WakeReasons>,
    /// Deliveries may be ready behind the positions of the claimer.
    rewind: AtomicBool,
    /// In publish order, the watcher's polls start after this event.
    settled: AtomicI64,
    notify: Notify,
}

/// Why a waiter was notified since it last took the reasons.
#[derive(Debug, Default)]
pub(crate) struct WakeReasons {
    /// A delivery may be ready.
    pub ready: bool,
    /// The watcher has just found a ready delivery. If a claim does not find it, another worker claimed it first, and
    /// no immediate poll is needed.
    pub seen_by_watcher: bool,
    /// The topology has changed, or has new lanes that the waiter's filter selects.
    pub lanes_changed: bool,
    /// The watcher's poll failed.
    pub failed: Option<Error>,
}

/// A waiter's entry in the registry, removed when it is dropped.
pub(crate) struct Registration {
    wakes: Arc<WakeRegistry>,
    namespace: String,
    id: u64,
    pub waiter: Arc<WakeReceiver>,
}

impl WakeRegistry {
    /// Registers a waiter. `selects` tests whether its filter selects a lane.
    pub fn register(self: &Arc<Self>, namespace: &str, selects: LaneTest) -> Registration {
        let waiter = Arc::new(WakeReceiver {
            selects,
            waiting: AtomicBool::new(false),
            reasons: Mutex::default(),
            rewind: AtomicBool::new(false),
            settled: AtomicI64::new(0),
            notify: Notify::new(),
        });
        let mut all = lock(&self.0);
        let waiters = all.entry(namespace.to_owned()).or_default();
        waiters.last_id += 1;
        let id = waiters.last_id;
        waiters.waiters.insert(id, RegisteredWaiter { waiter: waiter.clone(), interest: ClaimInterest::Nothing });
        Registration { wakes: self.clone(), namespace: namespace.to_owned(), id, waiter }
    }

    /// Notifies the waiters of these lanes: deliveries are ready, or will be at a known time.
    pub fn notify(&self, namespace: &str, ready: impl IntoIterator<Item = ReadyLane>) {
        let mut all = lock(&self.0);
        let Some(waiters) = all.get_mut(namespace) else { return };
        for ready in ready {
            for waiter in waiters.waiters_of(ready) {
                waiter.rewind.fetch_or(ready.rewind, Ordering::SeqCst);
                waiter.send(|reasons| reasons.ready = true);
            }
            // This lane is new: the watcher tells the waiters that select lanes about it.
            if !waiters.known_lanes.contains(&ready.lane_id) && waiters.any_selects_lanes() {
                waiters.watcher.poll_now();
            }
        }
    }

    /// Deliveries may be ready anywhere in the namespace: makes the watcher poll.
    pub fn notify_anywhere(&self, namespace: &str) {
        if let Some(waiters) = lock(&self.0).get_mut(namespace) {
            waiters.watcher.poll_now();
        }
    }

    /// Deliveries may be ready in any namespace, and events may have arrived: makes all watchers and routers poll.
    pub fn notify_all(&self) {
        for waiters in lock(&self.0).values_mut() {
            waiters.watcher.poll_now();
            waiters.arrived.notify_one();
        }
    }

    // -- used by the router

    /// Notifies the router that events have arrived in the namespace.
    pub fn notify_router(&self, namespace: &str) {
        if let Some(waiters) = lock(&self.0).get(namespace) {
            waiters.arrived.notify_one();
        }
    }

    /// Returns `true` if no router is running. The caller then has to start one.
    pub fn begin_routing(&self, namespace: &str) -> bool {
        lock(&self.0).get_mut(namespace).is_some_and(|waiters| !std::mem::replace(&mut waiters.router_running, true))
    }

    /// The notifications of [`notify_router`](Self::notify_router).
    pub fn arrivals(&self, namespace: &str) -> Arc<Notify> {
        lock(&self.0).get(namespace).map(|waiters| waiters.arrived.clone()).unwrap_or_default()
    }

    /// Returns whether the router must go on. It ends when no waiters are left.
    pub fn continue_routing(&self, namespace: &str) -> bool {
        let mut all = lock(&self.0);
        let Some(waiters) = all.get_mut(namespace) else { return false };
        let must_continue = !waiters.waiters.is_empty();
        waiters.router_running = must_continue;
        if !must_continue && !waiters.watcher.running {
            all.remove(namespace);
        }
        must_continue
    }

    // -- used by the watcher

    /// The watcher's alarm, and by when it has to poll. `None` if no waiter is left: the watcher then ends.
    pub fn watch(&self, namespace: &str) -> Option<(Arc<Notify>, Option<Instant>)> {
        let mut all = lock(&self.0);
        let waiters = all.get_mut(namespace)?;
        if waiters.waiters.is_empty() {
            waiters.watcher.running = false;
            if !waiters.router_running {
                all.remove(namespace);
            }
            return None;
        }
        Some((waiters.watcher.alarm.clone(), waiters.watcher.poll_by))
    }

    /// What to poll for; `None` if no claim waits.
    pub fn begin_poll(&self, namespace: &str) -> Option<WatchRequest> {
        let mut all = lock(&self.0);
        let waiters = all.get_mut(namespace)?;
        if !waiters.waiters.values().any(|registered| registered.waiter.is_waiting()) {
            return None;
        }
        waiters.watcher.poll_by.take_if(|by| *by <= Instant::now());
        let first_settled = |waiters: &BTreeMap<u64, Arc<WakeReceiver>>| {
            let waiting = waiters.values().filter(|waiter| waiter.is_waiting());
            waiting.map(|waiter| waiter.settled.load(Ordering::SeqCst)).min()
        };
        let subscriptions = waiters.by_subscription.iter();
        let lanes = waiters.by_lane.iter().filter(|(_, waiters)| first_settled(waiters).is_some());
        let mut request = WatchRequest {
            subscriptions: subscriptions.filter_map(|(id, waiters)| Some((*id, first_settled(waiters)?))).collect(),
            lanes: lanes.map(|(lane_id, _)| *lane_id).collect(),
        };
        request.lanes.sort_unstable();
        Some(request)
    }

    /// Makes the watcher poll by this time.
    pub fn poll_by(&self, namespace: &str, by: Instant) {
        if let Some(waiters) = lock(&self.0).get_mut(namespace) {
            waiters.watcher.poll_by(by);
        }
    }

    /// Notifies the waiters of these subscriptions and lanes: the watcher found deliveries that can be claimed.
    pub fn notify_ready(&self, namespace: &str, subscriptions: &[i64], lanes: &[i64]) {
        let all = lock(&self.0);
        let Some(waiters) = all.get(namespace) else { return };
        let by_subscription = subscriptions.iter().filter_map(|id| waiters.by_subscription.get(id));
        let by_lane = lanes.iter().filter_map(|id| waiters.by_lane.get(id));
        for waiter in by_subscription.chain(by_lane).flat_map(BTreeMap::values) {
            waiter.send(|reasons| (reasons.ready, reasons.seen_by_watcher) = (true, true));
        }
    }

    /// Notifies all waiters of the namespace.
    pub fn notify_waiters(&self, namespace: &str) {
        let all = lock(&self.0);
        for RegisteredWaiter { waiter, .. } in
            all.get(namespace).into_iter().flat_map(|waiters| waiters.waiters.values())
        {
            waiter.send(|reasons| reasons.ready = true);
        }
    }

    /// The topology version and the newest lane that all waiters have been notified of.
    pub fn known_lanes(&self, namespace: &str) -> (i64, i64) {
        lock(&self.0).get(namespace).map_or((0, 0), |waiters| (waiters.version, waiters.newest_lane))
    }

    /// Notifies the waiters that the topology has this version, and these new lanes up to `newest_lane`.
    pub fn lanes_changed(&self, namespace: &str, version: i64, new: &[Lane], newest_lane: i64) {
        let mut all = lock(&self.0);
        let Some(waiters) = all.get_mut(namespace) else { return };
        let changed = std::mem::replace(&mut waiters.version, version) != version;
        waiters.newest_lane = if changed { newest_lane } else { newest_lane.max(waiters.newest_lane) };
        if changed {
            waiters.known_lanes.clear();
        }
        waiters.known_lanes.extend(new.iter().map(|lane| lane.lane_id));
        for RegisteredWaiter { waiter, interest } in waiters.waiters.values() {
            let selects = |lane: &Lane| (waiter.selects)(&lane.key);
            if changed || (interest.selects_lanes() && new.iter().any(selects)) {
                waiter.send(|reasons| reasons.lanes_changed = true);
            }
        }
    }

    /// The watcher's poll failed: all waiting claims get this error.
    pub fn fail(&self, namespace: &str, error: &Error) {
        let all = lock(&self.0);
        let waiting = all.get(namespace).into_iter().flat_map(|waiters| waiters.waiters.values());
        for RegisteredWaiter { waiter, .. } in waiting.filter(|registered| registered.waiter.is_waiting()) {
            waiter.send(|reasons| reasons.failed = Some(error.clone()));
        }
    }
}

impl NamespaceWaiters {
    /// The waiters that claim from this lane.
    fn waiters_of(&self, ready: ReadyLane) -> impl Iterator<Item = &Arc<WakeReceiver>> {
        let of_subscription = self.by_subscription.get(&ready.subscription_id).into_iter().flatten();
        let of_subscription = of_subscription.filter(move |(id, _)| self.waiters[id].interest.includes(ready));
        let of_lane = self.by_lane.get(&ready.lane_id).into_iter().flatten();
        of_subscription.chain(of_lane).map(|(_, waiter)| waiter)
    }

    fn any_selects_lanes(&self) -> bool {
        self.waiters.values().any(|registered| registered.interest.selects_lanes())
    }

    fn set_interest(&mut self, id: u64, interest: ClaimInterest) {
        let Some(registered) = self.waiters.get_mut(&id) else { return };
        if registered.interest == interest {
            return;
        }
        let before = std::mem::replace(&mut registered.interest, interest.clone());
        let waiter = registered.waiter.clone();
        self.remove_interest(id, &before);
        match &interest {
            ClaimInterest::Nothing => {}
            ClaimInterest::Subscription { subscription_id, .. } => {
                self.by_subscription.entry(*subscription_id).or_default().insert(id, waiter);
            }
            ClaimInterest::Lanes { lanes, .. } => {
                for lane_id in lanes.iter() {
                    self.by_lane.entry(*lane_id).or_default().insert(id, waiter.clone());
                }
            }
        }
    }

    fn remove_interest(&mut self, id: u64, interest: &ClaimInterest) {
        match interest {
            ClaimInterest::Nothing => {}
            ClaimInterest::Subscription { subscription_id, .. } => {
                remove(&mut self.by_subscription, *subscription_id, id)
            }
            ClaimInterest::Lanes { lanes, .. } => {
                lanes.iter().for_each(|lane_id| remove(&mut self.by_lane, *lane_id, id))
            }
        }
    }
}

fn remove(by_key: &mut HashMap<i64, BTreeMap<u64, Arc<WakeReceiver>>>, key: i64, id: u64) {
    if let Some(waiters) = by_key.get_mut(&key) {
        waiters.remove(&id);
        if waiters.is_empty() {
            by_key.remove(&key);
        }
    }
}

impl WatcherState {
    fn poll_now(&mut self) {
        self.poll_by(Instant::now());
    }

    fn poll_by(&mut self, by: Instant) {
        if self.poll_by.is_none_or(|before| by < before) {
            self.poll_by = Some(by);
            self.alarm.notify_one();
        }
    }
}

impl Registration {
    pub fn set_interest(&self, interest: ClaimInterest) {
        if let Some(waiters) = lock(&self.wakes.0).get_mut(&self.namespace) {
            waiters.set_interest(self.id, interest);
        }
    }

    /// Begins to wait. In publish order, the watcher's polls start after the event `settled`. `poll_now` makes the
    /// watcher poll immediately. Returns `true` if no watcher is running. The caller then has to start one.
    pub fn wait(&self, settled: i64, poll_now: bool) -> bool {
        self.waiter.settled.store(settled, Ordering::SeqCst);
        self.waiter.waiting.store(true, Ordering::SeqCst);
        let mut all = lock(&self.wakes.0);
        let Some(waiters) = all.get_mut(&self.namespace) else { return false };
        if poll_now {
            waiters.watcher.poll_now();
        }
        // The watcher may have postponed a poll because no claim waited.
        if waiters.watcher.poll_by.is_some_and(|by| by <= Instant::now()) {
            waiters.watcher.alarm.notify_one();
        }
        !std::mem::replace(&mut waiters.watcher.running, true)
    }

    /// The waiter no longer relies on the watcher.
    pub fn stop_waiting(&self) {
        self.waiter.waiting.store(false, Ordering::SeqCst);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut all = lock(&self.wakes.0);
        let Some(waiters) = all.get_mut(&self.namespace) else { return };
        if let Some(registered) = waiters.waiters.remove(&self.id) {
            waiters.remove_interest(self.id, &registered.interest);
        }
        if waiters.waiters.is_empty() && !waiters.watcher.running && !waiters.router_running {
            all.remove(&self.namespace);
        } else if waiters.waiters.is_empty() {
            // Wake the watcher and the router so that they end. The last of them removes the entry.
            waiters.watcher.alarm.notify_one();
            waiters.arrived.notify_one();
        }
    }
}

impl WakeReceiver {
    fn send(&self, add: impl FnOnce(&mut WakeReasons)) {
        add(&mut lock(&self.reasons));
        self.notify.notify_one();
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst)
    }

    /// The reasons of the notifications since the last call.
    pub fn take_reasons(&self) -> WakeReasons {
        std::mem::take(&mut lock(&self.reasons))
    }

    /// Whether deliveries became ready behind the positions of the claimer since the last call.
    pub fn take_rewind(&self) -> bool {
        self.rewind.swap(false, Ordering::SeqCst)
    }

    /// Waits for a notification. Returns immediately if one came since the last call. May return spuriously.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
