//! A publisher: publishes through the library, and in transactions that stay open, commit late or are rolled back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use windlass::NewEvent;

use super::{GROUPS, NAMESPACE, Shared, millis_of, pause};
use crate::bed::Kind;
use crate::group_order::history::{Event, Time};
use crate::own::Own;

pub(super) struct Publisher {
    shared: Arc<Shared>,
    rng: Rng,
    published: BTreeMap<usize, Event>,
}

/// An event that is to be published.
#[derive(Debug, Clone, Copy)]
struct Planned {
    number: usize,
    group: usize,
    delay_ms: u64,
    position: usize,
}

/// What is known of a transaction while it is open.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    number: usize,
    begun: Time,
}

impl Planned {
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

    /// Publishes until there are enough events: what it published.
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

    /// Draws one to three events, for as long as there are any.
    fn plan(&mut self) -> Vec<Planned> {
        let count = self.rng.usize(1..=3);
        let first = self.shared.events.fetch_add(count, Ordering::SeqCst);
        let numbers = first..(first + count).min(self.shared.settings.events);
        let group = self.rng.usize(..GROUPS);
        let plan = |(position, number)| {
            let group = if self.rng.bool() { group } else { self.rng.usize(..GROUPS) };
            let delay_ms = if self.rng.usize(..4) == 0 { self.rng.u64(50..300) } else { 0 };
            Planned { number, group, delay_ms, position }
        };
        numbers.enumerate().map(plan).collect()
    }

    fn begin(&self) -> Transaction {
        let number = self.shared.transactions.fetch_add(1, Ordering::SeqCst);
        Transaction { number, begun: self.shared.now() }
    }

    /// Notes that an event is about to be published.
    fn note(&mut self, tx: Transaction, planned: Planned) {
        let Planned { number, group, delay_ms, position } = planned;
        let (transaction, begun, delay) = (tx.number, tx.begun, delay_ms * 1_000);
        let called = self.shared.now();
        let (committing, committed) = (Time::MAX, None);
        let event = Event { group, transaction, position, delay, begun, called, committing, committed };
        self.published.insert(number, event);
    }

    fn note_end(&mut self, events: &[Planned], committing: Time, committed: Option<Time>) {
        for planned in events {
            let event = self.published.get_mut(&planned.number).unwrap();
            (event.committing, event.committed) = (committing, committed);
        }
    }

    async fn publish_all(&mut self, events: &[Planned]) {
        let tx = self.begin();
        events.iter().for_each(|planned| self.note(tx, *planned));
        let new = events.iter().map(Planned::new_event).collect();
        let committing = self.shared.now();
        let shared = self.shared.clone();
        shared.queue(&mut self.rng).publish_all(new).await.unwrap();
        self.note_end(events, committing, Some(shared.now()));
    }

    async fn publish_in(&mut self, pool: Option<&PgPool>, events: &[Planned]) {
        let shared = self.shared.clone();
        let tx = self.begin();
        let mut own = match pool {
            Some(pool) => Own::Postgres(pool.begin().await.unwrap()),
            None => Own::begin(&shared.database).await,
        };
        if pool.is_some() && self.rng.usize(..10) == 0 {
            own.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
        }
        let keeps = if self.rng.usize(..10) == 0 { self.rng.usize(..=events.len()) } else { events.len() };
        let (kept, undone) = events.split_at(keeps);
        self.publish_with(&mut own, tx, kept).await;
        if !undone.is_empty() {
            own.execute("SAVEPOINT before").await;
            self.publish_with(&mut own, tx, undone).await;
            own.execute("ROLLBACK TO before").await;
        }
        let stays_open = self.stays_open(pool.is_some());
        pause(&mut self.rng, stays_open).await;
        let committing = shared.now();
        if self.rng.usize(..7) == 0 {
            own.rollback().await;
        } else {
            own.commit().await;
            self.note_end(kept, committing, Some(shared.now()));
        }
    }

    /// For how many milliseconds a transaction stays open. On SQLite, all others wait for it.
    fn stays_open(&mut self, others_go_on: bool) -> std::ops::Range<u64> {
        // The first transactions can outlast the positions that routers remember: see `route::RECENT`.
        let is_first = self.published.len() < 8;
        match self.rng.usize(..24) {
            0 if others_go_on => 500..1_500,
            1..=6 if others_go_on && is_first => 1_500..2_500,
            0..=10 => 5..30,
            _ => 0..3,
        }
    }

    /// All in one call, or one by one.
    async fn publish_with(&mut self, own: &mut Own, tx: Transaction, events: &[Planned]) {
        let shared = self.shared.clone();
        if self.rng.bool() {
            events.iter().for_each(|planned| self.note(tx, *planned));
            let new = events.iter().map(Planned::new_event).collect();
            own.publish_all(shared.queue(&mut self.rng), new).await.unwrap();
            return;
        }
        for planned in events {
            if self.rng.bool() {
                pause(&mut self.rng, 0..8).await;
            }
            self.note(tx, *planned);
            if self.rng.bool() {
                own.publish(shared.queue(&mut self.rng), planned.new_event()).await.unwrap();
            } else {
                own.execute(&planned.insert(shared.database.kind)).await;
            }
        }
    }
}
