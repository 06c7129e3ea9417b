//! The counts of this process that are not written yet. Counting only takes a lock; a background task writes the
//! counts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::task::AbortHandle;

use super::counter::{CountedEvent, Counter};
use super::{MINUTE_S, SampleRow, span_start};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::queue::wake::lock;
use crate::store::Store;

/// How long after the first count the background task writes.
const WRITE_DELAY: Duration = Duration::from_secs(10);
/// How many minutes are kept apart while the database is unavailable; older counts are added to the oldest of them.
const MINUTES_MAX: usize = 5;
/// The most samples that one transaction writes.
pub(super) const BATCH: usize = 500;

/// The counts of one namespace, by minute and type.
type Minutes = BTreeMap<Timestamp, HashMap<String, Counter>>;

pub(crate) struct Counters {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    /// Held exclusively during a write, and shared while a query adds the unwritten counts to the stored ones: no
    /// count may move from one to the other meanwhile.
    write_lock: RwLock<()>,
}

#[derive(Default)]
struct State {
    counted: HashMap<String, Minutes>,
    /// The background task; `None` while nothing is counted.
    writer: Option<AbortHandle>,
    closed: bool,
}

/// Batches that are being written. When dropped, the batches that are left are counted again.
struct UnwrittenBatches<'a> {
    counters: &'a Counters,
    batches: Vec<(String, Vec<SampleRow>)>,
}

impl Counters {
    pub fn new(store: Arc<dyn Store>) -> Arc<Counters> {
        Arc::new(Counters { store, state: Mutex::default(), write_lock: RwLock::default() })
    }

    /// Counts committed changes: each has an event type, a time and what happened.
    pub fn count<'a>(
        self: &Arc<Self>,
        namespace: &str,
        events: impl IntoIterator<Item = (&'a str, Timestamp, CountedEvent)>,
    ) {
        let mut events = events.into_iter().peekable();
        if events.peek().is_none() {
            return;
        }
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        with_entry(&mut state.counted, namespace, |minutes| {
            for (event_type, at, event) in events {
                with_counter(minutes, at, event_type, |counter| counter.record(event));
            }
        });
        self.ensure_writer(&mut state);
    }

    /// Spawns the background task unless it runs already.
    fn ensure_writer(self: &Arc<Self>, state: &mut State) {
        let is_running = state.writer.as_ref().is_some_and(|writer| !writer.is_finished());
        if let (false, Ok(runtime)) = (is_running, Handle::try_current()) {
            state.writer = Some(runtime.spawn(write_periodically(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Prevents writes until the guard is dropped.
    pub async fn pause_writes(&self) -> RwLockReadGuard<'_, ()> {
        self.write_lock.read().await
    }

    /// The unwritten counts of a namespace.
    pub fn unwritten(&self, namespace: &str) -> Vec<SampleRow> {
        lock(&self.state).counted.get(namespace).cloned().map(rows).unwrap_or_default()
    }

    /// Writes all counts and returns the number of rows. Counts that cannot be written are kept.
    pub async fn write(&self) -> Result<usize> {
        let _guard = self.write_lock.write().await;
        let mut unwritten = self.take_batches();
        let mut written = 0;
        while let Some((namespace, rows)) = unwritten.batches.last() {
            self.store.add_samples(namespace, rows).await?;
            written += rows.len();
            unwritten.batches.pop();
        }
        Ok(written)
    }

    fn take_batches(&self) -> UnwrittenBatches<'_> {
        let counted = std::mem::take(&mut lock(&self.state).counted);
        let mut batches = Vec::new();
        for (namespace, minutes) in counted {
            let rows = rows(minutes);
            batches.extend(rows.chunks(BATCH).map(|batch| (namespace.clone(), batch.to_vec())));
        }
        UnwrittenBatches { counters: self, batches }
    }

    /// Whether the background task has to write again. If not, the next count starts a new task.
    fn needs_another_write(&self) -> bool {
        let mut state = lock(&self.state);
        let needs_write = !state.closed && !state.counted.is_empty();
        if !needs_write {
            state.writer = None;
        }
        needs_write
    }

    /// Stops counting. The remaining counts can still be written, and a write in progress continues.
    pub fn close(&self) {
        let idle = self.write_lock.try_write();
        let mut state = lock(&self.state);
        state.closed = true;
        if let (Ok(_), Some(writer)) = (idle, state.writer.take()) {
            writer.abort();
        }
    }
}

impl Drop for UnwrittenBatches<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.counters.state);
        for (namespace, rows) in self.batches.drain(..) {
            with_entry(&mut state.counted, &namespace, |minutes| {
                for row in rows {
                    with_counter(minutes, row.at, &row.event_type, |counter| counter.add(&row.counter));
                }
            });
        }
    }
}

