//! Who waits for what, and who is told that something came.
//!
//! A bell that says in which lanes is rung for those who take from them. One that does not – something
//! may have come anywhere, or in a lane that is new here – is rung for the namespace's watcher, who
//! looks once for all and then rings for those concerned.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::claim::{Filter, Offer};
use crate::error::Error;
use crate::topology::{Edition, Topology};

/// Everyone in this process who waits for deliveries, by namespace.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<HashMap<String, Room>>);

/// Everyone who waits in one namespace.
#[derive(Default)]
struct Room {
    seats: HashMap<u64, Seat>,
    last_id: u64,
    /// Who takes from each lane.
    by_lane: BTreeMap<i64, BTreeMap<u64, Arc<Waiter>>>,
    /// The newest topology that anyone here has brought.
    known: Option<Arc<Topology>>,
    watch: Watch,
}

struct Seat {
    waiter: Arc<Waiter>,
    lanes: Vec<i64>,
    /// Of the topology that the lanes were selected from.
    edition: Option<Edition>,
}

#[derive(Default)]
struct Watch {
    /// There is a watcher.
    runs: bool,
    /// It looks at this moment at the latest; `None`: when it sees fit.
    look_by: Option<Instant>,
    alarm: Arc<Notify>,
}

/// One claimer's bell.
pub(crate) struct Waiter {
    filter: Filter,
    /// It waits and relies on being told. While it claims nobody has to look for it.
    calm: AtomicBool,
    news: Mutex<News>,
    bell: Notify,
    /// A request that publishers may serve, while it waits.
    offer: Mutex<Option<Offer>>,
}

/// What a waiter was told since it last asked.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Something may have come.
    pub rang: bool,
    /// The watcher has just seen it: if it is gone, there is no need to look again at once.
    pub seen: bool,
    /// Nobody can look for it.
    pub failed: Option<Error>,
}

/// A waiter's place among the others, for as long as it is kept.
pub(crate) struct Place {
    wakes: Arc<Wakes>,
    id: u64,
    pub waiter: Arc<Waiter>,
}

impl Wakes {
    pub fn register(self: &Arc<Self>, filter: &Filter) -> Place {
        let (calm, news, bell, offer) = (AtomicBool::new(false), Mutex::default(), Notify::new(), Mutex::default());
        let waiter = Arc::new(Waiter { filter: filter.clone(), calm, news, bell, offer });
        let seat = Seat { waiter: waiter.clone(), lanes: Vec::new(), edition: None };
        let mut rooms = lock(&self.0);
        let room = rooms.entry(filter.namespace.clone()).or_default();
        room.last_id += 1;
        let id = room.last_id;
        room.seats.insert(id, seat);
        Place { wakes: self.clone(), id, waiter }
    }

    /// Takes a request of everyone who waits for something in these lanes.
    pub fn offers(&self, namespace: &str, lanes: &[i64]) -> Vec<Offer> {
        let rooms = lock(&self.0);
        let Some(room) = rooms.get(namespace) else { return Vec::new() };
        let waiters = lanes.iter().filter_map(|lane| room.by_lane.get(lane)).flat_map(BTreeMap::values);
        // The next one is laid out when it looks up.
        waiters.filter_map(|waiter| waiter.take_offer().inspect(|_| waiter.bell.notify_one())).collect()
    }

    /// Something is ready in these lanes, or will be.
    pub fn ring(&self, namespace: &str, lanes: &[i64]) {
        let mut rooms = lock(&self.0);
        let Some(room) = rooms.get_mut(namespace) else { return };
        for lane in lanes {
            match room.by_lane.get(lane) {
                Some(waiters) => waiters.values().for_each(|waiter| waiter.ring()),
                None if room.knows(*lane) => {}
                None => room.watch.look_at_once(),
            }
        }
    }

    /// Something may be ready anywhere in the namespace.
    pub fn ring_anywhere(&self, namespace: &str) {
        if let Some(room) = lock(&self.0).get_mut(namespace) {
            room.watch.look_at_once();
        }
    }

