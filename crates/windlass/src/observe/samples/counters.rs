//! What this process has counted and not yet written. Whoever counts waits for nothing but a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::task::AbortHandle;

use super::counter::{Counter, Noted};
use super::{MINUTE_S, SampleRow, begin_of};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::wake::lock;
use crate::store::Store;

/// What was counted is written after this long.
const WRITE_AFTER: Duration = Duration::from_secs(10);
/// How many minutes are told apart while nothing can be written; older counts go to the oldest of them.
const MINUTES_MAX: usize = 5;
/// How many samples one transaction writes.
pub(super) const BATCH: usize = 500;

/// The counts of one namespace, by minute and type.
type Minutes = BTreeMap<Timestamp, HashMap<String, Counter>>;

pub(crate) struct Counters {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    /// LeasedEvent to write by who writes, and to read by who adds what is counted to what is written: nothing is on its way
    /// from the one to the other meanwhile.
    on_the_way: RwLock<()>,
}

#[derive(Default)]
struct State {
    counted: HashMap<String, Minutes>,
    /// Writes in a while. There is none while nothing was counted.
    writer: Option<AbortHandle>,
    closed: bool,
}

/// Rows on their way into the database, in batches; those left are counted again.
struct Taken<'a> {
    home: &'a Counters,
    batches: Vec<(String, Vec<SampleRow>)>,
}

impl Counters {
    pub fn new(store: Arc<dyn Store>) -> Arc<Counters> {
        Arc::new(Counters { store, state: Mutex::default(), on_the_way: RwLock::default() })
    }

