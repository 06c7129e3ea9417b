//! Nodes: processes that claim deliveries and run handlers in Rust.
//!
//! [`Node`] collects handlers and settings and starts a [`RunningNode`]. `pool` claims deliveries, `attempt` runs
//! the handlers of one delivery, `report` decides its outcome, and `leases` renews the leases meanwhile. The claim and
//! finish operations themselves are in `claim/` and `queue/`. Start reading at [`Node::start`].

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
use crate::queue::in_flight::InFlight;
use crate::queue::publish::Published;

mod attempt;
mod backoff;
mod context;
mod envelope;
mod error;
mod group_run;
mod handler;
mod handlers;
mod leases;
#[cfg(feature = "testing")]
mod manual;
mod pool;
pub(crate) mod registry;
mod report;
mod result_storage;
mod signal;
mod state;
mod tx;

use handlers::Handlers;
#[cfg(feature = "testing")]
pub(crate) use manual::ManualNode;
use state::NodeState;

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
/// How many events a node handles concurrently, unless set.
const CONCURRENCY: usize = 10;
const CONCURRENCY_MAX: usize = 10_000;
/// How long a stopping node waits for its handlers, unless set.
const GRACE: Duration = Duration::from_secs(20);
/// How often a node checks for due maintenance tasks of its namespace.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(20);
/// How long releasing unfinished deliveries may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that publishes and handles events: an id, handlers, and a concurrency limit.
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
/// An event is completed once all its handlers have succeeded. After a failure, only the handlers that have not
/// succeeded run again. The handlers of an event run concurrently, and may run again after a crash: events are
/// delivered at least once.
pub struct Node {
    queue: Queue,
    registration: NewNode,
    handlers: Handlers,
    /// The first invalid setting; `start` returns it.
    config_error: Option<Error>,
    concurrency: usize,
    /// Concurrency limits by type pattern.
    type_limits: BTreeMap<String, usize>,
    group_run: usize,
    grace: Duration,
    leave_unhandled: bool,
}

impl Node {
    /// A node with this id in the queue's namespace. Characters that are not allowed in an id become `-`. An empty id
    /// is replaced by one made of the host name, the process id and a few random letters.
    pub fn new(queue: &Queue, node_id: impl AsRef<str>) -> Node {
        Node {
            queue: queue.clone(),
            registration: NewNode::new(node_id),
            handlers: Handlers::default(),
            config_error: None,
            concurrency: CONCURRENCY,
            type_limits: BTreeMap::new(),
            group_run: GROUP_RUN,
            grace: GRACE,
            leave_unhandled: false,
        }
    }

    /// A human-readable name.
    pub fn display_name(mut self, display_name: impl Into<String>) -> Node {
        self.registration = self.registration.display_name(display_name);
        self
    }

    /// A human-readable description.
    pub fn description(mut self, description: impl Into<String>) -> Node {
        self.registration = self.registration.description(description);
        self
    }

    /// Metadata shown with the node: a JSON object.
    pub fn metadata<T: Serialize + ?Sized>(mut self, metadata: &T) -> Node {
        match self.registration.clone().metadata(metadata) {
            Ok(registration) => self.registration = registration,
            Err(error) => self.record_error(Err(error)),
        }
        self
    }

