//! A random workload on four groups: publishers, workers that fail and crash, and an operator who redrives, resets and
//! pauses.

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
use super::history::{Attempt, Event, History, Redrive, Reset, Stopwatch, Subscription, Time, micros};
use crate::bed::Bed;
use crate::open_transaction::query_number;
use crate::support::millis;
use windlass_testkit::{Database, Kind};

const NAMESPACE: &str = "ns";
const LEASE: Duration = millis_of(400);
const GROUPS: usize = 4;
const PUBLISHERS: usize = 4;
/// The number of workers for the first subscription, and for the one that is created during the run.
const WORKERS: [usize; 2] = [3, 2];
const SUBSCRIPTIONS: [&str; 2] = ["main", "late"];
/// Longer than it takes to handle the remaining events.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

const fn millis_of(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub events: usize,
    /// Groups continue while an event waits for its retry.
    pub continues: bool,
    /// Workers complete the events of each run in reverse order, and never fail.
    pub reverses_runs: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { events: 400, continues: false, reverses_runs: false }
    }
}

/// A delivery: the numbers of its subscription and event, and the event id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeliveryKey {
    subscription: usize,
    event: usize,
    event_id: i64,
}

/// State shared by all tasks.
struct Shared {
    settings: Settings,
    database: Arc<Database>,
    /// Several queues on one database stand for several processes.
    queues: Vec<Queue>,
    stopwatch: Stopwatch,
    /// The number of events assigned to publishers.
    events: AtomicUsize,
    transactions: AtomicUsize,
    claims: AtomicUsize,
    /// Publishing has ended: workers now complete every claim.
    draining: AtomicBool,
    stopped: AtomicBool,
    leased: Mutex<Vec<DeliveryKey>>,
    dead: Mutex<Vec<DeliveryKey>>,
}

impl Shared {
    fn now(&self) -> Time {
        self.stopwatch.now()
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    fn queue(&self, rng: &mut Rng) -> &Queue {
        &self.queues[rng.usize(..self.queues.len())]
    }

    /// Whether all committed events are finished.
    async fn is_drained(&self) -> bool {
        let schema = if self.database.kind == Kind::Postgres { "windlass." } else { "" };
        let rows = format!(
            "SELECT (SELECT count(*) FROM {schema}event_queue WHERE namespace = '{NAMESPACE}') +
                    (SELECT count(*) FROM {schema}arrivals WHERE namespace = '{NAMESPACE}')"
        );
        query_number(&self.database, &rows).await == 0
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
        // Crashes cost many attempts. Only workers decide which events become dead letters.
        let policy = Policy {
            lease_ms: LEASE.as_millis() as u64,
            max_retries: None,
            max_attempts: 1_000,
            backoff: Backoff::None,
            group_failure,
            ..Policy::default()
        };
        let mut queues =
            vec![bed.real_time_queue().await.put_namespace(NAMESPACE, Some(policy.into()), None).await.unwrap()];
        for _ in 1..if bed.database.kind == Kind::Postgres { 3 } else { 2 } {
            queues.push(bed.real_time_queue().await.in_namespace(NAMESPACE).unwrap());
        }
        let shared = Shared {
            settings,
            database: bed.database.clone(),
            queues,
            stopwatch: Stopwatch::start(),
            events: AtomicUsize::new(0),
            transactions: AtomicUsize::new(0),
            claims: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            leased: Mutex::default(),
            dead: Mutex::default(),
        };
        Workload { shared: Arc::new(shared), rng: Rng::with_seed(seed) }
    }

    /// Publishes and handles all events, and returns their history.
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
        shared.draining.store(true, Ordering::SeqCst);
        let operator = operator.await.unwrap();
        let draining_since = Instant::now();
        while !shared.is_drained().await && draining_since.elapsed() < DRAIN_TIMEOUT {
            tokio::time::sleep(millis(20)).await;
        }
        shared.stopped.store(true, Ordering::SeqCst);
        let mut attempts: Vec<Attempt> = Vec::new();
        for worker in workers {
            attempts.extend(worker.await.unwrap());
        }
        History {
            lease: micros(LEASE),
            continues: shared.settings.continues,
            events: events.into_values().collect(),
            subscriptions,
            attempts,
            redrives: operator.redrives,
            resets: operator.resets,
        }
    }

    /// Runs on its own thread, because on SQLite waiting for another transaction blocks the thread.
    fn publisher(&mut self) -> JoinHandle<BTreeMap<usize, Event>> {
        let publisher = Publisher::new(self.shared.clone(), self.rng.fork());
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(publisher.run()))
    }

    fn workers(&mut self, subscription: usize) -> Vec<JoinHandle<Vec<Attempt>>> {
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

/// Redrives dead letters, resets leased events, and pauses the subscription `main`.
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
        while !self.shared.is_draining() && !self.shared.settings.reverses_runs {
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
        let mut letters: Vec<DeliveryKey> = {
            let mut dead = shared.dead.lock().unwrap();
            let Some(DeliveryKey { subscription, .. }) = dead.first().copied() else { return };
            let max = self.rng.usize(1..=4);
            let (mut selected, mut remaining) = (Vec::new(), Vec::new());
            for letter in dead.drain(..) {
                let is_selected = letter.subscription == subscription && selected.len() < max;
                if is_selected { selected.push(letter) } else { remaining.push(letter) }
            }
            *dead = remaining;
            selected
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
        for (position, DeliveryKey { subscription, event, .. }) in letters.into_iter().enumerate() {
            self.redrives.push(Redrive { subscription, event, call, position, called, returned });
        }
    }

    async fn reset(&mut self) {
        let shared = self.shared.clone();
        let found = {
            let leased = shared.leased.lock().unwrap();
            // A reset of a dead letter is a redrive.
            let leased: Vec<&DeliveryKey> =
                leased.iter().filter(|leased| !worker::may_become_dead_letter(leased.event)).collect();
            self.rng.choice(leased).copied()
        };
        let Some(DeliveryKey { subscription, event, event_id }) = found else { return };
        let called = shared.now();
        // The attempt may have ended meanwhile.
        let _ = shared.queue(&mut self.rng).reset(event_id, SUBSCRIPTIONS[subscription], "test").await;
        self.resets.push(Reset { subscription, event, called, returned: shared.now() });
    }
}
