//! A node: handlers, and all that it takes to run them reliably.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::event::names;
use crate::event::typed::EventType;
use crate::node::registry::{HEARTBEAT, NewNode};
use crate::queue::Queue;
use crate::queue::busy::InFlight;
use crate::queue::publish::Published;

mod attempt;
#[cfg(feature = "testing")]
mod by_hand;
mod context;
mod envelope;
mod error;
mod hand;
mod handler;
mod handlers;
mod pause;
mod pool;
pub(crate) mod registry;
mod result_storage;
mod run;
mod shared;
mod signal;
mod tx;
mod verdict;

#[cfg(feature = "testing")]
pub(crate) use by_hand::ByHand;
use handlers::Handlers;
use shared::Shared;

pub use context::Context;
pub use envelope::Envelope;
pub use error::{Handled, HandlerError};
pub use handler::Handler;
pub use signal::shutdown_signal;
#[cfg(feature = "postgres")]
pub use tx::PgTx;
#[cfg(feature = "sqlite")]
pub use tx::SqliteTx;

/// How many consecutive events of a group a node claims together, unless set.
const GROUP_RUN: usize = 100;
const GROUP_RUN_MAX: usize = 1_000;
/// How many events a node handles at once, unless it is told otherwise.
const CONCURRENCY: usize = 10;
/// The most it can be told.
const CONCURRENCY_MAX: usize = 10_000;
/// How long a stopping node waits for its handlers, unless it is told otherwise.
const GRACE: Duration = Duration::from_secs(20);
/// How often a node looks for upkeep of its namespace that is due.
const UPKEEP: Duration = Duration::from_secs(20);
/// How long giving back what was not finished may take.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);

/// A process that publishes and handles events: an id, handlers, and how many of them may run at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> windlass::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite://{}", folder.path().join("windlass.db").display());
/// use windlass::{NewEvent, Node, Queue};
///
/// let queue = Queue::open(&url).await?;
/// queue.publish(NewEvent::new("user.created").payload(&serde_json::json!({ "name": "Ada" }))?).await?;
///
/// # let (done, is_done) = tokio::sync::oneshot::channel::<()>();
/// # let done = std::sync::Mutex::new(Some(done));
/// # let shutdown_signal = || async { is_done.await.unwrap() };
/// Node::new(&queue, "api-1")
///     .on("user.created", move |event, _cx| {
///         # let done = done.lock().unwrap().take();
///         async move {
///             let user: serde_json::Value = event.payload()?;
///             println!("welcome, {}", user["name"]);
///             # done.unwrap().send(()).unwrap();
///             Ok(())
///         }
///     })
///     .concurrency(32)
///     .run_until(shutdown_signal())
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// All handlers of an event must have done their work for it to be completed; after a failure, only those run again
/// that have not. They run beside each other, and may run again after a crash: events are delivered at least once.
pub struct Node {
    queue: Queue,
    registration: NewNode,
    handlers: Handlers,
    /// What was wrong with what it was told; `start` says so.
    flaw: Option<Error>,
    concurrency: usize,
    /// Concurrency limits by type pattern.
    type_limits: BTreeMap<String, usize>,
    group_run: usize,
    grace: Duration,
    leave_unhandled: bool,
}

impl Node {
    /// A node of this id in the queue's namespace. Characters that an id may not have become `-`; an empty id
    /// becomes one made of host, process and a few random letters.
    pub fn new(queue: &Queue, node_id: impl AsRef<str>) -> Node {
        Node {
            queue: queue.clone(),
            registration: NewNode::new(node_id),
            handlers: Handlers::default(),
            flaw: None,
            concurrency: CONCURRENCY,
            type_limits: BTreeMap::new(),
            group_run: GROUP_RUN,
            grace: GRACE,
            leave_unhandled: false,
        }
    }

    /// Its name, for people.
    pub fn display_name(mut self, display_name: impl Into<String>) -> Node {
        self.registration = self.registration.display_name(display_name);
        self
    }

    /// What it is for, for people.
    pub fn description(mut self, description: impl Into<String>) -> Node {
        self.registration = self.registration.description(description);
        self
    }