    /// Adds a handler for events of this type: an exact name, or a prefix ending in `*`.
    pub fn on<F, Fut>(self, event_type: impl Into<String>, work: F) -> Node
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::new(event_type, work))
    }

    /// Adds a handler for events of the type [`EventType::NAME`] of `T`.
    pub fn on_type<T, F, Fut>(self, work: F) -> Node
    where
        T: EventType,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::typed(work))
    }

    /// Adds a handler for events that no other handler of this node matches.
    pub fn on_others<F, Fut>(self, work: F) -> Node
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::for_others(work))
    }

    /// Adds a handler that runs in a PostgreSQL transaction; see [`Handler::in_pg_tx`].
    #[cfg(feature = "postgres")]
    pub fn on_in_pg_tx<F, Fut>(self, event_type: impl Into<String>, work: F) -> Node
    where
        F: Fn(Envelope, PgTx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::in_pg_tx(event_type, work))
    }

    /// Adds a typed handler that runs in a PostgreSQL transaction; see [`Handler::typed_in_pg_tx`].
    #[cfg(feature = "postgres")]
    pub fn on_type_in_pg_tx<T, F, Fut>(self, work: F) -> Node
    where
        T: EventType,
        F: Fn(T, PgTx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::typed_in_pg_tx(work))
    }

    /// Adds a handler that runs in an SQLite transaction; see [`Handler::in_sqlite_tx`].
    #[cfg(feature = "sqlite")]
    pub fn on_in_sqlite_tx<F>(self, event_type: impl Into<String>, work: F) -> Node
    where
        F: Fn(&Envelope, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        self.handler(Handler::in_sqlite_tx(event_type, work))
    }

    /// Adds a typed handler that runs in an SQLite transaction; see [`Handler::typed_in_sqlite_tx`].
    #[cfg(feature = "sqlite")]
    pub fn on_type_in_sqlite_tx<T, F>(self, work: F) -> Node
    where
        T: EventType,
        F: Fn(T, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        self.handler(Handler::typed_in_sqlite_tx(work))
    }

    /// Adds a handler that has its own settings.
    pub fn handler(mut self, handler: Handler) -> Node {
        let added = self.handlers.add(handler);
        self.record_error(added);
        self
    }

    /// How many events the node handles concurrently; 10 unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Node {
        let checked = check_concurrency(concurrency);
        self.concurrency = concurrency;
        self.record_error(checked);
        self
    }

    /// Limits how many events of a type the node handles concurrently, so that a slow type does not block the others.
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
    ///     .concurrency_of("report.yearly", 1); // … yearly ones, which have their own limit
    /// # Ok(())
    /// # }
    /// ```
    pub fn concurrency_of(mut self, event_type: impl Into<String>, concurrency: usize) -> Node {
        let pattern = event_type.into();
        let checked = names::check_type_pattern("type", &pattern).and_then(|()| check_concurrency(concurrency));
        self.type_limits.insert(pattern, concurrency);
        self.record_error(checked);
        self
    }

    /// How many consecutive events of a group the node claims together; 100 unless set. 1 claims them one by one.
    ///
    /// They are still handled one after the other, in order, and count as one towards [`Node::concurrency`]. The next
    /// events of a group are claimed only after these are completed, so a larger number handles a group faster.
    pub fn group_run(mut self, group_run: usize) -> Node {
        if group_run == 0 || group_run > GROUP_RUN_MAX {
            self.record_error(Err(Error::invalid("group_run", format!("must be from 1 to {GROUP_RUN_MAX}"))));
        }
        self.group_run = group_run;
        self
    }

    /// How long a stopping node waits for running handlers; 20 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Node {
        self.grace = grace;
        self
    }

    /// Does not claim events that the node has no handler for, so that other nodes can. Without this setting the node
    /// claims them, and the [`UnhandledPolicy`](crate::UnhandledPolicy) decides: a retry or a dead letter.
    pub fn leave_unhandled(mut self) -> Node {
        self.leave_unhandled = true;
        self
    }

    fn record_error(&mut self, checked: Result<()>) {
        if let Err(error) = checked {
            self.config_error.get_or_insert(error);
        }
    }

    /// Registers the node without claiming events. Tests call [`ManualNode::run_until_idle`].
    #[cfg(feature = "testing")]
    pub(crate) async fn start_manual(self) -> Result<ManualNode> {
        Ok(ManualNode::new(self.register().await?))
    }

    /// Registers the node and starts handling events. Fails if a setting is invalid.
    pub async fn start(self) -> Result<RunningNode> {
        let grace = self.grace;
        let running = RunningNode { state: self.register().await?, grace };
        running.state.start_pools();
        tokio::spawn(send_heartbeats(running.state.clone()));
        tokio::spawn(renew_leases(running.state.clone()));
        tokio::spawn(run_maintenance(running.state.clone()));
        Ok(running)
    }

    async fn register(self) -> Result<Arc<NodeState>> {
        if let Some(error) = self.config_error {
            return Err(error);
        }
        for handler in self.handlers.all() {
            check_handler(&self.queue, &handler).await?;
        }
        let registration = self.registration.event_types(self.handlers.patterns(None));
        let registered = self.queue.register_node(registration.clone()).await?;
        let type_limits = self.type_limits.into_iter().map(|(pattern, n)| (pattern, (n, Arc::new(Semaphore::new(n)))));
        Ok(Arc::new(NodeState {
            queue: self.queue,
            registration: registration.node_id(&registered.node_id),
            node_id: registered.node_id.into(),
            handlers: self.handlers,
            leave_unhandled: self.leave_unhandled,
            leases: Default::default(),
            concurrency: self.concurrency,
            slots: Arc::new(Semaphore::new(self.concurrency)),
            group_run: self.group_run,
            slots_freed: Default::default(),
            type_limits: type_limits.collect(),
            pools: Mutex::default(),
            stopping: watch::Sender::new(false),
            abandoned: watch::Sender::new(false),
            handlers_changed: watch::Sender::new(()),
            in_flight: InFlight::new(),
        }))
    }

    /// Runs the node until `stop` is ready, then stops it like [`RunningNode::stop`]. Pass [`shutdown_signal`] to stop
    /// on SIGTERM or Ctrl-C.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<()> {
        // Polled from the beginning, so that a signal that arrives while the node starts is not missed.
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

