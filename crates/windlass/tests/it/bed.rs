//! What a test stands on: a database of its own, a queue on it, and a clock that it can move.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use windlass::{Clock, NamespacePolicy, Policy, Queue, TestClock, Timestamp};

use crate::postgres;
use crate::support::after;

/// Makes `sqlite::name` and `postgres::name` out of each function.
macro_rules! conformance {
    ($(async fn $name:ident($bed:ident) $body:block)*) => {
        $(async fn $name($bed: &crate::bed::Bed) $body)*

        mod sqlite {
            $(#[test] fn $name() { crate::bed::run(crate::bed::Kind::Sqlite, super::$name) })*
        }

        mod postgres {
            $(#[test] fn $name() { crate::bed::run(crate::bed::Kind::Postgres, super::$name) })*
        }
    };
}

/// Runs a test on PostgreSQL.
macro_rules! on_postgres {
    ($($(#[$note:meta])* async fn $name:ident($bed:ident) $body:block)*) => {
        $($(#[$note])* #[test] fn $name() {
            async fn test($bed: &crate::bed::Bed) $body
            crate::bed::run(crate::bed::Kind::Postgres, test)
        })*
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

/// Longer than any test takes.
const HANGS: Duration = Duration::from_secs(90);

/// Runs one test on a database of its own, which goes away also when the test fails.
pub fn run(kind: Kind, test: impl AsyncFnOnce(&Bed)) {
    let database = Arc::new(Database::new(kind, true));
    in_runtime(async || test(&Bed::new(database.clone()).await).await, &database);
}

/// The same, with all of its tasks on one thread: what is set for a thread holds for the whole test.
pub fn run_on_one_thread(kind: Kind, test: impl AsyncFnOnce(&Bed)) {
    let database = Arc::new(Database::new(kind, true));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    in_this(runtime, async || test(&Bed::new(database.clone()).await).await, &database);
}

/// The same, on a database without our schema.
pub fn run_on_empty(kind: Kind, test: impl AsyncFnOnce(&Database)) {
    let database = Database::new(kind, false);
    in_runtime(async || test(&database).await, &database);
}

fn in_runtime(test: impl AsyncFnOnce(), database: &Database) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    in_this(runtime, test, database);
}

fn in_this(runtime: Runtime, test: impl AsyncFnOnce(), database: &Database) {
    let test = async { tokio::time::timeout(HANGS, test()).await.expect("the test hangs") };
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(test)));
    // Closes the connections of whatever still runs.
    runtime.shutdown_timeout(Duration::from_secs(5));
    database.remove();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// A database of a test's own.
pub struct Database {
    pub kind: Kind,
    pub url: String,
    /// The SQLite file is in it.
    pub folder: TempDir,
    name: String,
}

impl Database {
    fn new(kind: Kind, migrated: bool) -> Database {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let (name, url) = match kind {
            Kind::Sqlite => ("windlass.db".to_owned(), format!("sqlite://{}/windlass.db", folder.path().display())),
            Kind::Postgres => {
                let name = block_on(postgres::create(migrated));
                let url = postgres::url_of(&name);
                (name, url)
            }
        };
        Database { kind, url, folder, name }
    }

    /// The SQLite file.
    pub fn file(&self) -> std::path::PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Opens a queue with the real clock.
    pub async fn open(&self) -> Queue {
        Queue::open(&self.url).await.expect("the queue opens")
    }

    /// Runs administrative SQL, in the words that both databases know.
    pub async fn execute(&self, sql: &str) {
        match self.kind {
            Kind::Sqlite => rusqlite::Connection::open(self.file()).unwrap().execute_batch(sql).unwrap(),
            Kind::Postgres => postgres::execute(&self.url, sql).await,
        }
    }

    /// The numbers that a statement selects.
    pub async fn ids(&self, sql: &str) -> Vec<i64> {
        match self.kind {
            Kind::Sqlite => {
                let connection = rusqlite::Connection::open(self.file()).unwrap();
                let mut select = connection.prepare(sql).unwrap();
                select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            }
            Kind::Postgres => {
                let lines = postgres::lines(&self.url, &format!("SELECT i::text FROM ({sql}) AS t(i)")).await;
                lines.iter().map(|line| line.parse().unwrap()).collect()
            }
        }
    }

    fn remove(&self) {
        if self.kind == Kind::Postgres {
            block_on(postgres::drop_database(&self.name));
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A queue on a database of its own, at 2025-12-24T10:30:00Z until the test moves the clock.
pub struct Bed {
    pub database: Arc<Database>,
    pub queue: Queue,
    pub hand: TestClock,
    clock: Clock,
}

impl Bed {
    async fn new(database: Arc<Database>) -> Bed {
        let (clock, hand) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
        let queue = Queue::options(&database.url).clock(clock.clone()).open().await.expect("the queue opens");
        Bed { database, queue, hand, clock }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn advance(&self, by: Duration) {
        self.hand.advance(by);
    }

    /// Lets time pass in which upkeep was done as usual: the database is not surprised at what the clock shows.
    pub async fn let_pass(&self, by: Duration) {
        self.let_pass_until(after(self.now(), by)).await;
    }

    pub async fn let_pass_until(&self, at: Timestamp) {
        self.hand.set(at);
        let schema = if self.database.kind == Kind::Postgres { "windlass." } else { "" };
        self.database.execute(&format!("DELETE FROM {schema}retention_marks WHERE walk = 'clock'")).await;
    }

    /// Another process, as far as the database can tell; it goes by the same clock.
    pub async fn other(&self) -> Queue {
        let options = Queue::options(&self.database.url).clock(self.clock.clone());
        options.open().await.expect("a second queue opens")
    }

    /// A queue with the real clock.
    pub async fn real_time(&self) -> Queue {
        self.database.open().await
    }

    /// A namespace `ns` with this policy.
    pub async fn namespace(&self, policy: Policy) -> Queue {
        self.namespace_with(policy.into()).await
    }

    pub async fn namespace_with(&self, policy: NamespacePolicy) -> Queue {
        self.queue.put_namespace("ns", Some(policy), None).await.expect("a namespace can be made")
    }
}
