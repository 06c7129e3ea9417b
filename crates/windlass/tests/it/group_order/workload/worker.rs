//! A worker: it claims runs and completes them in order, unless it fails, dead-letters, releases or crashes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use windlass::{ClaimRequest, Delivery, Outcome, Queue, Report};

use super::{DeliveryKey, LEASE, SUBSCRIPTIONS, Shared, millis_of, pause};
use crate::group_order::history::{Attempt, AttemptEnd, AttemptResult, Time};

/// Only some events may become dead letters.
pub(super) fn may_become_dead_letter(event: usize) -> bool {
    event.is_multiple_of(4)
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    rng: Rng,
    subscription: usize,
    name: String,
    attempts: Vec<Attempt>,
}

/// A claimed delivery, and its index in the worker's attempts.
struct Claimed {
    delivery: Delivery,
    index: usize,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, rng: Rng, subscription: usize, name: String) -> Worker {
        Worker { shared, rng, subscription, name, attempts: Vec::new() }
    }

    /// Works until the test ends, and returns the attempts.
    pub async fn run(mut self) -> Vec<Attempt> {
        let shared = self.shared.clone();
        while !shared.stopped.load(Ordering::SeqCst) {
            let queue = shared.queue(&mut self.rng);
            let claimed = self.claim(queue).await;
            for run in runs(claimed) {
                if shared.settings.reverses_runs {
                    for claimed in run.iter().rev() {
                        self.finish(queue, claimed, AttemptResult::Completed).await;
                    }
                } else {
                    self.handle(queue, &run).await;
                }
            }
        }
        self.attempts
    }

    async fn claim(&mut self, queue: &Queue) -> Vec<Claimed> {
        let rng = &mut self.rng;
        let request = ClaimRequest::new(&self.name)
            .subscription(SUBSCRIPTIONS[self.subscription])
            .max(rng.usize(1..=3))
            .group_run(rng.usize(1..=8))
            .wait(millis_of(rng.u64(..80)));
        let claim_called = self.shared.now();
        let deliveries = queue.claim(request).await.unwrap();
        let claimed_at = self.shared.now();
        let claim = self.shared.claims.fetch_add(1, Ordering::SeqCst);
        let mut claimed = Vec::with_capacity(deliveries.len());
        for (position, delivery) in deliveries.into_iter().enumerate() {
            let (subscription, event) = (self.subscription, delivery.event.payload().unwrap());
            let attempt =
                Attempt { subscription, event, claim, position, claim_called, claimed: claimed_at, end: None };
            claimed.push(Claimed { delivery, index: self.attempts.len() });
            self.attempts.push(attempt);
        }
        let mut leased = self.shared.leased.lock().unwrap();
        leased.extend(claimed.iter().map(|claimed| self.key_of(claimed)));
        drop(leased);
        claimed
    }

    fn key_of(&self, claimed: &Claimed) -> DeliveryKey {
        let (subscription, event) = (self.subscription, self.attempts[claimed.index].event);
        DeliveryKey { subscription, event, event_id: claimed.delivery.event.id }
    }

    /// Handles a run in order.
    async fn handle(&mut self, queue: &Queue, run: &[Claimed]) {
        let choice = if self.shared.is_draining() { self.rng.usize(..12) } else { self.rng.usize(..20) };
        let stop = self.rng.usize(..run.len());
        match choice {
            0..=5 => return self.complete(queue, run).await,
            6..=11 => return self.finish_all(queue, run).await,
            _ => {}
        }
        if self.rng.bool() {
            self.complete(queue, &run[..stop]).await;
        } else {
            self.finish_all(queue, &run[..stop]).await;
        }
        let event = self.attempts[run[stop].index].event;
        let delay = self.rng.u64(1..60) * 1_000;
        match choice {
            12..=14 => self.stop_at(queue, run, stop, AttemptResult::Delayed(delay)).await,
            15..=16 if may_become_dead_letter(event) => self.stop_at(queue, run, stop, AttemptResult::Dead).await,
            15..=17 => self.stop_at(queue, run, stop, AttemptResult::Released).await,
            _ => self.crash(queue, &run[stop..]).await,
        }
        run.iter().for_each(|claimed| self.remove_leased(claimed));
    }

    async fn complete(&mut self, queue: &Queue, run: &[Claimed]) {
        for claimed in run {
            pause(&mut self.rng, 0..4).await;
            if self.rng.usize(..10) == 0 {
                // The check does not rely on whether the lease was extended or lost.
                queue.extend(&claimed.delivery, None).await.unwrap();
            }
            self.finish(queue, claimed, AttemptResult::Completed).await;
        }
    }

    async fn finish_all(&mut self, queue: &Queue, run: &[Claimed]) {
        pause(&mut self.rng, 0..8).await;
        let reports = run.iter().map(|claimed| ((&claimed.delivery).into(), Report::done())).collect();
        let called = self.shared.now();
        let finished = queue.finish_all(reports).await.unwrap();
        let returned = self.shared.now();
        for (claimed, finished) in run.iter().zip(finished) {
            let result = if finished.unwrap().is_lost() { AttemptResult::Lost } else { AttemptResult::Completed };
            self.record_end(claimed, AttemptEnd { called, returned, result });
        }
    }

    /// Reports a result other than completed, which releases the rest of the run. The worker may continue with it
    /// anyway.
    async fn stop_at(&mut self, queue: &Queue, run: &[Claimed], at: usize, end: AttemptResult) {
        self.finish(queue, &run[at], end).await;
        if self.rng.usize(..3) == 0 {
            self.complete(queue, &run[at + 1..]).await;
        }
    }

    /// Reports nothing, like a crashed worker. Or the worker was only slow, and reports after its lease has expired.
    async fn crash(&mut self, queue: &Queue, run: &[Claimed]) {
        if self.rng.bool() {
            tokio::time::sleep(LEASE).await;
            pause(&mut self.rng, 0..150).await;
            self.complete(queue, run).await;
        }
    }

    async fn finish(&mut self, queue: &Queue, claimed: &Claimed, end: AttemptResult) {
        let report = match end {
            AttemptResult::Completed => Report::done(),
            AttemptResult::Dead => Report::dead("x"),
            AttemptResult::Delayed(delay) => Report::new(self.delayed(delay)),
            AttemptResult::Released | AttemptResult::Lost => Report::new(Outcome::Release),
        };
        let called = self.shared.now();
        let finished = queue.finish(&claimed.delivery, report).await.unwrap();
        let result = if finished.is_lost() { AttemptResult::Lost } else { end };
        self.record_end(claimed, AttemptEnd { called, returned: self.shared.now(), result });
    }

    fn delayed(&mut self, delay: Time) -> Outcome {
        let delay = std::time::Duration::from_micros(delay);
        if self.rng.usize(..4) == 0 { Outcome::Snooze { delay } } else { Outcome::Retry { after: Some(delay) } }
    }

    fn record_end(&mut self, claimed: &Claimed, end: AttemptEnd) {
        self.attempts[claimed.index].end = Some(end);
        self.remove_leased(claimed);
        if end.result == AttemptResult::Dead {
            self.shared.dead.lock().unwrap().push(self.key_of(claimed));
        }
    }

    /// Removes the delivery from the leased ones.
    fn remove_leased(&self, claimed: &Claimed) {
        let mut leased = self.shared.leased.lock().unwrap();
        if let Some(index) = leased.iter().position(|leased| *leased == self.key_of(claimed)) {
            leased.swap_remove(index);
        }
    }
}

/// Splits the deliveries of a claim into runs of one group.
fn runs(claimed: Vec<Claimed>) -> Vec<Vec<Claimed>> {
    let mut runs: Vec<Vec<Claimed>> = Vec::new();
    for claimed in claimed {
        match runs.last_mut() {
            Some(run) if run[0].delivery.event.group_id == claimed.delivery.event.group_id => run.push(claimed),
            _ => runs.push(vec![claimed]),
        }
    }
    runs
}
