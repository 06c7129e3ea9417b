//! The waiting claimers of this process, and how they are notified.
//!
//! Each claimer registers a [`WakeReceiver`] with the lanes or the subscription that it claims from. A notification that names
//! lanes wakes the waiters that claim from them. One that does not, or that names a lane this process does not know yet,
//! goes to the namespace's watcher, which looks once for all waiters and wakes those that have something to claim.

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
    /// It may have become ready before others that were claimed already: it was released, or freed by its group.
    pub rewind: bool,
}

/// What a waiter claims from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ClaimInterest {
    /// Nothing: it is paused, or has not begun.
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
    waiters: BTreeMap<u64, Registered>,
    last_id: u64,
    /// Waiters that claim from a subscription's streams.
    by_subscription: HashMap<i64, BTreeMap<u64, Arc<WakeReceiver>>>,
    /// Waiters that claim from single lanes.
    by_lane: HashMap<i64, BTreeMap<u64, Arc<WakeReceiver>>>,
    /// The version and the newest lane that all waiters have been notified of.
    version: i64,
    newest_lane: i64,
    /// The ids of the lanes up to that one.
    known_lanes: HashSet<i64>,
    watch: Watch,
    /// A router is running.
    routes: bool,
    /// Events have arrived.
    arrived: Arc<Notify>,
}

struct Registered {
    waiter: Arc<WakeReceiver>,
    interest: ClaimInterest,
}

#[derive(Default)]
struct Watch {
    /// A watcher is running.
    runs: bool,
    /// The watcher looks at this time at the latest; `None`: at its next poll.
    look_by: Option<Instant>,
    alarm: Arc<Notify>,
}

/// Tests whether a filter selects a lane.
type LaneTest = Box<dyn Fn(&LaneKey) -> bool + Send + Sync>;

/// One claimer's end of the notifications.
pub(crate) struct WakeReceiver {
    selects: LaneTest,
    /// It waits for a notification. While it claims, the watcher need not look for it.
    waiting: AtomicBool,
    news: Mutex<WakeReasons>,
    /// Deliveries may be ready behind the positions of the claimer.
    rewind: AtomicBool,
    /// In publish order, the watcher need not look at or before this event.
    settled: AtomicI64,
    notify: Notify,
}

/// What a waiter was notified of since it last asked.
#[derive(Debug, Default)]
pub(crate) struct WakeReasons {
    /// Something may be ready.
    pub ready: bool,
    /// The watcher has just seen it. If it is gone, another worker claimed it: there is no need to look again at once.
    pub seen_by_watcher: bool,
    /// The namespace has another version, or new lanes that the waiter's filter selects.
    pub lanes_changed: bool,
    /// The watcher cannot look.
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
    /// Registers a waiter whose filter selects lanes by this test.
    pub fn register(self: &Arc<Self>, namespace: &str, selects: LaneTest) -> Registration {
        let waiter = Arc::new(WakeReceiver {
            selects,
            waiting: AtomicBool::new(false),
            news: Mutex::default(),
            rewind: AtomicBool::new(false),
            settled: AtomicI64::new(0),
            notify: Notify::new(),
        });
        let mut all = lock(&self.0);
        let waiters = all.entry(namespace.to_owned()).or_default();
        waiters.last_id += 1;
        let id = waiters.last_id;
        waiters.waiters.insert(id, Registered { waiter: waiter.clone(), interest: ClaimInterest::Nothing });
        Registration { wakes: self.clone(), namespace: namespace.to_owned(), id, waiter }
    }

    /// Deliveries became ready in these lanes, or will.
    pub fn notify(&self, namespace: &str, ready: impl IntoIterator<Item = ReadyLane>) {
        let mut all = lock(&self.0);
        let Some(waiters) = all.get_mut(namespace) else { return };
        for ready in ready {
            for waiter in waiters.concerned(ready) {
                waiter.rewind.fetch_or(ready.rewind, Ordering::SeqCst);
                waiter.send(|news| news.ready = true);
            }
            // Waiters that select lanes do not know this one yet.
            if !waiters.known_lanes.contains(&ready.lane_id) && waiters.any_selects_lanes() {
                waiters.watch.look_now();
            }
        }
    }