    /// Whatever else is worth knowing of it: a JSON object, shown with the node.
    pub fn metadata<T: Serialize + ?Sized>(mut self, metadata: &T) -> Node {
        match self.registration.clone().metadata(metadata) {
            Ok(registration) => self.registration = registration,
            Err(error) => self.note(Err(error)),
        }
        self
    }

    /// Handles events of this type – an exact name, or a prefix ending in `*` – with this code.
    pub fn on<F, Fut>(self, event_type: impl Into<String>, work: F) -> Node
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::new(event_type, work))
    }

    /// Handles events of the type that `T` stands for.
    pub fn on_type<T, F, Fut>(self, work: F) -> Node
    where
        T: EventType,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::typed(work))
    }

    /// Handles events that no other handler of this node is for.
    pub fn on_others<F, Fut>(self, work: F) -> Node
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::for_others(work))
    }

    /// Handles events of this type in a PostgreSQL transaction; see [`Handler::in_pg_tx`].
    #[cfg(feature = "postgres")]
    pub fn on_in_pg_tx<F, Fut>(self, event_type: impl Into<String>, work: F) -> Node
    where
        F: Fn(Envelope, PgTx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::in_pg_tx(event_type, work))
    }

    /// Handles events of the type that `T` stands for in a PostgreSQL transaction; see [`Handler::typed_in_pg_tx`].
    #[cfg(feature = "postgres")]
    pub fn on_type_in_pg_tx<T, F, Fut>(self, work: F) -> Node
    where
        T: EventType,
        F: Fn(T, PgTx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::typed_in_pg_tx(work))
    }

    /// Handles events of this type in an SQLite transaction; see [`Handler::in_sqlite_tx`].
    #[cfg(feature = "sqlite")]
    pub fn on_in_sqlite_tx<F>(self, event_type: impl Into<String>, work: F) -> Node
    where
        F: Fn(&Envelope, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        self.handler(Handler::in_sqlite_tx(event_type, work))
    }

    /// Handles events of the type that `T` stands for in an SQLite transaction; see [`Handler::typed_in_sqlite_tx`].
    #[cfg(feature = "sqlite")]
    pub fn on_type_in_sqlite_tx<T, F>(self, work: F) -> Node
    where
        T: EventType,
        F: Fn(T, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        self.handler(Handler::typed_in_sqlite_tx(work))
    }

    /// Adds a handler with settings of its own.
    pub fn handler(mut self, handler: Handler) -> Node {
        let added = self.handlers.add(handler);
        self.note(added);
        self
    }

    /// How many events it handles at once; 10 unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Node {
        let checked = check_concurrency(concurrency);
        self.concurrency = concurrency;
        self.note(checked);
        self
    }

    /// Limits how many events of a type the node handles at once, so that a slow type leaves room for the others.
    ///
    /// The type is an exact name or a prefix ending in `*`. All types that match a prefix share one limit. If several
    /// limits match a type, only the most specific one applies: an exact name before a prefix, a longer prefix before
    /// a shorter one. Events under a limit also count towards [`Node::concurrency`].
    ///
    /// ```
    /// # async fn example(queue: &windlass::Queue) -> windlass::Result<()> {
    /// let node = windlass::Node::new(queue, "api-1")
    ///     .on("report.*", |_, _| async { Ok(()) })
    ///     .concurrency(32)
    ///     .concurrency_of("report.*", 4) // all reports together, except …
    ///     .concurrency_of("report.yearly", 1); // … yearly ones, which have a limit of their own
    /// # Ok(())
    /// # }
    /// ```
    pub fn concurrency_of(mut self, event_type: impl Into<String>, concurrency: usize) -> Node {
        let pattern = event_type.into();
        let checked = names::check_type_pattern("type", &pattern).and_then(|()| check_concurrency(concurrency));
        self.type_limits.insert(pattern, concurrency);
        self.note(checked);
        self
    }

    /// How many consecutive events of a group it claims together; 100 unless set, and 1 claims them one by one.
    ///
    /// They are still handled one after the other and in order, and count as one towards [`Node::concurrency`]. It claims
    /// the next event of a group only after those before it are completed, so a larger number handles a group faster.
    pub fn group_run(mut self, group_run: usize) -> Node {
        if group_run == 0 || group_run > GROUP_RUN_MAX {
            self.note(Err(Error::invalid("group_run", format!("must be from 1 to {GROUP_RUN_MAX}"))));
        }
        self.group_run = group_run;
        self
    }

    /// How long it waits at its end for handlers that are running; 20 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Node {
        self.grace = grace;
        self
    }

    /// Leaves events that it has no handler for to other nodes. Else it takes them, and the policy says what becomes
    /// of them: another try later, or a dead letter.
    pub fn leave_unhandled(mut self) -> Node {
        self.leave_unhandled = true;
        self
    }

    fn note(&mut self, checked: Result<()>) {
        if let Err(error) = checked {
            self.flaw.get_or_insert(error);
        }
    }

    /// Registers the node without handling events, for tests that do so step by step.
    #[cfg(feature = "testing")]
    pub(crate) async fn start_by_hand(self) -> Result<ByHand> {
        Ok(ByHand::new(self.register().await?))
    }

    /// Registers the node and begins to handle events. What was wrong with its settings is said here.
    pub async fn start(self) -> Result<RunningNode> {
        let grace = self.grace;
        let running = RunningNode { shared: self.register().await?, grace };
        running.shared.consume();
        tokio::spawn(beat(running.shared.clone()));
        tokio::spawn(keep(running.shared.clone()));
        tokio::spawn(maintain(running.shared.clone()));
        Ok(running)
    }

    async fn register(self) -> Result<Arc<Shared>> {
        if let Some(flaw) = self.flaw {
            return Err(flaw);
        }
        for handler in self.handlers.all() {
            check_handler(&self.queue, &handler).await?;
        }
        let registration = self.registration.event_types(self.handlers.patterns(None));
        let registered = self.queue.register_node(registration.clone()).await?;
        let type_limits = self.type_limits.into_iter().map(|(pattern, n)| (pattern, (n, Arc::new(Semaphore::new(n)))));
        Ok(Arc::new(Shared {
            queue: self.queue,
            registration: registration.node_id(&registered.node_id),
            node_id: registered.node_id.into(),
            handlers: self.handlers,
            leave_unhandled: self.leave_unhandled,
            hand: Default::default(),
            concurrency: self.concurrency,
            slots: Arc::new(Semaphore::new(self.concurrency)),
            group_run: self.group_run,
            freed: Default::default(),
            type_limits: type_limits.collect(),
            pools: Mutex::default(),
            stopping: watch::Sender::new(false),
            abandoned: watch::Sender::new(false),
            changed: watch::Sender::new(()),
            busy: InFlight::new(),
        }))
    }

    /// Runs the node until `stop` is ready, then stops it as [`RunningNode::stop`] does. With
    /// [`shutdown_signal`] that is when the process is asked to end.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<()> {
        // Asked first: a signal that comes while it starts is heard, too.
        let mut stop = pin!(stop);
        let running = tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            running = self.start() => running?,
        };
        stop.await;
        running.stop().await;
        Ok(())
    }
}

