//! Test fixture: a temporary database, a queue on it, and a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use windlass::{Clock, NamespacePolicy, Policy, Queue, TestClock, Timestamp};
use windlass_testkit::{Database, Kind, run_on_two_threads};

use crate::support::after;

/// Generates the tests `sqlite::name` and `postgres::name` from each function.
macro_rules! conformance {
    ($(async fn $name:ident($bed:ident) $body:block)*) => {
        $(async fn $name($bed: &crate::bed::Bed) $body)*

        mod sqlite {
            $(#[test] fn $name() { crate::bed::run(windlass_testkit::Kind::Sqlite, super::$name) })*
        }

        mod postgres {
            $(#[test] fn $name() { crate::bed::run(windlass_testkit::Kind::Postgres, super::$name) })*
        }
    };
}

/// Generates tests that run on PostgreSQL only.
macro_rules! on_postgres {
    ($($(#[$attribute:meta])* async fn $name:ident($bed:ident) $body:block)*) => {
        $($(#[$attribute])* #[test] fn $name() {
            async fn test($bed: &crate::bed::Bed) $body
            crate::bed::run(windlass_testkit::Kind::Postgres, test)
        })*
    };
}

/// Runs a test on a temporary database.
pub fn run(kind: Kind, test: impl AsyncFnOnce(&Bed)) {
    let database = Arc::new(Database::migrated(kind));
    run_on_two_threads(async || test(&Bed::new(database.clone()).await).await);
}

/// Like [`run`], with all tasks on one thread, so that thread-local state covers the whole test.
pub fn run_on_one_thread(kind: Kind, test: impl AsyncFnOnce(&Bed)) {
    let database = Arc::new(Database::migrated(kind));
    windlass_testkit::run_on_one_thread(async || test(&Bed::new(database.clone()).await).await);
}

/// Like [`run`], on a database without the Windlass schema.
pub fn run_on_empty(kind: Kind, test: impl AsyncFnOnce(&Database)) {
    let database = Database::empty(kind);
    run_on_two_threads(async || test(&database).await);
}

/// A queue on a temporary database. Its clock stands at 2025-12-24T10:30:00Z until the test moves it.
pub struct Bed {
    pub database: Arc<Database>,
    pub queue: Queue,
    pub test_clock: TestClock,
    clock: Clock,
}

impl Bed {
    async fn new(database: Arc<Database>) -> Bed {
        let (clock, test_clock) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
        let queue = Queue::options(&database.url).clock(clock.clone()).open().await.expect("the queue opens");
        Bed { database, queue, test_clock, clock }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn advance(&self, by: Duration) {
        self.test_clock.advance(by);
    }

    /// Advances the clock as if maintenance had run meanwhile, so that it does not count as a clock jump.
    pub async fn advance_without_jump(&self, by: Duration) {
        self.advance_to_without_jump(after(self.now(), by)).await;
    }

    pub async fn advance_to_without_jump(&self, at: Timestamp) {
        self.test_clock.set(at);
        let schema = if self.database.kind == Kind::Postgres { "windlass." } else { "" };
        self.database.execute(&format!("DELETE FROM {schema}retention_marks WHERE walk = 'clock'")).await;
    }

    /// Opens a second queue with its own connections and the same clock. It stands for another process.
    pub async fn second_queue(&self) -> Queue {
        let options = Queue::options(&self.database.url).clock(self.clock.clone());
        options.open().await.expect("a second queue opens")
    }

    /// Opens a queue with the real clock.
    pub async fn real_time_queue(&self) -> Queue {
        self.database.open().await
    }

    /// Creates the namespace `ns` with this policy.
    pub async fn namespace(&self, policy: Policy) -> Queue {
        self.namespace_with(policy.into()).await
    }

    pub async fn namespace_with(&self, policy: NamespacePolicy) -> Queue {
        self.queue.put_namespace("ns", Some(policy), None).await.expect("the namespace can be created")
    }
}