/// A running node. Dropping it aborts its handlers and releases their deliveries; [`RunningNode::stop`] lets the
/// handlers finish first.
///
/// ```
/// use windlass::{Node, Queue};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> windlass::Result<()> {
/// let queue = Queue::open("sqlite::memory:").await?;
/// let node = Node::new(&queue, "api-1").on("user.created", |_, _| async { Ok(()) }).start().await?;
///
/// // A running node accepts more handlers and publishes events.
/// node.on("user.deleted", |_, _| async { Ok(()) }).await?;
/// node.emit("user.created", &"Ada").await?;
///
/// node.stop().await;
/// queue.close().await;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it aborts its handlers and releases their deliveries"]
pub struct RunningNode {
    state: Arc<NodeState>,
    grace: Duration,
}

impl RunningNode {
    /// The id the node is registered with.
    pub fn node_id(&self) -> &str {
        &self.state.node_id
    }

    /// Adds a handler and starts consuming its events. See [`RunningNode::on`].
    pub async fn handler(&self, handler: Handler) -> Result<()> {
        check_handler(&self.state.queue, &handler).await?;
        self.state.handlers.add(handler)?;
        self.state.handlers_changed.send_replace(());
        self.state.start_pools();
        if let Err(error) = self.state.register().await {
            tracing::warn!(%error, node_id = self.node_id(), "could not register the event types of the new handler");
        }
        Ok(())
    }

    /// Adds a handler for events of this type – an exact name, or a prefix ending in `*` – and starts consuming them.
    ///
    /// The handler also receives pending events that were published before it was added, unless a node has already
    /// finished them as [unhandled](crate::UnhandledPolicy). A handler cannot be removed; stop the node instead.
    pub async fn on<F, Fut>(&self, event_type: impl Into<String>, work: F) -> Result<()>
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        self.handler(Handler::new(event_type, work)).await
    }

    /// Publishes an event with this node as its producer.
    pub async fn publish(&self, event: NewEvent) -> Result<Published> {
        self.state.producer().publish(event).await
    }

    /// Publishes an event of this type and payload. Returns its id.
    pub async fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        self.state.producer().emit(event_type, payload).await
    }

    /// Stops the node. It claims no more events and waits for running handlers for at most the [grace](Node::grace)
    /// time. Then it aborts them and releases their deliveries, so that other nodes can claim them immediately. The
    /// queue stays open.
    pub async fn stop(self) {
        let state = &self.state;
        state.stopping.send_replace(true);
        if tokio::time::timeout(self.grace, state.in_flight.wait_until_idle()).await.is_err() {
            let (node_id, grace) = (&*state.node_id, self.grace);
            tracing::warn!(node_id, ?grace, "handlers did not finish within the grace time; aborting them");
            state.abandoned.send_replace(true);
            if tokio::time::timeout(RELEASE_TIMEOUT, state.in_flight.wait_until_idle()).await.is_err() {
                tracing::warn!(node_id = &*state.node_id, "could not release all deliveries; their leases will expire");
            }
        }
        // Deliveries of a claim that was under way are released as well.
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, state.queue.core().in_flight.wait_until_idle()).await;
        if let Err(error) = state.queue.stop_node(&state.node_id).await {
            tracing::warn!(%error, node_id = &*state.node_id, "could not record that the node stopped");
        }
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        self.state.stopping.send_replace(true);
        self.state.abandoned.send_replace(true);
    }
}

impl NodeState {
    /// Starts the pools that the handlers need and that do not run yet.
    fn start_pools(self: &Arc<NodeState>) {
        for pool in self.create_missing_pools() {
            // A pool counts as in flight: deliveries of a pending claim may still arrive.
            let in_flight = self.in_flight.begin();
            tokio::spawn(async move {
                pool.run().await;
                drop(in_flight);
            });
        }
    }
}

/// Sends heartbeats until the node stops.
async fn send_heartbeats(state: Arc<NodeState>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT) => {}
            () = state.wait_until_stopping() => return,
        }
        let sent = match state.queue.touch_node(&state.node_id).await {
            // Nodes without a heartbeat for a week are removed: register again.
            Ok(false) => state.register().await,
            sent => sent.map(drop),
        };
        if let Err(error) = sent {
            tracing::warn!(%error, node_id = &*state.node_id, "could not send the heartbeat");
        }
    }
}

/// Runs the maintenance tasks of the namespace, so that a program does not need a server for them.
async fn run_maintenance(state: Arc<NodeState>) {
    tokio::select! {
        () = state.queue.maintain(MAINTENANCE_INTERVAL) => {}
        () = state.wait_until_stopping() => {}
    }
}

/// Renews leases until the node has stopped and its last delivery is finished.
async fn renew_leases(state: Arc<NodeState>) {
    let stopped = async {
        state.wait_until_stopping().await;
        state.in_flight.wait_until_idle().await;
    };
    tokio::select! {
        () = state.leases.renew_forever(&state.queue) => {}
        () = stopped => {}
    }
}
