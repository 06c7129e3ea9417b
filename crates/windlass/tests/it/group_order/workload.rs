//! A random workload on four groups: publishers, workers that fail and crash, and an operator who interferes.

mod publisher;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use windlass::{Backoff, DeadLetterFilter, GroupFailurePolicy, Policy, Queue, SubscriptionSpec};

use self::publisher::Publisher;
use self::worker::Worker;
use super::history::{Event, Handling, History, Redrive, Reset, Stopwatch, Subscription, Time, micros};
use crate::bed::{Bed, Database, Kind};
use crate::own::number;
use crate::support::millis;

const NAMESPACE: &str = "ns";
const LEASE: Duration = millis_of(400);
const GROUPS: usize = 4;
const PUBLISHERS: usize = 4;
/// Of the subscription that is there from the start, and of the one that is created under way.
const WORKERS: [usize; 2] = [3, 2];
const SUBSCRIPTIONS: [&str; 2] = ["main", "late"];
/// Longer than the rest of the events takes.
const DRAINS: Duration = Duration::from_secs(25);

const fn millis_of(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub events: usize,
    /// Groups go on while an event waits for its retry.
    pub continues: bool,
    /// Workers complete the events of a run in the wrong order, and do nothing else.
    pub reverses_runs: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { events: 400, continues: false, reverses_runs: false }
    }
}

/// A delivery by the numbers of its subscription and its event, and the id of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeliveryOf {
    subscription: usize,
    event: usize,
    event_id: i64,
}

/// What all tasks share.
struct Shared {
    settings: Settings,
    database: Arc<Database>,
    /// Several on the same database, like several processes.
    queues: Vec<Queue>,
    stopwatch: Stopwatch,
    /// How many events have been given to publishers.
    events: AtomicUsize,
    transactions: AtomicUsize,
    claims: AtomicUsize,
    /// From here on, all that is claimed is completed.
    calm: AtomicBool,
    stopped: AtomicBool,
    held: Mutex<Vec<DeliveryOf>>,
    dead: Mutex<Vec<DeliveryOf>>,
}

impl Shared {
    fn now(&self) -> Time {
        self.stopwatch.now()
    }

    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::SeqCst)
    }

    fn queue(&self, rng: &mut Rng) -> &Queue {
        &self.queues[rng.usize(..self.queues.len())]
    }

    /// Whether everything that is committed is handled.
    async fn is_drained(&self) -> bool {
        let schema = if self.database.kind == Kind::Postgres { "windlass." } else { "" };
        let rows = format!(
            "SELECT (SELECT count(*) FROM {schema}event_queue WHERE namespace = '{NAMESPACE}') +
                    (SELECT count(*) FROM {schema}arrivals WHERE namespace = '{NAMESPACE}')"
        );
        number(&self.database, &rows).await == 0
    }
}

async fn pause(rng: &mut Rng, millis: std::ops::Range<u64>) {
    tokio::time::sleep(millis_of(rng.u64(millis))).await;
}

pub struct Workload {
    shared: Arc<Shared>,
    rng: Rng,
}

impl Workload {
    pub async fn start(bed: &Bed, settings: Settings, seed: u64) -> Workload {
        let group_failure = if settings.continues { GroupFailurePolicy::Continue } else { GroupFailurePolicy::Block };
        // Crashes make many attempts, and only workers decide what becomes a dead letter.
        let policy = Policy {
            lease_ms: LEASE.as_millis() as u64,
            max_retries: None,
            max_attempts: 1_000,
            backoff: Backoff::None,
            group_failure,
            ..Policy::default()
        };
        let mut queues = vec![bed.real_time().await.put_namespace(NAMESPACE, Some(policy.into()), None).await.unwrap()];
        for _ in 1..if bed.database.kind == Kind::Postgres { 3 } else { 2 } {
            queues.push(bed.real_time().await.in_namespace(NAMESPACE).unwrap());
        }
        let shared = Shared {
            settings,
            database: bed.database.clone(),
            queues,
            stopwatch: Stopwatch::start(),
            events: AtomicUsize::new(0),
            transactions: AtomicUsize::new(0),
            claims: AtomicUsize::new(0),
            calm: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            held: Mutex::default(),
            dead: Mutex::default(),
        };
        Workload { shared: Arc::new(shared), rng: Rng::with_seed(seed) }
    }