fn check_concurrency(concurrency: usize) -> Result<()> {
    if concurrency == 0 || concurrency > CONCURRENCY_MAX {
        return Err(Error::invalid("concurrency", format!("must be from 1 to {CONCURRENCY_MAX}")));
    }
    Ok(())
}

async fn check_handler(queue: &Queue, handler: &Handler) -> Result<()> {
    tx::check(queue, handler)?;
    queue.topology_with(&handler.subscription).await.map(drop)
}

/// A node at work. Dropped, it gives back what it holds; [`RunningNode::stop`] lets its handlers finish first.
///
/// ```
/// use windlass::{Node, Queue};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> windlass::Result<()> {
/// let queue = Queue::open("sqlite::memory:").await?;
/// let node = Node::new(&queue, "api-1").on("user.created", |_, _| async { Ok(()) }).start().await?;
///
/// // Handlers may be added, and events published in its name, while it runs.
/// node.on("user.deleted", |_, _| async { Ok(()) }).await?;
/// node.emit("user.created", &"Ada").await?;
///
/// node.stop().await;
/// queue.close().await;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it gives back what it holds"]
pub struct RunningNode {
    shared: Arc<Shared>,
    grace: Duration,
}

impl RunningNode {
    /// The id that it goes by.
    pub fn node_id(&self) -> &str {
        &self.shared.node_id
    }

