//! Taking deliveries from a subscription, as many as there is room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::attempt;
use super::envelope::Envelope;
use super::pause::Pause;
use super::run;
use super::shared::Shared;
use crate::claim::WAIT_MAX;
use crate::error::{Error, Result};
use crate::event::delivery::Delivery;
use crate::queue::busy::InFlightGuard;
use crate::queue::outcome::HandlerResult;

/// What was handled within this much time is taken ahead: enough that fast handlers never wait for the database, and
/// nothing that slow ones would keep from other nodes.
const AHEAD: Duration = Duration::from_millis(100);
/// No more than this is taken ahead.
const AHEAD_MAX: u64 = 1_000;

/// While there is no room, it lets it be known this often that it will ask again.
const STILL_HERE: Duration = Duration::from_secs(20);

/// Claims and runs the deliveries of one subscription: those of a type pattern that has a concurrency limit, or all
/// others.
pub(super) struct Pool {
    pub node: Arc<Shared>,
    pub subscription: String,
    /// The type pattern, if the pool has a concurrency limit of its own.
    pub limited: Option<String>,
    /// The slots of that limit.
    pub slots: Option<Arc<Semaphore>>,
    /// How many may run at once.
    pub size: usize,
    pub load: Load,
}

/// How much a pool has on its hands.
#[derive(Default)]
pub(super) struct Load {
    in_hand: AtomicUsize,
    /// How many have been handled so far.
    handled: AtomicU64,
    eased: Notify,
}

/// A delivery counts as in hand until this is dropped.
pub(super) struct InHand(Arc<Pool>, #[expect(dead_code, reason = "held until the end")] InFlightGuard);

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.load.in_hand.fetch_sub(1, Ordering::AcqRel);
        self.0.load.eased.notify_one();
    }
}

/// How many were handled lately.
struct Pace {
    since: Instant,
    handled: u64,
    ahead: u64,
}

impl Pace {
    fn new() -> Pace {
        Pace { since: Instant::now(), handled: 0, ahead: 0 }
    }

    /// How many to take ahead.
    fn ahead(&mut self, handled: u64) -> usize {
        let elapsed = self.since.elapsed();
        if elapsed >= AHEAD {
            let lately = (handled - self.handled) as f64 * AHEAD.as_secs_f64() / elapsed.as_secs_f64();
            *self = Pace { since: Instant::now(), handled, ahead: (lately as u64).min(AHEAD_MAX) };
        }
        self.ahead as usize
    }
}

impl Pool {
    /// Takes and hands on, until the node stops.
    pub async fn run(self: Arc<Pool>) {
        let (mut pace, mut pause) = (Pace::new(), Pause::after_a_failed_claim());
        while let Some(room) = self.room(&mut pace).await {
            let (node, mut changed) = (&self.node, self.node.changed.subscribe());
            let taken = tokio::select! {
                biased;
                () = node.is_stopping() => return,
                _ = changed.changed() => continue,
                taken = self.take(room, WAIT_MAX) => taken,
            };
            match taken {
                // Nobody waits any more: the queue is about to be closed.
                Ok(0) if node.queue.is_hurried() => return node.is_stopping().await,
                Ok(_) => pause.reset(),
                Err(Error::Closed) => return,
                Err(error) => {
                    let (node_id, subscription) = (&*node.node_id, &self.subscription);
                    tracing::warn!(%error, node_id, subscription, "could not take events; trying again");
                    tokio::select! {
                        () = pause.wait() => {}
                        () = node.is_stopping() => return,
                    }
                }
            }
        }
    }

    /// How many deliveries there is room for, once there is some; `None` once the node stops.
    async fn room(&self, pace: &mut Pace) -> Option<usize> {
        loop {
            let freed = self.node.freed.notified();
            let ahead = pace.ahead(self.load.handled.load(Ordering::Relaxed));
            let in_hand = self.load.in_hand.load(Ordering::Acquire);
            let idle = self.size.saturating_sub(in_hand).min(self.free_slots());
            let room_ahead = ahead.saturating_sub(in_hand.saturating_sub(self.size));
            // What is taken ahead is refilled by halves: larger claims, and fewer.
            if idle > 0 || room_ahead > ahead / 2 {
                return Some((idle + room_ahead).min(self.node.queue.limits().claim_batch_max));
            }
            tokio::select! {
                () = self.load.eased.notified() => {}
                () = freed => {}
                () = tokio::time::sleep(STILL_HERE) => self.node.queue.note_worker_of(self.node.request(self)),
                () = self.node.is_stopping() => return None,
            }
        }
    }

