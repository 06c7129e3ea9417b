//! What the workers have done so far, counted where all tasks can see it.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::protocol::{Payload, Result};

/// Workers that finish nothing for so long have failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a handler ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Succeed,
    Fail,
}

#[derive(Debug)]
pub struct Board {
    epoch: Instant,
    finished: AtomicU64,
    /// `changed` is told when `finished` gets here.
    target: AtomicU64,
    changed: Notify,
    /// So many of 100 events fail once.
    fail_percent: AtomicU64,
    failed: Mutex<HashSet<u64>>,
    /// Delays are noted for events from this number on.
    timed_from: AtomicU64,
    delays: Mutex<Vec<u64>>,
    problem: Mutex<Option<String>>,
}

impl Board {
    pub fn new() -> Self {
        Self {
            epoch: Instant::now(),
            finished: AtomicU64::new(0),
            target: AtomicU64::new(u64::MAX),
            changed: Notify::new(),
            fail_percent: AtomicU64::new(0),
            failed: Mutex::default(),
            timed_from: AtomicU64::new(u64::MAX),
            delays: Mutex::default(),
            problem: Mutex::default(),
        }
    }

    pub fn micros(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }

    /// The handler: every peer calls it once for each event it was given.
    pub fn handle(&self, event: &Payload) -> Outcome {
        if event.n >= self.timed_from.load(SeqCst) {
            lock(&self.delays).push(self.micros().saturating_sub(event.at));
        }
        let fails = event.n % 100 < self.fail_percent.load(SeqCst) && lock(&self.failed).insert(event.n);
        if fails { Outcome::Fail } else { Outcome::Succeed }
    }

    /// Some events were finished: recorded as such, or handled where a peer does not tell its user more.
    pub fn finish(&self, count: u64) {
        let before = self.finished.fetch_add(count, SeqCst);
        let target = self.target.load(SeqCst);
        if before < target && before + count >= target {
            self.changed.notify_one();
        }
    }

    /// A worker cannot go on.
    pub fn fail(&self, problem: impl Display) {
        lock(&self.problem).get_or_insert(problem.to_string());
        self.changed.notify_one();
    }

    pub fn finished(&self) -> u64 {
        self.finished.load(SeqCst)
    }

    pub fn fail_once(&self, percent: u64) {
        self.fail_percent.store(percent, SeqCst);
        lock(&self.failed).clear();
    }

    pub fn time_from(&self, n: u64) {
        self.timed_from.store(n, SeqCst);
    }

    /// Waits for as many delays; events that are not timed may be handled in between.
    pub async fn wait_for_delays(&self, count: usize) -> Result<Vec<u64>> {
        let start = Instant::now();
        while lock(&self.delays).len() < count {
            self.check()?;
            if start.elapsed() > PATIENCE {
                return Err(format!("of {count} events only {} were handled", lock(&self.delays).len()).into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(std::mem::take(&mut *lock(&self.delays)))
    }

    /// Waits until `count` are finished since the start.
    pub async fn wait_until(&self, count: u64) -> Result<()> {
        self.target.store(count, SeqCst);
        while self.check()? < count {
            let before = self.finished();
            let told = timeout(PATIENCE, self.changed.notified()).await.is_ok();
            if !told && self.finished() == before {
                return Err(format!("{before} of {count} finished, and no more for {PATIENCE:?}").into());
            }
        }
        Ok(())
    }

    /// How many are finished, unless a worker has failed.
    pub fn check(&self) -> Result<u64> {
        match lock(&self.problem).clone() {
            Some(problem) => Err(problem.into()),
            None => Ok(self.finished()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_of_a_hundred_fail_and_only_once() {
        let board = Board::new();
        board.fail_once(10);
        let fails = |n| board.handle(&Payload::new(0, n, 0)) == Outcome::Fail;
        assert_eq!((0..1000).filter(|n| fails(*n)).count(), 100);
        assert_eq!((0..1000).filter(|n| fails(*n)).count(), 0);
    }

    #[tokio::test]
    async fn a_failed_worker_ends_the_wait() {
        let board = Board::new();
        board.finish(3);
        assert!(board.wait_until(3).await.is_ok());
        board.fail("lost the connection");
        assert!(board.wait_until(4).await.is_err_and(|error| error.to_string() == "lost the connection"));
    }

    #[tokio::test]
    async fn only_timed_events_leave_a_delay() {
        let board = Board::new();
        board.time_from(5);
        board.handle(&Payload::new(board.micros(), 4, 0));
        board.handle(&Payload::new(0, 5, 0));
        let delays = board.wait_for_delays(1).await;
        assert!(delays.is_ok_and(|delays| delays.len() == 1));
    }
}