    /// Adds a handler, and begins to consume what it is for. See [`RunningNode::on`].
    pub async fn handler(&self, handler: Handler) -> Result<()> {
        check_handler(&self.shared.queue, &handler).await?;
        self.shared.handlers.add(handler)?;
        self.shared.changed.send_replace(());
        self.shared.consume();
        if let Err(error) = self.shared.register().await {
            tracing::warn!(%error, node_id = self.node_id(), "could not make the new handler known");
        }
        Ok(())
    }

    /// Adds a handler for events of this type – an exact name, or a prefix ending in `*` – and begins to consume them.
    ///
    /// What came before it was added and waits still gets to it, unless this or another node has taken it as
    /// [unhandled](crate::UnhandledPolicy) meanwhile. There is no way to take a handler away again but to stop the node.
    pub async fn on<F, Fut>(&self, event_type: impl Into<String>, work: F) -> Result<()>
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::new(event_type, work)).await
    }

    /// Publishes an event with this node as its producer.
    pub async fn publish(&self, event: NewEvent) -> Result<Published> {
        self.shared.producer().publish(event).await
    }

    /// Publishes an event of this type and payload; its id.
    pub async fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        self.shared.producer().emit(event_type, payload).await
    }

    /// Stops: takes no more events, waits for the handlers that run, at most for the grace time, and gives back what is
    /// not finished by then, so that other nodes have it at once. The queue stays open.
    pub async fn stop(self) {
        let shared = &self.shared;
        shared.stopping.send_replace(true);
        if tokio::time::timeout(self.grace, shared.busy.idle()).await.is_err() {
            tracing::warn!(node_id = &*shared.node_id, grace = ?self.grace, "handlers did not end in time; giving up on them");
            shared.abandoned.send_replace(true);
            if tokio::time::timeout(GIVE_BACK_MAX, shared.busy.idle()).await.is_err() {
                tracing::warn!(node_id = &*shared.node_id, "could not give back all events; their leases run out");
            }
        }
        // A claim that was under way is given back, too.
        let _ = tokio::time::timeout(GIVE_BACK_MAX, shared.queue.core().busy.idle()).await;
        if let Err(error) = shared.queue.stop_node(&shared.node_id).await {
            tracing::warn!(%error, node_id = &*shared.node_id, "could not note that the node stopped");
        }
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        self.shared.stopping.send_replace(true);
        self.shared.abandoned.send_replace(true);
    }
}

impl Shared {
    /// Starts what the handlers need and is not there yet.
    fn consume(self: &Arc<Shared>) {
        for pool in self.new_pools() {
            // What is on its way to a pool is in hand, too.
            let busy = self.busy.begin();
            tokio::spawn(async move {
                pool.run().await;
                drop(busy);
            });
        }
    }
}

/// Says that the node is alive, until it stops.
async fn beat(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT) => {}
            () = shared.is_stopping() => return,
        }
        let told = match shared.queue.touch_node(&shared.node_id).await {
            // One that was silent for long is forgotten.
            Ok(false) => shared.register().await,
            told => told.map(drop),
        };
        if let Err(error) = told {
            tracing::warn!(%error, node_id = &*shared.node_id, "could not say that the node is alive");
        }
    }
}

/// Does the upkeep of the namespace, so that a program needs no server for it.
async fn maintain(shared: Arc<Shared>) {
    tokio::select! {
        () = shared.queue.maintain(UPKEEP) => {}
        () = shared.is_stopping() => {}
    }
}

/// Renews leases for as long as there may be some.
async fn keep(shared: Arc<Shared>) {
    let ended = async {
        shared.is_stopping().await;
        shared.busy.idle().await;
    };
    tokio::select! {
        () = shared.hand.keep(&shared.queue) => {}
        () = ended => {}
    }
}