/// The background task: writes after a delay, and repeats until nothing is left. It does not keep the queue alive.
async fn write_periodically(counters: Weak<Counters>) {
    loop {
        tokio::time::sleep(WRITE_DELAY).await;
        let Some(counters) = counters.upgrade() else { return };
        match counters.write().await {
            Ok(_) | Err(Error::Closed) => {}
            Err(error) => tracing::warn!(%error, "could not write samples; retrying later"),
        }
        if !counters.needs_another_write() {
            return;
        }
    }
}

/// Applies `work` to the entry of `key`, inserting it first if needed. The key is copied only for a new entry.
fn with_entry<V: Default, R>(map: &mut HashMap<String, V>, key: &str, work: impl FnOnce(&mut V) -> R) -> R {
    match map.get_mut(key) {
        Some(value) => work(value),
        None => work(map.entry(key.to_owned()).or_default()),
    }
}

fn with_counter(minutes: &mut Minutes, at: Timestamp, event_type: &str, work: impl FnOnce(&mut Counter)) {
    with_entry(minutes.entry(span_start(at, MINUTE_S)).or_default(), event_type, work);
    while minutes.len() > MINUTES_MAX {
        merge_oldest_minute(minutes);
    }
}

/// Adds the oldest minute to the next one.
fn merge_oldest_minute(minutes: &mut Minutes) {
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
    fn number_of_minutes_is_limited_without_losing_counts() {
        let mut minutes = Minutes::new();
        for minute in 0..20_i64 {
            let at = from_micros(minute * 60_000_000 + 1);
            with_counter(&mut minutes, at, "a", |counter| counter.record(CountedEvent::Published));
            with_counter(&mut minutes, at, "b", |counter| counter.record(CountedEvent::Published));
        }
        let kept: Vec<(i64, u64)> =
            minutes.iter().map(|(at, types)| (at.timestamp() / 60, types["a"].published)).collect();
        assert_eq!(kept, [(15, 16), (16, 1), (17, 1), (18, 1), (19, 1)]);
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

        /// Advances the paused clock past the delay, and waits until the background task has ended.
        async fn wait_until_written(counters: &Counters) {
            tokio::time::sleep(WRITE_DELAY).await;
            while has_writer(counters) {
                tokio::task::yield_now().await;
            }
        }

        #[tokio::test(start_paused = true)]
        async fn counts_are_written_after_a_delay() {
            let queue = Queue::open("sqlite::memory:").await.unwrap();
            let counters = queue.core().counters.clone();
            // No background task runs while nothing is counted.
            assert!(!has_writer(&counters));
            for _ in 0..2 {
                queue.publish(NewEvent::new("t")).await.unwrap();
                assert!(has_writer(&counters));
                assert_eq!(counters.unwritten("default").len(), 1);
                wait_until_written(&counters).await;
                assert_eq!(counters.unwritten("default"), []);
            }
            assert_eq!(queue.samples(Default::default()).await.unwrap()[0].published, 2);
        }

        #[tokio::test(start_paused = true)]
        async fn background_task_does_not_keep_the_queue_alive() {
            let queue = Queue::open("sqlite::memory:").await.unwrap();
            queue.publish(NewEvent::new("t")).await.unwrap();
            let counters = Arc::downgrade(&queue.core().counters);
            assert!(has_writer(&counters.upgrade().unwrap()));
            drop(queue);
            // The coalescers end as soon as they notice that the queue is gone.
            while counters.strong_count() > 0 {
                tokio::task::yield_now().await;
            }
        }

        #[tokio::test]
        async fn closing_stops_a_waiting_task_but_not_a_write() {
            for is_writing in [false, true] {
                let queue = Queue::open("sqlite::memory:").await.unwrap();
                let counters = queue.core().counters.clone();
                counters.count("default", [("t", from_micros(0), CountedEvent::Published)]);
                let writer = lock(&counters.state).writer.clone().unwrap();
                let guard = counters.write_lock.try_write().ok().filter(|_| is_writing);
                counters.close();
                // An aborted task ends before this task runs again.
                tokio::task::yield_now().await;
                assert_eq!((writer.is_finished(), guard.is_some()), (!is_writing, is_writing));
            }
        }

        #[tokio::test]
        async fn unwritten_batches_are_counted_again() {
            let queue = Queue::open("sqlite::memory:").await.unwrap();
            let counters = queue.core().counters.clone();
            counters.count("default", [("t", from_micros(0), CountedEvent::Published)]);
            drop(counters.take_batches());
            assert_eq!(counters.unwritten("default")[0].counter.published, 1);
            counters.close();
            counters.count("default", [("t", from_micros(0), CountedEvent::Published)]);
            assert_eq!((counters.unwritten("default")[0].counter.published, has_writer(&counters)), (1, false));
        }
    }
}