    /// Anything may have happened anywhere.
    pub fn ring_all(&self) {
        lock(&self.0).values_mut().for_each(|room| room.watch.look_at_once());
    }

    /// The watcher's bell, and when it has to look; `None` if nobody is left to watch for: then it ends.
    pub fn watch(&self, namespace: &str) -> Option<(Arc<Notify>, Option<Instant>)> {
        let mut rooms = lock(&self.0);
        let room = rooms.get_mut(namespace)?;
        if room.seats.is_empty() {
            rooms.remove(namespace);
            return None;
        }
        Some((room.watch.alarm.clone(), room.watch.look_by))
    }

    /// The lanes of all who wait, in order; `None` if nobody does. Whatever was rung for the watcher
    /// before this is done with.
    pub fn begin_look(&self, namespace: &str) -> Option<Vec<i64>> {
        let mut rooms = lock(&self.0);
        let room = rooms.get_mut(namespace)?;
        if !room.seats.values().any(|seat| seat.waiter.is_calm()) {
            return None;
        }
        room.watch.look_by.take_if(|by| *by <= Instant::now());
        let waited_for = room.by_lane.iter().filter(|(_, waiters)| waiters.values().any(|waiter| waiter.is_calm()));
        Some(waited_for.map(|(lane, _)| *lane).collect())
    }

    /// The watcher has to look again by then.
    pub fn look_by(&self, namespace: &str, by: Instant) {
        if let Some(room) = lock(&self.0).get_mut(namespace) {
            room.watch.look_by(by);
        }
    }

    /// The watcher has seen something ready in these lanes.
    pub fn ring_seen(&self, namespace: &str, lanes: &[i64]) {
        let rooms = lock(&self.0);
        let Some(room) = rooms.get(namespace) else { return };
        let concerned = lanes.iter().filter_map(|lane| room.by_lane.get(lane)).flat_map(BTreeMap::values);
        concerned.for_each(|waiter| waiter.tell(|news| (news.rang, news.seen) = (true, true)));
    }

    /// Whether nobody here has heard of this topology.
    pub fn is_news(&self, namespace: &str, topology: &Topology) -> bool {
        lock(&self.0).get(namespace).is_some_and(|room| room.is_news(topology))
    }

    /// The topology is now this one: whoever takes from other lanes than before is told.
    pub fn tell(&self, namespace: &str, topology: &Arc<Topology>) {
        let edition = topology.edition();
        let outdated: Vec<(u64, Arc<Waiter>)> = match lock(&self.0).get_mut(namespace) {
            Some(room) => {
                room.known = Some(topology.clone());
                let outdated = room.seats.iter().filter(|(_, seat)| seat.edition != Some(edition));
                outdated.map(|(id, seat)| (*id, seat.waiter.clone())).collect()
            }
            None => return,
        };
        // Selecting takes a while where there are many; meanwhile others may ring.
        for (id, waiter) in outdated {
            let lanes = waiter.filter.lane_ids(topology);
            if let Some(room) = lock(&self.0).get_mut(namespace)
                && room.take_seat(id, lanes, edition)
            {
                waiter.ring();
            }
        }
    }

    /// Nobody can look for those who wait.
    pub fn fail(&self, namespace: &str, error: &Error) {
        let rooms = lock(&self.0);
        let seats = rooms.get(namespace).into_iter().flat_map(|room| room.seats.values());
        seats
            .filter(|seat| seat.waiter.is_calm())
            .for_each(|seat| seat.waiter.tell(|news| news.failed = Some(error.clone())));
    }
}

impl Room {
    fn knows(&self, lane: i64) -> bool {
        self.known.as_ref().is_some_and(|known| known.lane(lane).is_some())
    }

    fn is_news(&self, topology: &Topology) -> bool {
        self.known.as_ref().is_none_or(|known| known.edition() != topology.edition())
    }