    /// Deliveries may be ready anywhere in the namespace.
    pub fn notify_anywhere(&self, namespace: &str) {
        if let Some(waiters) = lock(&self.0).get_mut(namespace) {
            waiters.watch.look_now();
        }
    }

    /// Deliveries may be ready anywhere, and events may have arrived.
    pub fn notify_all(&self) {
        for waiters in lock(&self.0).values_mut() {
            waiters.watch.look_now();
            waiters.arrived.notify_one();
        }
    }

    // -- for the router

    /// Events have arrived in the namespace.
    pub fn notify_router(&self, namespace: &str) {
        if let Some(waiters) = lock(&self.0).get(namespace) {
            waiters.arrived.notify_one();
        }
    }

    /// `true` if no router is running: the caller has to start one.
    pub fn begin_routing(&self, namespace: &str) -> bool {
        lock(&self.0).get_mut(namespace).is_some_and(|waiters| !std::mem::replace(&mut waiters.routes, true))
    }

    /// Notifies the router that events have arrived.
    pub fn arrivals(&self, namespace: &str) -> Arc<Notify> {
        lock(&self.0).get(namespace).map(|waiters| waiters.arrived.clone()).unwrap_or_default()
    }

    /// Whether there are waiters left. If not, the router ends.
    pub fn goes_on_routing(&self, namespace: &str) -> bool {
        let mut all = lock(&self.0);
        let Some(waiters) = all.get_mut(namespace) else { return false };
        waiters.routes = !waiters.waiters.is_empty();
        let goes_on = waiters.routes;
        if !goes_on && !waiters.watch.runs {
            all.remove(namespace);
        }
        goes_on
    }

    // -- for the watcher

    /// The watcher's alarm, and when it has to look. `None` if no waiter is left: then the watcher ends.
    pub fn watch(&self, namespace: &str) -> Option<(Arc<Notify>, Option<Instant>)> {
        let mut all = lock(&self.0);
        let waiters = all.get_mut(namespace)?;
        if waiters.waiters.is_empty() {
            waiters.watch.runs = false;
            if !waiters.routes {
                all.remove(namespace);
            }
            return None;
        }
        Some((waiters.watch.alarm.clone(), waiters.watch.look_by))
    }