    /// Publishes and handles all events: their history.
    pub async fn run(mut self) -> History {
        let shared = self.shared.clone();
        let publishers: Vec<JoinHandle<_>> = (0..PUBLISHERS).map(|_| self.publisher()).collect();
        let mut subscriptions = vec![Subscription { creating: 0, created: 0 }];
        let mut workers = self.workers(0);
        let operator = tokio::spawn(Operator::new(shared.clone(), self.rng.fork()).run());
        while shared.events.load(Ordering::SeqCst) < shared.settings.events * 2 / 5 {
            tokio::time::sleep(millis(1)).await;
        }
        subscriptions.push(self.subscribe(SUBSCRIPTIONS[1]).await);
        workers.extend(self.workers(1));

        let mut events: BTreeMap<usize, Event> = BTreeMap::new();
        for publisher in publishers {
            events.extend(publisher.await.unwrap());
        }
        shared.calm.store(true, Ordering::SeqCst);
        let operator = operator.await.unwrap();
        let drains = Instant::now();
        while !shared.is_drained().await && drains.elapsed() < DRAINS {
            tokio::time::sleep(millis(20)).await;
        }
        shared.stopped.store(true, Ordering::SeqCst);
        let mut handlings: Vec<Handling> = Vec::new();
        for worker in workers {
            handlings.extend(worker.await.unwrap());
        }
        History {
            lease: micros(LEASE),
            continues: shared.settings.continues,
            events: events.into_values().collect(),
            subscriptions,
            handlings,
            redrives: operator.redrives,
            resets: operator.resets,
        }
    }

    /// On a thread of its own: a transaction on SQLite blocks the thread that waits for another one.
    fn publisher(&mut self) -> JoinHandle<BTreeMap<usize, Event>> {
        let publisher = Publisher::new(self.shared.clone(), self.rng.fork());
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(publisher.run()))
    }

    fn workers(&mut self, subscription: usize) -> Vec<JoinHandle<Vec<Handling>>> {
        let worker = |n| {
            let name = format!("{}-{n}", SUBSCRIPTIONS[subscription]);
            tokio::spawn(Worker::new(self.shared.clone(), self.rng.fork(), subscription, name).run())
        };
        (0..WORKERS[subscription]).map(worker).collect()
    }

    async fn subscribe(&mut self, name: &str) -> Subscription {
        let shared = self.shared.clone();
        let creating = shared.now();
        shared.queue(&mut self.rng).add_subscription(SubscriptionSpec::new(name)).await.unwrap();
        Subscription { creating, created: shared.now() }
    }
}

/// Redrives dead letters, resets events in progress, and pauses the subscription `main`.
struct Operator {
    shared: Arc<Shared>,
    rng: Rng,
    redrives: Vec<Redrive>,
    resets: Vec<Reset>,
    calls: usize,
}

impl Operator {
    fn new(shared: Arc<Shared>, rng: Rng) -> Operator {
        Operator { shared, rng, redrives: Vec::new(), resets: Vec::new(), calls: 0 }
    }

    async fn run(mut self) -> Operator {
        while !self.shared.is_calm() && !self.shared.settings.reverses_runs {
            pause(&mut self.rng, 5..40).await;
            match self.rng.usize(..8) {
                0 => self.pause_subscription().await,
                1..=4 => self.redrive().await,
                _ => self.reset().await,
            }
        }
        self
    }

    async fn pause_subscription(&mut self) {
        let shared = self.shared.clone();
        shared.queue(&mut self.rng).pause_subscription(SUBSCRIPTIONS[0]).await.unwrap();
        pause(&mut self.rng, 10..60).await;
        shared.queue(&mut self.rng).resume_subscription(SUBSCRIPTIONS[0]).await.unwrap();
    }

    async fn redrive(&mut self) {
        let shared = self.shared.clone();
        let mut letters: Vec<DeliveryOf> = {
            let mut dead = shared.dead.lock().unwrap();
            let Some(DeliveryOf { subscription, .. }) = dead.first().copied() else { return };
            let max = self.rng.usize(1..=4);
            let (mut taken, mut left) = (Vec::new(), Vec::new());
            for letter in dead.drain(..) {
                let takes = letter.subscription == subscription && taken.len() < max;
                if takes { taken.push(letter) } else { left.push(letter) }
            }
            *dead = left;
            taken
        };
        letters.sort_by_key(|letter| letter.event_id);
        let subscription = letters[0].subscription;
        let filter = DeadLetterFilter {
            event_ids: letters.iter().map(|letter| letter.event_id).collect(),
            subscription: Some(SUBSCRIPTIONS[subscription].to_owned()),
            ..DeadLetterFilter::default()
        };
        let called = shared.now();
        assert_eq!(shared.queue(&mut self.rng).redrive(filter).await, Ok(letters.len()), "{letters:?}");
        let (returned, call) = (shared.now(), self.calls);
        self.calls += 1;
        for (position, DeliveryOf { subscription, event, .. }) in letters.into_iter().enumerate() {
            self.redrives.push(Redrive { subscription, event, call, position, called, returned });
        }
    }

    async fn reset(&mut self) {
        let shared = self.shared.clone();
        let found = {
            let held = shared.held.lock().unwrap();
            // A reset of a dead letter is a redrive.
            let held: Vec<&DeliveryOf> = held.iter().filter(|held| !worker::may_die(held.event)).collect();
            self.rng.choice(held).copied()
        };
        let Some(DeliveryOf { subscription, event, event_id }) = found else { return };
        let called = shared.now();
        // It may have ended meanwhile.
        let _ = shared.queue(&mut self.rng).reset(event_id, SUBSCRIPTIONS[subscription], "by hand").await;
        self.resets.push(Reset { subscription, event, called, returned: shared.now() });
    }
}
