//! A worker: claims runs and completes them in order, unless it fails, gives up or crashes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use windlass::{ClaimRequest, Delivery, Outcome, Queue, Report};

use super::{DeliveryOf, LEASE, SUBSCRIPTIONS, Shared, millis_of, pause};
use crate::group_order::history::{End, Ended, Handling, Time};

/// Only some events are ever given up.
pub(super) fn may_die(event: usize) -> bool {
    event.is_multiple_of(4)
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    rng: Rng,
    subscription: usize,
    name: String,
    handlings: Vec<Handling>,
}

/// A claimed delivery, and its place in the worker's handlings.
struct Claimed {
    delivery: Delivery,
    at: usize,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, rng: Rng, subscription: usize, name: String) -> Worker {
        Worker { shared, rng, subscription, name, handlings: Vec::new() }
    }

    /// Works until the test ends: what it handled.
    pub async fn run(mut self) -> Vec<Handling> {
        let shared = self.shared.clone();
        while !shared.stopped.load(Ordering::SeqCst) {
            let queue = shared.queue(&mut self.rng);
            let claimed = self.claim(queue).await;
            for run in runs(claimed) {
                if shared.settings.reverses_runs {
                    for claimed in run.iter().rev() {
                        self.finish(queue, claimed, Ended::Completed).await;
                    }
                } else {
                    self.handle(queue, &run).await;
                }
            }
        }
        self.handlings
    }

    async fn claim(&mut self, queue: &Queue) -> Vec<Claimed> {
        let rng = &mut self.rng;
        let request = ClaimRequest::new(&self.name)
            .subscription(SUBSCRIPTIONS[self.subscription])
            .max(rng.usize(1..=3))
            .group_run(rng.usize(1..=8))
            .wait(millis_of(rng.u64(..80)));
        let asked = self.shared.now();
        let deliveries = queue.claim(request).await.unwrap();
        let claimed_at = self.shared.now();
        let claim = self.shared.claims.fetch_add(1, Ordering::SeqCst);
        let mut claimed = Vec::with_capacity(deliveries.len());
        for (position, delivery) in deliveries.into_iter().enumerate() {
            let (subscription, event) = (self.subscription, delivery.event.payload().unwrap());
            let handling = Handling { subscription, event, claim, position, asked, claimed: claimed_at, end: None };
            claimed.push(Claimed { delivery, at: self.handlings.len() });
            self.handlings.push(handling);
        }
        let mut held = self.shared.held.lock().unwrap();
        held.extend(claimed.iter().map(|claimed| self.delivery_of(claimed)));
        drop(held);
        claimed
    }

    fn delivery_of(&self, claimed: &Claimed) -> DeliveryOf {
        let (subscription, event) = (self.subscription, self.handlings[claimed.at].event);
        DeliveryOf { subscription, event, event_id: claimed.delivery.event.id }
    }

    /// Handles a run in order.
    async fn handle(&mut self, queue: &Queue, run: &[Claimed]) {
        let choice = if self.shared.is_calm() { self.rng.usize(..12) } else { self.rng.usize(..20) };
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
        let event = self.handlings[run[stop].at].event;
        let delay = self.rng.u64(1..60) * 1_000;
        match choice {
            12..=14 => self.stop_at(queue, run, stop, Ended::Delayed(delay)).await,
            15..=16 if may_die(event) => self.stop_at(queue, run, stop, Ended::Dead).await,
            15..=17 => self.stop_at(queue, run, stop, Ended::Released).await,
            _ => self.crash(queue, &run[stop..]).await,
        }
        run.iter().for_each(|claimed| self.forget(claimed));
    }

    async fn complete(&mut self, queue: &Queue, run: &[Claimed]) {
        for claimed in run {
            pause(&mut self.rng, 0..4).await;
            if self.rng.usize(..10) == 0 {
                // It may have been lost, or not: the check does not count on it.
                queue.extend(&claimed.delivery, None).await.unwrap();
            }
            self.finish(queue, claimed, Ended::Completed).await;
        }
    }

    async fn finish_all(&mut self, queue: &Queue, run: &[Claimed]) {
        pause(&mut self.rng, 0..8).await;
        let reports = run.iter().map(|claimed| ((&claimed.delivery).into(), Report::done())).collect();
        let called = self.shared.now();
        let finished = queue.finish_all(reports).await.unwrap();
        let returned = self.shared.now();
        for (claimed, finished) in run.iter().zip(finished) {
            let result = if finished.unwrap().is_lost() { Ended::Lost } else { Ended::Completed };
            self.note_end(claimed, End { called, returned, result });
        }
    }

    /// Reports something else than a completion, which releases the rest of the run. Perhaps the worker goes on regardless.
    async fn stop_at(&mut self, queue: &Queue, run: &[Claimed], at: usize, end: Ended) {
        self.finish(queue, &run[at], end).await;
        if self.rng.usize(..3) == 0 {
            self.complete(queue, &run[at + 1..]).await;
        }
    }

    /// Reports nothing, as if the worker had crashed. Perhaps it was only slow, and reports when its lease has expired.
    async fn crash(&mut self, queue: &Queue, run: &[Claimed]) {
        if self.rng.bool() {
            tokio::time::sleep(LEASE).await;
            pause(&mut self.rng, 0..150).await;
            self.complete(queue, run).await;
        }
    }

    async fn finish(&mut self, queue: &Queue, claimed: &Claimed, end: Ended) {
        let report = match end {
            Ended::Completed => Report::done(),
            Ended::Dead => Report::dead("x"),
            Ended::Delayed(delay) => Report::new(self.delayed(delay)),
            Ended::Released | Ended::Lost => Report::new(Outcome::Release),
        };
        let called = self.shared.now();
        let finished = queue.finish(&claimed.delivery, report).await.unwrap();
        let result = if finished.is_lost() { Ended::Lost } else { end };
        self.note_end(claimed, End { called, returned: self.shared.now(), result });
    }

    fn delayed(&mut self, delay: Time) -> Outcome {
        let delay = std::time::Duration::from_micros(delay);
        if self.rng.usize(..4) == 0 { Outcome::Snooze { delay } } else { Outcome::Retry { after: Some(delay) } }
    }

    fn note_end(&mut self, claimed: &Claimed, end: End) {
        self.handlings[claimed.at].end = Some(end);
        self.forget(claimed);
        if end.result == Ended::Dead {
            self.shared.dead.lock().unwrap().push(self.delivery_of(claimed));
        }
    }

    /// Notes that the worker no longer deals with the delivery.
    fn forget(&self, claimed: &Claimed) {
        let mut held = self.shared.held.lock().unwrap();
        if let Some(at) = held.iter().position(|held| *held == self.delivery_of(claimed)) {
            held.swap_remove(at);
        }
    }
}

/// The deliveries of a claim, by runs: those of one group.
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