    /// What to look for; `None` if no claim waits.
    pub fn begin_look(&self, namespace: &str) -> Option<WatchRequest> {
        let mut all = lock(&self.0);
        let waiters = all.get_mut(namespace)?;
        if !waiters.waiters.values().any(|registered| registered.waiter.is_waiting()) {
            return None;
        }
        waiters.watch.look_by.take_if(|by| *by <= Instant::now());
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

    /// The watcher has to look again by then.
    pub fn look_by(&self, namespace: &str, by: Instant) {
        if let Some(waiters) = lock(&self.0).get_mut(namespace) {
            waiters.watch.look_by(by);
        }
    }

    /// The watcher has seen deliveries that can be claimed.
    pub fn notify_seen(&self, namespace: &str, subscriptions: &[i64], lanes: &[i64]) {
        let all = lock(&self.0);
        let Some(waiters) = all.get(namespace) else { return };
        let by_subscription = subscriptions.iter().filter_map(|id| waiters.by_subscription.get(id));
        let by_lane = lanes.iter().filter_map(|id| waiters.by_lane.get(id));
        for waiter in by_subscription.chain(by_lane).flat_map(BTreeMap::values) {
            waiter.send(|news| (news.ready, news.seen_by_watcher) = (true, true));
        }
    }

    /// All waiters of the namespace have to claim.
    pub fn notify_waiters(&self, namespace: &str) {
        let all = lock(&self.0);
        for Registered { waiter, .. } in all.get(namespace).into_iter().flat_map(|waiters| waiters.waiters.values()) {
            waiter.send(|news| news.ready = true);
        }
    }

    /// The version and the newest lane that all waiters have been notified of.
    pub fn known_lanes(&self, namespace: &str) -> (i64, i64) {
        lock(&self.0).get(namespace).map_or((0, 0), |waiters| (waiters.version, waiters.newest_lane))
    }

    /// The namespace has this version and these new lanes, up to `newest_lane`.
    pub fn lanes_changed(&self, namespace: &str, version: i64, new: &[Lane], newest_lane: i64) {
        let mut all = lock(&self.0);
        let Some(waiters) = all.get_mut(namespace) else { return };
        let changed = std::mem::replace(&mut waiters.version, version) != version;
        waiters.newest_lane = if changed { newest_lane } else { newest_lane.max(waiters.newest_lane) };
        if changed {
            waiters.known_lanes.clear();
        }
        waiters.known_lanes.extend(new.iter().map(|lane| lane.lane_id));
        for Registered { waiter, interest } in waiters.waiters.values() {
            let selects = |lane: &Lane| (waiter.selects)(&lane.key);
            if changed || (interest.selects_lanes() && new.iter().any(selects)) {
                waiter.send(|news| news.lanes_changed = true);
            }
        }
    }

    /// The watcher's look failed: all waiting claims get this error.
    pub fn fail(&self, namespace: &str, error: &Error) {
        let all = lock(&self.0);
        let waiting = all.get(namespace).into_iter().flat_map(|waiters| waiters.waiters.values());
        for Registered { waiter, .. } in waiting.filter(|registered| registered.waiter.is_waiting()) {
            waiter.send(|news| news.failed = Some(error.clone()));
        }
    }
}

impl NamespaceWaiters {
    /// The waiters that may claim from this lane.
    fn concerned(&self, ready: ReadyLane) -> impl Iterator<Item = &Arc<WakeReceiver>> {
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
        self.forget(id, &before);
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

    fn forget(&mut self, id: u64, interest: &ClaimInterest) {
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

impl Watch {
    fn look_now(&mut self) {
        self.look_by(Instant::now());
    }

    fn look_by(&mut self, by: Instant) {
        if self.look_by.is_none_or(|before| by < before) {
            self.look_by = Some(by);
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

    /// The waiter begins to wait. In publish order, the watcher looks after the event `settled` only. `look_now`: it has to
    /// look at once. `true` if no watcher is running: the caller has to start one.
    pub fn wait(&self, settled: i64, look_now: bool) -> bool {
        self.waiter.settled.store(settled, Ordering::SeqCst);
        self.waiter.waiting.store(true, Ordering::SeqCst);
        let mut all = lock(&self.wakes.0);
        let Some(waiters) = all.get_mut(&self.namespace) else { return false };
        if look_now {
            waiters.watch.look_now();
        }
        // The watcher may have put off a look because no claim waited.
        if waiters.watch.look_by.is_some_and(|by| by <= Instant::now()) {
            waiters.watch.alarm.notify_one();
        }
        !std::mem::replace(&mut waiters.watch.runs, true)
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
            waiters.forget(self.id, &registered.interest);
        }
        if waiters.waiters.is_empty() && !waiters.watch.runs && !waiters.routes {
            all.remove(&self.namespace);
        } else if waiters.waiters.is_empty() {
            // The watcher and the router end. The last of them removes the entry.
            waiters.watch.alarm.notify_one();
            waiters.arrived.notify_one();
        }
    }
}

impl WakeReceiver {
    fn send(&self, add: impl FnOnce(&mut WakeReasons)) {
        add(&mut lock(&self.news));
        self.notify.notify_one();
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst)
    }

    /// What it was notified of since the last call.
    pub fn news(&self) -> WakeReasons {
        std::mem::take(&mut lock(&self.news))
    }

    /// Whether deliveries became ready behind the positions of the claimer since the last call.
    pub fn take_rewind(&self) -> bool {
        self.rewind.swap(false, Ordering::SeqCst)
    }

    /// Waits for a notification. Returns at once if there was one since the last call, and may return without one.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
