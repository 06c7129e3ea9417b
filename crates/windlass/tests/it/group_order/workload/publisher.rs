//! A publisher: it publishes directly, and in transactions that stay open, commit late or are rolled back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use windlass::NewEvent;

use super::{GROUPS, NAMESPACE, Shared, millis_of, pause};
use crate::group_order::history::{Event, Time};
use crate::open_transaction::OpenTransaction;
use windlass_testkit::Kind;

pub(super) struct Publisher {
    shared: Arc<Shared>,
    rng: Rng,
    published: BTreeMap<usize, Event>,
}

/// An event that will be published.
#[derive(Debug, Clone, Copy)]
struct PlannedEvent {
    number: usize,
    group: usize,
    delay_ms: u64,
    position: usize,
}

/// An open transaction.
#[derive(Debug, Clone, Copy)]
struct TransactionStart {
    number: usize,
    begun: Time,
}

impl PlannedEvent {
    fn event_type(&self) -> &'static str {
        ["a", "b"][self.number % 2]
    }

    fn priority(&self) -> i16 {
        (self.number % 3) as i16
    }

    fn new_event(&self) -> NewEvent {
        let event = NewEvent::new(self.event_type()).payload(&self.number).unwrap().priority(self.priority());
        let event = event.group(format!("g{}", self.group));
        if self.delay_ms == 0 { event } else { event.delay(millis_of(self.delay_ms)) }
    }

    fn insert(&self, kind: Kind) -> String {
        let (outbox, delay) = match (kind, self.delay_ms) {
            (Kind::Postgres, 0) => ("windlass.outbox", "NULL".to_owned()),
            (Kind::Postgres, delay_ms) => ("windlass.outbox", format!("interval '{delay_ms} milliseconds'")),
            (Kind::Sqlite, 0) => ("outbox", "NULL".to_owned()),
            (Kind::Sqlite, delay_ms) => ("outbox", format!("{}", delay_ms as f64 / 1_000.0)),
        };
        format!(
            "INSERT INTO {outbox} (namespace, event_type, payload, group_id, priority, delay)
             VALUES ('{NAMESPACE}', '{}', '{}', 'g{}', {}, {delay})",
            self.event_type(),
            self.number,
            self.group,
            self.priority(),
        )
    }
}

impl Publisher {
    pub fn new(shared: Arc<Shared>, rng: Rng) -> Publisher {
        Publisher { shared, rng, published: BTreeMap::new() }
    }

    /// Publishes until there are enough events, and returns the published ones.
    pub async fn run(mut self) -> BTreeMap<usize, Event> {
        let pool = match self.shared.database.kind {
            Kind::Sqlite => None,
            Kind::Postgres => {
                let pool = PgPoolOptions::new().max_connections(1);
                Some(pool.connect(&self.shared.database.url).await.unwrap())
            }
        };
        loop {
            let events = self.plan();
            if events.is_empty() {
                return self.published;
            }
            match self.rng.usize(..10) {
                0..=3 => self.publish_all(&events).await,
                _ => self.publish_in(pool.as_ref(), &events).await,
            }
            let millis = if self.rng.usize(..10) < 7 { 0..5 } else { 50..200 };
            pause(&mut self.rng, millis).await;
        }
    }

    /// Plans one to three of the remaining events.
    fn plan(&mut self) -> Vec<PlannedEvent> {
        let count = self.rng.usize(1..=3);
        let first = self.shared.events.fetch_add(count, Ordering::SeqCst);
        let numbers = first..(first + count).min(self.shared.settings.events);
        let group = self.rng.usize(..GROUPS);
        let plan = |(position, number)| {
            let group = if self.rng.bool() { group } else { self.rng.usize(..GROUPS) };
            let delay_ms = if self.rng.usize(..4) == 0 { self.rng.u64(50..300) } else { 0 };
            PlannedEvent { number, group, delay_ms, position }
        };
        numbers.enumerate().map(plan).collect()
    }