    /// Counts what was committed: type, instant and what it was.
    pub fn count<'a>(self: &Arc<Self>, namespace: &str, noted: impl IntoIterator<Item = (&'a str, Timestamp, Noted)>) {
        let mut noted = noted.into_iter().peekable();
        if noted.peek().is_none() {
            return;
        }
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        with(&mut state.counted, namespace, |minutes| {
            for (event_type, at, noted) in noted {
                with_counter(minutes, at, event_type, |counter| counter.note(noted));
            }
        });
        self.write_later(&mut state);
    }

    /// Spawns what writes in a while, unless that is there.
    fn write_later(self: &Arc<Self>, state: &mut State) {
        let waits = state.writer.as_ref().is_some_and(|writer| !writer.is_finished());
        if let (false, Ok(runtime)) = (waits, Handle::try_current()) {
            state.writer = Some(runtime.spawn(write(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Until this is dropped, nothing that is counted is written.
    pub async fn settled(&self) -> RwLockReadGuard<'_, ()> {
        self.on_the_way.read().await
    }

    /// What is counted and not written, of one namespace.
    pub fn of(&self, namespace: &str) -> Vec<SampleRow> {
        lock(&self.state).counted.get(namespace).cloned().map(rows).unwrap_or_default()
    }

    /// Writes all that was counted; how many rows. What cannot be written is counted again.
    pub async fn write(&self) -> Result<usize> {
        let _alone = self.on_the_way.write().await;
        let mut taken = self.take();
        let mut written = 0;
        while let Some((namespace, rows)) = taken.batches.last() {
            self.store.add_samples(namespace, rows).await?;
            written += rows.len();
            taken.batches.pop();
        }
        Ok(written)
    }

    fn take(&self) -> Taken<'_> {
        let counted = std::mem::take(&mut lock(&self.state).counted);
        let mut batches = Vec::new();
        for (namespace, minutes) in counted {
            let rows = rows(minutes);
            batches.extend(rows.chunks(BATCH).map(|batch| (namespace.clone(), batch.to_vec())));
        }
        Taken { home: self, batches }
    }

    /// Whether another round of [`write`] is needed; if not, the next count begins one.
    fn goes_on(&self) -> bool {
        let mut state = lock(&self.state);
        let goes_on = !state.closed && !state.counted.is_empty();
        if !goes_on {
            state.writer = None;
        }
        goes_on
    }

    /// Nothing is counted any more. What was can still be written, and who is at it goes on.
    pub fn close(&self) {
        let idle = self.on_the_way.try_write();
        let mut state = lock(&self.state);
        state.closed = true;
        if let (Ok(_), Some(writer)) = (idle, state.writer.take()) {
            writer.abort();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.home.state);
        for (namespace, rows) in self.batches.drain(..) {
            with(&mut state.counted, &namespace, |minutes| {
                for row in rows {
                    with_counter(minutes, row.at, &row.event_type, |counter| counter.add(&row.counter));
                }
            });
        }
    }
}

/// Writes after a while, and again until nothing is left. It does not keep the queue alive.
async fn write(counters: Weak<Counters>) {
    loop {
        tokio::time::sleep(WRITE_AFTER).await;
        let Some(counters) = counters.upgrade() else { return };
        match counters.write().await {
            Ok(_) | Err(Error::Closed) => {}
            Err(error) => tracing::warn!(%error, "could not write samples; they are kept for the next time"),
        }
        if !counters.goes_on() {
            return;
        }
    }
}

/// Does something with the value of a key, which is copied only where it is new.
fn with<V: Default, R>(map: &mut HashMap<String, V>, key: &str, work: impl FnOnce(&mut V) -> R) -> R {
    match map.get_mut(key) {
        Some(value) => work(value),
        None => work(map.entry(key.to_owned()).or_default()),
    }
}

fn with_counter(minutes: &mut Minutes, at: Timestamp, event_type: &str, work: impl FnOnce(&mut Counter)) {
    with(minutes.entry(begin_of(at, MINUTE_S)).or_default(), event_type, work);
    while minutes.len() > MINUTES_MAX {
        fold_first(minutes);
    }
}

/// Counts the oldest minute as part of the next.
fn fold_first(minutes: &mut Minutes) {
    let (Some((_, oldest)), Some(mut next)) = (minutes.pop_first(), minutes.first_entry()) else { return };
    for (event_type, counter) in oldest {
        next.get_mut().entry(event_type).or_default().add(&counter);
    }
}

fn rows(minutes: Minutes) -> Vec<SampleRow> {
    let of_minute = |(at, types): (Timestamp, HashMap<String, Counter>)| {
        types.into_iter().map(move |(event_type, counter)| SampleRow { span_s: MINUTE_S, at, event_type, counter })
    };
    minutes.into_iter().flat_map(of_minute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_micros;

    #[test]
    fn only_so_many_minutes_are_told_apart_and_no_count_is_lost() {
        let mut minutes = Minutes::new();
        for minute in 0..20_i64 {
            let at = from_micros(minute * 60_000_000 + 1);
            with_counter(&mut minutes, at, "a", |counter| counter.note(Noted::Published));
            with_counter(&mut minutes, at, "b", |counter| counter.note(Noted::Published));
        }
        let told: Vec<(i64, u64)> =
            minutes.iter().map(|(at, types)| (at.timestamp() / 60, types["a"].published)).collect();
        assert_eq!(told, [(15, 16), (16, 1), (17, 1), (18, 1), (19, 1)]);
        let all = rows(minutes);
        assert_eq!(all.iter().map(|row| row.counter.published).sum::<u64>(), 40);
        assert!(all.iter().all(|row| row.span_s == 60 && row.at.timestamp() % 60 == 0));
    }

    #[cfg(feature = "sqlite")]
    mod writer {
        use super::*;
        use crate::event::NewEvent;
        use crate::queue::Queue;

        fn has_writer(counters: &Counters) -> bool {
            lock(&counters.state).writer.is_some()
        }

        /// Lets the writer's time come, and waits until it has ended.
        async fn written(counters: &Counters) {
            tokio::time::sleep(WRITE_AFTER).await;
            while has_writer(counters) {
                tokio::task::yield_now().await;
            }
        }

        #[tokio::test(start_paused = true)]
        async fn what_was_counted_is_written_after_a_while() {
            let queue = Queue::open("sqlite::memory:").await.unwrap();
            let counters = queue.core().counters.clone();
            // While nothing is counted nobody waits to write.
            assert!(!has_writer(&counters));
            for _ in 0..2 {
                queue.publish(NewEvent::new("t")).await.unwrap();
                assert!(has_writer(&counters));
                assert_eq!(counters.of("default").len(), 1);
                written(&counters).await;
                assert_eq!(counters.of("default"), []);
            }
            assert_eq!(queue.samples(Default::default()).await.unwrap()[0].published, 2);
        }

        #[tokio::test(start_paused = true)]
        async fn who_waits_to_write_keeps_no_queue() {
            let queue = Queue::open("sqlite::memory:").await.unwrap();
            queue.publish(NewEvent::new("t")).await.unwrap();
            let counters = Arc::downgrade(&queue.core().counters);
            assert!(has_writer(&counters.upgrade().unwrap()));
            drop(queue);
            // Those who gather calls end as soon as they notice.
            while counters.strong_count() > 0 {
                tokio::task::yield_now().await;
            }
        }

        #[tokio::test]
        async fn closing_stops_who_waits_to_write_and_nobody_who_writes() {
            for writes in [false, true] {
                let queue = Queue::open("sqlite::memory:").await.unwrap();
                let counters = queue.core().counters.clone();
                counters.count("default", [("t", from_micros(0), Noted::Published)]);
                let writer = lock(&counters.state).writer.clone().unwrap();
                let alone = counters.on_the_way.try_write().ok().filter(|_| writes);
                counters.close();
                // Whoever is stopped has ended before its turn comes again.
                tokio::task::yield_now().await;
                assert_eq!((writer.is_finished(), alone.is_some()), (!writes, writes));
            }
        }

        #[tokio::test]
        async fn what_is_given_up_on_the_way_is_counted_again() {
            let queue = Queue::open("sqlite::memory:").await.unwrap();
            let counters = queue.core().counters.clone();
            counters.count("default", [("t", from_micros(0), Noted::Published)]);
            drop(counters.take());
            assert_eq!(counters.of("default")[0].counter.published, 1);
            counters.close();
            counters.count("default", [("t", from_micros(0), Noted::Published)]);
            assert_eq!((counters.of("default")[0].counter.published, has_writer(&counters)), (1, false));
        }
    }
}