    /// How many could start at once; other pools may have the rest.
    fn free_slots(&self) -> usize {
        let of_type = self.slots.as_ref().map_or(usize::MAX, |slots| slots.available_permits());
        of_type.min(self.node.slots.available_permits())
    }

    /// Takes up to so many, and has them handled; how many.
    pub async fn take(self: &Arc<Pool>, room: usize, wait: Duration) -> Result<usize> {
        let limits = self.node.queue.limits();
        let group_run = self.node.group_run.min(limits.claim_batch_max).min(limits.finish_batch_max);
        let request = self.node.request(self).max(room).group_run(group_run).wait(wait);
        let claimed = self.node.queue.claim(request).await?;
        let taken = claimed.len();
        self.hand_on(claimed).await?;
        Ok(taken)
    }

    /// Has deliveries handled, with what their handlers did before. Nothing may interrupt it on the way.
    async fn hand_on(self: &Arc<Pool>, claimed: Vec<Delivery>) -> Result<()> {
        // Of what was tried before, some handlers may be done.
        let mut again = Vec::new();
        for mut run in runs(claimed) {
            match run.pop() {
                Some(last) if !run.is_empty() => {
                    run.push(last);
                    self.start_run(run);
                }
                Some(delivery) if delivery.attempts <= 1 => self.start(delivery, Some(Vec::new())),
                delivery => again.extend(delivery),
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        let (pool, busy) = (self.clone(), self.node.busy.begin());
        let handing = tokio::spawn(async move {
            let handed = pool.hand_on_again(again).await;
            drop(busy);
            handed
        });
        handing.await.unwrap_or(Err(Error::Closed))
    }

    fn start(self: &Arc<Pool>, delivery: Delivery, known: Option<Vec<HandlerResult>>) {
        self.load.in_hand.fetch_add(1, Ordering::AcqRel);
        let busy = self.node.busy.begin();
        // What is spawned is moved about: it had better be small.
        let event = Envelope(Arc::new(delivery));
        tokio::spawn(attempt::attend(InHand(self.clone(), busy), event, known));
    }

    /// A run counts as one delivery in hand: its deliveries are handled one after the other.
    fn start_run(self: &Arc<Pool>, run: Vec<Delivery>) {
        self.load.in_hand.fetch_add(1, Ordering::AcqRel);
        let busy = self.node.busy.begin();
        let run = run.into_iter().map(|delivery| Envelope(Arc::new(delivery))).collect();
        tokio::spawn(run::attend_run(InHand(self.clone(), busy), run));
    }

    async fn hand_on_again(self: &Arc<Pool>, claimed: Vec<Delivery>) -> Result<()> {
        match self.node.queue.handler_results(&claimed.iter().collect::<Vec<_>>()).await {
            Ok(known) => {
                claimed.into_iter().zip(known).for_each(|(delivery, known)| self.start(delivery, Some(known)));
                Ok(())
            }
            Err(error) => {
                claimed.into_iter().for_each(|delivery| self.start(delivery, None));
                Err(error)
            }
        }
    }
}

/// Deliveries, with those of one group together: they come one after the other.
fn runs(claimed: Vec<Delivery>) -> Vec<Vec<Delivery>> {
    let mut runs: Vec<Vec<Delivery>> = Vec::with_capacity(claimed.len());
    for delivery in claimed {
        let group_id = &delivery.event.group_id;
        match runs.last_mut() {
            Some(run) if group_id.is_some() && run.first().is_some_and(|first| first.event.group_id == *group_id) => {
                run.push(delivery);
            }
            _ => runs.push(vec![delivery]),
        }
    }
    runs
}

impl InHand {
    pub fn node(&self) -> &Arc<Shared> {
        &self.0.node
    }

    /// The right to run: a slot of the type's, if it has its own, and one of the node's.
    pub async fn slots(&self) -> Option<Slots<'_>> {
        let of_type = match &self.0.slots {
            Some(slots) => Some(slots.clone().acquire_owned().await.ok()?),
            None => None,
        };
        let of_node = self.0.node.slots.clone().acquire_owned().await.ok()?;
        Some(Slots { pool: &self.0, permits: Some((of_type, of_node)) })
    }
}

/// The right to run, until it is dropped.
pub(super) struct Slots<'a> {
    pool: &'a Pool,
    permits: Option<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)>,
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        self.pool.load.handled.fetch_add(1, Ordering::Relaxed);
        self.permits.take();
        self.pool.node.freed.notify_waiters();
    }
}