    fn begin(&self) -> TransactionStart {
        let number = self.shared.transactions.fetch_add(1, Ordering::SeqCst);
        TransactionStart { number, begun: self.shared.now() }
    }

    /// Records that an event is about to be published.
    fn record(&mut self, start: TransactionStart, planned: PlannedEvent) {
        let PlannedEvent { number, group, delay_ms, position } = planned;
        let (transaction, begun, delay) = (start.number, start.begun, delay_ms * 1_000);
        let called = self.shared.now();
        let (committing, committed) = (Time::MAX, None);
        let event = Event { group, transaction, position, delay, begun, called, committing, committed };
        self.published.insert(number, event);
    }

    fn record_end(&mut self, events: &[PlannedEvent], committing: Time, committed: Option<Time>) {
        for planned in events {
            let event = self.published.get_mut(&planned.number).unwrap();
            (event.committing, event.committed) = (committing, committed);
        }
    }

    async fn publish_all(&mut self, events: &[PlannedEvent]) {
        let start = self.begin();
        events.iter().for_each(|planned| self.record(start, *planned));
        let new = events.iter().map(PlannedEvent::new_event).collect();
        let committing = self.shared.now();
        let shared = self.shared.clone();
        shared.queue(&mut self.rng).publish_all(new).await.unwrap();
        self.record_end(events, committing, Some(shared.now()));
    }

    async fn publish_in(&mut self, pool: Option<&PgPool>, events: &[PlannedEvent]) {
        let shared = self.shared.clone();
        let start = self.begin();
        let mut transaction = match pool {
            Some(pool) => OpenTransaction::Postgres(pool.begin().await.unwrap()),
            None => OpenTransaction::begin(&shared.database).await,
        };
        if pool.is_some() && self.rng.usize(..10) == 0 {
            transaction.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
        }
        let kept_count = if self.rng.usize(..10) == 0 { self.rng.usize(..=events.len()) } else { events.len() };
        let (kept, rolled_back) = events.split_at(kept_count);
        self.publish_with(&mut transaction, start, kept).await;
        if !rolled_back.is_empty() {
            transaction.execute("SAVEPOINT before").await;
            self.publish_with(&mut transaction, start, rolled_back).await;
            transaction.execute("ROLLBACK TO before").await;
        }
        let open_millis = self.open_millis(pool.is_some());
        pause(&mut self.rng, open_millis).await;
        let committing = shared.now();
        if self.rng.usize(..7) == 0 {
            transaction.rollback().await;
        } else {
            transaction.commit().await;
            self.record_end(kept, committing, Some(shared.now()));
        }
    }

    /// The range of milliseconds for which a transaction stays open. On SQLite, it blocks all other writes.
    fn open_millis(&mut self, is_concurrent: bool) -> std::ops::Range<u64> {
        // The first transactions can stay open for longer than routers look back: see `route::RECENT`.
        let is_first = self.published.len() < 8;
        match self.rng.usize(..24) {
            0 if is_concurrent => 500..1_500,
            1..=6 if is_concurrent && is_first => 1_500..2_500,
            0..=10 => 5..30,
            _ => 0..3,
        }
    }

    /// Publishes all events in one call, or one by one.
    async fn publish_with(
        &mut self,
        transaction: &mut OpenTransaction,
        start: TransactionStart,
        events: &[PlannedEvent],
    ) {
        let shared = self.shared.clone();
        if self.rng.bool() {
            events.iter().for_each(|planned| self.record(start, *planned));
            let new = events.iter().map(PlannedEvent::new_event).collect();
            transaction.publish_all(shared.queue(&mut self.rng), new).await.unwrap();
            return;
        }
        for planned in events {
            if self.rng.bool() {
                pause(&mut self.rng, 0..8).await;
            }
            self.record(start, *planned);
            if self.rng.bool() {
                transaction.publish(shared.queue(&mut self.rng), planned.new_event()).await.unwrap();
            } else {
                transaction.execute(&planned.insert(shared.database.kind)).await;
            }
        }
    }
}