    /// Whether its lanes are others than before.
    fn take_seat(&mut self, id: u64, lanes: Vec<i64>, edition: Edition) -> bool {
        let Some(seat) = self.seats.get_mut(&id) else { return false };
        seat.edition = Some(edition);
        if seat.lanes == lanes {
            return false;
        }
        for lane in &lanes {
            self.by_lane.entry(*lane).or_default().insert(id, seat.waiter.clone());
        }
        let gone = std::mem::replace(&mut seat.lanes, lanes);
        let gone = gone.into_iter().filter(|lane| seat.lanes.binary_search(lane).is_err());
        gone.for_each(|lane| forget(&mut self.by_lane, lane, id));
        true
    }

    fn leave_seat(&mut self, id: u64) {
        let Some(seat) = self.seats.remove(&id) else { return };
        seat.lanes.into_iter().for_each(|lane| forget(&mut self.by_lane, lane, id));
    }
}

fn forget(by_lane: &mut BTreeMap<i64, BTreeMap<u64, Arc<Waiter>>>, lane: i64, id: u64) {
    if let Some(waiters) = by_lane.get_mut(&lane) {
        waiters.remove(&id);
        if waiters.is_empty() {
            by_lane.remove(&lane);
        }
    }
}

impl Watch {
    fn look_at_once(&mut self) {
        self.look_by(Instant::now());
    }

    fn look_by(&mut self, by: Instant) {
        if self.look_by.is_none_or(|before| by < before) {
            self.look_by = Some(by);
            self.alarm.notify_one();
        }
    }
}

impl Place {
    /// The waiter takes from these lanes, in order, which it selected from this topology.
    pub fn set_lanes(&self, topology: &Arc<Topology>, lanes: Vec<i64>) {
        let mut rooms = lock(&self.wakes.0);
        let Some(room) = rooms.get_mut(&self.waiter.filter.namespace) else { return };
        room.take_seat(self.id, lanes, topology.edition());
        if room.is_news(topology) {
            room.known = Some(topology.clone());
            // The others have to hear of it.
            if room.seats.len() > 1 {
                room.watch.look_at_once();
            }
        }
    }

    /// The waiter waits, and relies on being told; by `look_by` something may be ready that nobody rings for.
    /// `true` if there is no watcher: the caller has to start one.
    pub fn rest(&self, look_by: Option<Instant>) -> bool {
        self.waiter.calm.store(true, Ordering::SeqCst);
        let mut rooms = lock(&self.wakes.0);
        let Some(room) = rooms.get_mut(&self.waiter.filter.namespace) else { return false };
        if let Some(by) = look_by {
            room.watch.look_by(by);
        }
        // It may have put off its look because nobody waited.
        if room.watch.look_by.is_some_and(|by| by <= Instant::now()) {
            room.watch.alarm.notify_one();
        }
        !std::mem::replace(&mut room.watch.runs, true)
    }

    /// The waiter looks for itself, or for nothing.
    pub fn rise(&self) {
        self.waiter.calm.store(false, Ordering::SeqCst);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut rooms = lock(&self.wakes.0);
        let Some(room) = rooms.get_mut(&self.waiter.filter.namespace) else { return };
        room.leave_seat(self.id);
        if room.seats.is_empty() && !room.watch.runs {
            rooms.remove(&self.waiter.filter.namespace);
        } else if room.seats.is_empty() {
            // The watcher ends, and removes the room.
            room.watch.alarm.notify_one();
        }
    }
}

impl Waiter {
    fn tell(&self, add: impl FnOnce(&mut News)) {
        add(&mut lock(&self.news));
        self.bell.notify_one();
    }

    fn ring(&self) {
        self.tell(|news| news.rang = true);
    }

    pub fn lay_out(&self, offer: Offer) {
        *lock(&self.offer) = Some(offer);
    }

    pub fn take_offer(&self) -> Option<Offer> {
        lock(&self.offer).take()
    }

    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::SeqCst)
    }

    /// What it was told since the last time.
    pub fn news(&self) -> News {
        std::mem::take(&mut lock(&self.news))
    }

    /// Until there is news; at once if there was some since the last time, and perhaps where there is none.
    pub async fn wait(&self) {
        self.bell.notified().await;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
