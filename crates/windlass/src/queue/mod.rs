//! [`Queue`], the handle to one namespace of a database, and the operations on deliveries: one file per verb.
//!
//! This file opens and closes queues and holds the state that all handles share ([`Core`]). [`decide`] makes every
//! decision about a delivery, [`change`] applies it, and [`wake`] notifies waiting claims. Claiming is in `claim`, SQL
//! in `store`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::claim::Claimers;
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};
use crate::event::names;
use crate::node::registry::generated_id;
use crate::observe::metrics::MetricsRecorder;
use crate::observe::samples::Counters;
use crate::policy::limits::Limits;
use crate::queue::coalesce::Coalescer;
use crate::queue::finish::{FinishUnit, FinishedUnit};
use crate::queue::handler_results::InterimResult;
use crate::queue::in_flight::InFlight;
use crate::queue::publish::{PublishUnit, PublishedUnit};
use crate::queue::route::{Departure, RoutePositions};
use crate::queue::wake::{WakeRegistry, lock};
use crate::schedule::FailingSchedules;
use crate::store::Store;
use crate::topology::lanes::LaneCache;
use crate::topology::{DEFAULT_NAMESPACE, Topology};

pub(crate) mod cancel;
pub(crate) mod change;
pub(crate) mod coalesce;
pub(crate) mod decide;
pub(crate) mod finish;
pub(crate) mod handler_results;
pub(crate) mod heartbeat;
pub(crate) mod in_flight;
pub(crate) mod outcome;
pub(crate) mod publish;
pub(crate) mod publish_in;
pub(crate) mod redrive;
pub(crate) mod reset;
pub(crate) mod route;
pub(crate) mod wake;

/// A handle to one namespace of a durable event queue. Clones are cheap and share the connections.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> windlass::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite://{}", folder.path().join("windlass.db").display());
/// use windlass::{ClaimRequest, NewEvent, Queue, Report};
///
/// let queue = Queue::open(&url).await?;
/// queue.publish(NewEvent::new("user.created").payload(&serde_json::json!({ "user_id": 42 }))?).await?;
///
/// for delivery in queue.claim(ClaimRequest::new("worker-1").max(10)).await? {
///     println!("{} {}", delivery.event.event_type, delivery.event.payload);
///     queue.finish(&delivery, Report::done()).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Queue {
    shared: Arc<Shared>,
    namespace: Arc<str>,
}

/// A queue handle that does not keep the queue alive.
pub(crate) struct WeakQueue {
    shared: Weak<Shared>,
    namespace: Arc<str>,
}

impl WeakQueue {
    pub fn upgrade(&self) -> Option<Queue> {
        Some(Queue { shared: self.shared.upgrade()?, namespace: self.namespace.clone() })
    }
}

struct Shared {
    core: Arc<Core>,
    coalescers: Mutex<HashMap<String, Arc<NamespaceCoalescers>>>,
    claimers: Claimers,
}

/// The state that all handles and background tasks of a queue share. It does not keep the queue alive.
pub(crate) struct Core {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub limits: Limits,
    pub wakes: Arc<WakeRegistry>,
    /// The id of this process in tables that other processes read.
    pub process: String,
    /// Running claims, and releases of deliveries that no caller received.
    pub in_flight: InFlight,
    /// `true` if claims no longer wait.
    pub shutting_down: watch::Sender<bool>,
    /// Notified when this process adds, changes or removes schedules.
    pub schedules_changed: watch::Sender<()>,
    /// By namespace: how many schedules can be added before they must be counted again.
    pub schedules_allowed: Mutex<HashMap<String, usize>>,
    /// Schedules that this process could not fire.
    pub failing_schedules: Mutex<FailingSchedules>,
    /// Counts for samples.
    pub counters: Arc<Counters>,
    /// Counts for monitoring.
    pub metrics: MetricsRecorder,
    /// The folder in which history is archived before it is deleted.
    pub archive: Option<PathBuf>,
    /// How often waiting claims query the database without a notification.
    pub idle_poll: Duration,
    /// Locked while this process diagnoses the installation.
    pub diagnosing: tokio::sync::Mutex<()>,
    pub lanes: LaneCache,
    pub route_positions: RoutePositions,
    topologies: Mutex<HashMap<String, CachedTopology>>,
}

/// A topology, and when loading it started and ended.
#[derive(Clone)]
struct CachedTopology {
    topology: Arc<Topology>,
    load_started: Instant,
    load_ended: Instant,
}

impl CachedTopology {
    /// Whether this topology is newer and was loaded after loading `other` had started.
    fn supersedes(&self, other: &CachedTopology) -> bool {
        self.load_ended >= other.load_started && self.topology.version > other.topology.version
    }
}

/// The coalescers of one namespace: concurrent calls share a transaction.
pub(crate) struct NamespaceCoalescers {
    pub publish: Coalescer<PublishUnit, PublishedUnit>,
    pub finish: Coalescer<FinishUnit, FinishedUnit>,
    /// Results of handlers whose delivery is still being processed.
    pub results: Coalescer<InterimResult, bool>,
    /// Groups in which a handler's transaction has completed a delivery.
    pub departures: Coalescer<Departure, ()>,
}

/// Options for opening a queue; from [`Queue::options`].
#[derive(Debug, Clone)]
pub struct OpenOptions {
    url: String,
    clock: Clock,
    limits: Limits,
    migrate: bool,
    archive: Option<PathBuf>,
    idle_poll: Duration,
    handler_connections: usize,
}

/// The default of [`OpenOptions::handler_connections`].
const HANDLER_CONNECTIONS: usize = 16;
const HANDLER_CONNECTIONS_MAX: usize = 1_000;

/// The default of [`OpenOptions::idle_poll`].
const IDLE_POLL: Duration = Duration::from_secs(1);
const IDLE_POLL_MIN: Duration = Duration::from_millis(10);
const IDLE_POLL_MAX: Duration = Duration::from_secs(3600);

fn check_idle_poll(idle_poll: Duration) -> Result<()> {
    if (IDLE_POLL_MIN..=IDLE_POLL_MAX).contains(&idle_poll) {
        return Ok(());
    }
    Err(Error::invalid("idle_poll", format!("is {idle_poll:?}; it must be from 10 ms to 1 hour")))
}

impl OpenOptions {
    /// The clock, instead of the database's: see [`Clock::test`].
    pub fn clock(mut self, clock: Clock) -> OpenOptions {
        self.clock = clock;
        self
    }

    /// The limits on what the queue accepts.
    pub fn limits(mut self, limits: Limits) -> OpenOptions {
        self.limits = limits;
        self
    }

    /// Whether opening migrates the database's schema to the version that this build needs; `true` by default.
    pub fn migrate(mut self, migrate: bool) -> OpenOptions {
        self.migrate = migrate;
        self
    }

    /// The folder in which history is archived before it is deleted, for namespaces with [`Policy::archive`].
    ///
    /// [`Policy::archive`]: crate::Policy::archive
    pub fn archive_to(mut self, folder: impl Into<PathBuf>) -> OpenOptions {
        self.archive = Some(folder.into());
        self
    }

    /// How often this process queries the database while its claims and nodes wait for deliveries, from 10 ms to
    /// 1 hour; 1 second by default.
    ///
    /// The poll is a fallback: notifications report new events, and a timer reports delayed events and retries, so a
    /// longer interval does not delay them. It only bounds how long a waiting claim takes to find a delivery whose
    /// notification was lost, or an expired lease that no server or node has released (their maintenance checks every
    /// 10 seconds). A longer interval means fewer queries from idle processes.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// use std::time::Duration;
    /// use windlass::Queue;
    ///
    /// let queue = Queue::options("sqlite://windlass.db").idle_poll(Duration::from_secs(30)).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn idle_poll(mut self, idle_poll: Duration) -> OpenOptions {
        self.idle_poll = idle_poll;
        self
    }

    /// How many handlers of this process may run in a PostgreSQL transaction concurrently, each on its own connection:
    /// from 1 to 1000; 16 by default. Further handlers wait. The connections are opened on demand, in addition to those
    /// of the queue. See [`Handler::in_pg_tx`](crate::Handler::in_pg_tx). No effect on SQLite, which has one writer.
    pub fn handler_connections(mut self, connections: usize) -> OpenOptions {
        self.handler_connections = connections;
        self
    }

    /// Opens the queue. The handle is for the namespace `default`.
    pub async fn open(self) -> Result<Queue> {
        check_idle_poll(self.idle_poll)?;
        if !(1..=HANDLER_CONNECTIONS_MAX).contains(&self.handler_connections) {
            let problem = format!("is {}; it must be from 1 to {HANDLER_CONNECTIONS_MAX}", self.handler_connections);
            return Err(Error::invalid("handler_connections", problem));
        }
        let store = open_store(&self).await?;
        let wakes = Arc::new(WakeRegistry::default());
        store.watch(wakes.clone()).await;
        let core = Core {
            counters: Counters::new(store.clone()),
            metrics: MetricsRecorder::new(self.limits.metric_types_max),
            store,
            clock: self.clock,
            limits: self.limits,
            wakes,
            process: generated_id(),
            in_flight: InFlight::new(),
            shutting_down: watch::Sender::new(false),
            schedules_changed: watch::Sender::new(()),
            schedules_allowed: Mutex::default(),
            failing_schedules: Mutex::default(),
            archive: self.archive,
            idle_poll: self.idle_poll,
            diagnosing: tokio::sync::Mutex::default(),
            lanes: LaneCache::default(),
            route_positions: RoutePositions::default(),
            topologies: Mutex::default(),
        };
        let shared = Shared { core: Arc::new(core), coalescers: Mutex::default(), claimers: Claimers::default() };
        Ok(Queue { shared: Arc::new(shared), namespace: DEFAULT_NAMESPACE.into() })
    }
}

/// The schema version of a database, and the version that this build needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaVersion {
    /// The database's version; 0 without a schema.
    pub found: i64,
    /// The version that this build needs.
    pub known: i64,
}

/// Reads the schema version of the database at `url`. Changes nothing.
pub async fn schema_version(url: &str) -> Result<SchemaVersion> {
    let (found, known) = match split_url(url)? {
        #[cfg(feature = "sqlite")]
        Database::Sqlite(path) => crate::store::sqlite::schema_version(path).await?,
        #[cfg(feature = "postgres")]
        Database::Postgres(url) => crate::store::postgres::schema_version(url).await?,
    };
    Ok(SchemaVersion { found, known })
}

enum Database<'a> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'a str),
    #[cfg(feature = "postgres")]
    Postgres(&'a str),
}

fn split_url(url: &str) -> Result<Database<'_>> {
    #[cfg(feature = "sqlite")]
    if let Some(path) = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")) {
        if path.is_empty() {
            return Err(bad_url(url, "names no file"));
        }
        return Ok(Database::Sqlite(path));
    }
    #[cfg(feature = "postgres")]
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Database::Postgres(url));
    }
    Err(bad_url(url, "must begin with sqlite:// or postgres://, whichever this build includes"))
}

pub(crate) fn bad_url(url: &str, problem: &str) -> Error {
    // Omit the user and password of postgres://user:password@host.
    let shown = match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 < at => format!("{}…{}", &url[..scheme + 3], &url[at..]),
        _ => url.to_owned(),
    };
    Error::DatabaseUrl { url: shown, problem: problem.to_owned() }
}

async fn open_store(options: &OpenOptions) -> Result<Arc<dyn Store>> {
    let (clock, migrate) = (options.clock.clone(), options.migrate);
    match split_url(&options.url)? {
        #[cfg(feature = "sqlite")]
        Database::Sqlite(path) => Ok(Arc::new(crate::store::sqlite::SqliteStore::open(path, clock, migrate).await?)),
        #[cfg(feature = "postgres")]
        Database::Postgres(url) => {
            let handlers = options.handler_connections;
            Ok(Arc::new(crate::store::postgres::PgStore::open(url, clock, migrate, handlers).await?))
        }
    }
}

impl Queue {
    /// Opens the database at `url`: `sqlite://file` or `postgres://…`. Creates the file if it does not exist, and
    /// migrates the schema. `sqlite::memory:` is a database in memory for tests, which is deleted when the queue is
    /// dropped.
    pub async fn open(url: &str) -> Result<Queue> {
        Queue::options(url).open().await
    }

    /// Options for opening the database at `url` with other settings than [`Queue::open`].
    pub fn options(url: &str) -> OpenOptions {
        let (clock, limits) = (Clock::system(), Limits::default());
        OpenOptions {
            url: url.to_owned(),
            clock,
            limits,
            migrate: true,
            archive: None,
            idle_poll: IDLE_POLL,
            handler_connections: HANDLER_CONNECTIONS,
        }
    }

    /// A handle to another namespace of the same database. Does not check that the namespace exists: later calls do.
    pub fn in_namespace(&self, namespace: &str) -> Result<Queue> {
        names::check_identifier("namespace", namespace)?;
        Ok(Queue { shared: self.shared.clone(), namespace: namespace.into() })
    }

    /// The namespace of this handle.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The limits on what this queue accepts.
    pub fn limits(&self) -> &Limits {
        &self.shared.core.limits
    }

    /// The clock of this queue.
    pub fn clock(&self) -> &Clock {
        &self.shared.core.clock
    }

    /// Checks that the database responds.
    pub async fn ping(&self) -> Result<()> {
        self.store().exists(self.namespace(), &[]).await.map(drop)
    }

    /// Sends the metrics of all clones of this queue to this recorder from now on, instead of the global recorder
    /// (`metrics::set_global_recorder`). `docs/metrics.md` lists the metrics.
    #[cfg(feature = "metrics")]
    pub fn record_to(&self, recorder: impl metrics::Recorder + Send + Sync + 'static) {
        self.core().metrics.set_recorder(Arc::new(recorder));
    }

    /// Ends the wait of all claims, now and in the future: they return the deliveries that are ready. Call it when the
    /// process shuts down.
    pub fn stop_waiting(&self) {
        self.core().shutting_down.send_replace(true);
    }

    /// Whether claims no longer wait.
    pub(crate) fn is_shutting_down(&self) -> bool {
        *self.core().shutting_down.borrow()
    }

    /// Waits for running calls and closes the connections. Later calls fail with [`Error::Closed`].
    pub async fn close(&self) {
        self.stop_waiting();
        // Deliveries whose caller is gone are released first. Otherwise their leases would have to expire.
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, self.core().in_flight.wait_until_idle()).await;
        self.core().close_counters().await;
        self.store().close().await;
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.shared.core
    }

    pub(crate) fn downgrade(&self) -> WeakQueue {
        WeakQueue { shared: Arc::downgrade(&self.shared), namespace: self.namespace.clone() }
    }

    pub(crate) fn claimers(&self) -> &Claimers {
        &self.shared.claimers
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.shared.core.store
    }

    /// The test clock's time, which statements must use; `None` for the database's clock.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.shared.core.clock.overridden()
    }

    pub(crate) async fn topology(&self) -> Result<Arc<Topology>> {
        self.core().topology(&self.namespace).await
    }

    pub(crate) async fn reload(&self) -> Result<Arc<Topology>> {
        self.core().reload(&self.namespace).await
    }

    /// The topology, reloaded if the cached one does not have the subscription. Fails if the subscription does not
    /// exist.
    pub(crate) async fn topology_with(&self, subscription: &str) -> Result<Arc<Topology>> {
        let cached = self.topology().await?;
        let topology = if cached.subscription(subscription).is_some() { cached } else { self.reload().await? };
        match topology.subscription(subscription) {
            Some(_) => Ok(topology),
            None => Err(Error::SubscriptionNotFound {
                namespace: self.namespace().to_owned(),
                subscription: subscription.to_owned(),
            }),
        }
    }

    pub(crate) fn event_not_found(&self, event_id: i64) -> Error {
        Error::EventNotFound { namespace: self.namespace().to_owned(), event_id }
    }

    pub(crate) fn coalescers(&self) -> Arc<NamespaceCoalescers> {
        let mut by_namespace = lock(&self.shared.coalescers);
        if let Some(found) = by_namespace.get(self.namespace()) {
            return found.clone();
        }
        let created = Arc::new(self.new_coalescers());
        by_namespace.insert(self.namespace().to_owned(), created.clone());
        created
    }

    fn new_coalescers(&self) -> NamespaceCoalescers {
        let core = self.core();
        let in_flight = core.store.batches_in_flight();
        let (publisher, finisher) = ((core.clone(), self.namespace.clone()), (core.clone(), self.namespace.clone()));
        let results = (core.clone(), self.namespace.clone());
        let departures = (core.clone(), self.namespace.clone());
        NamespaceCoalescers {
            publish: Coalescer::new(in_flight, BATCH_WEIGHT_MAX, move |units| {
                publish::run(publisher.0.clone(), publisher.1.clone(), units)
            }),
            finish: Coalescer::new(in_flight, BATCH_WEIGHT_MAX, move |units| {
                finish::run(finisher.0.clone(), finisher.1.clone(), units)
            }),
            // One batch at a time, to leave connections for publishing and finishing.
            results: Coalescer::new(1, BATCH_WEIGHT_MAX, move |units| {
                handler_results::run(results.0.clone(), results.1.clone(), units)
            }),
            departures: Coalescer::new(1, BATCH_WEIGHT_MAX, move |groups| {
                route::run_departures(departures.0.clone(), departures.1.clone(), groups)
            }),
        }
    }
}

/// The maximum number of items in a coalesced batch: large enough to share a commit, small enough to keep latency low.
const BATCH_WEIGHT_MAX: usize = 1_000;

/// How long closing waits for deliveries to be released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

impl Core {
    pub async fn topology(&self, namespace: &str) -> Result<Arc<Topology>> {
        match self.cached_topology(namespace) {
            Some(cached) => Ok(cached),
            None => self.reload(namespace).await,
        }
    }

    pub fn cached_topology(&self, namespace: &str) -> Option<Arc<Topology>> {
        lock(&self.topologies).get(namespace).map(|cached| cached.topology.clone())
    }

    /// Caches a loaded topology, unless another task has loaded a newer one meanwhile. Returns the newer one.
    fn cache_topology(&self, namespace: &str, new: CachedTopology) -> Arc<Topology> {
        let mut topologies = lock(&self.topologies);
        if let Some(cached) = topologies.get(namespace).filter(|cached| cached.supersedes(&new)) {
            return cached.topology.clone();
        }
        topologies.insert(namespace.to_owned(), new.clone());
        new.topology
    }

    /// Loads the topology from the database and caches it.
    pub async fn reload(&self, namespace: &str) -> Result<Arc<Topology>> {
        let load_started = Instant::now();
        match self.store.topology(namespace).await? {
            Some(topology) => {
                let new = CachedTopology { topology: Arc::new(topology), load_started, load_ended: Instant::now() };
                let topology = self.cache_topology(namespace, new);
                self.lanes.forget_newer(namespace, topology.version);
                Ok(topology)
            }
            None => {
                lock(&self.topologies).remove(namespace);
                Err(Error::NamespaceNotFound { namespace: namespace.to_owned() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::topology;

    #[test]
    fn url_error_omits_the_password() {
        let error = bad_url("mysql://me:secret@host/db", "no");
        assert_eq!(error.to_string(), "database URL 'mysql://…@host/db': no");
    }

    #[test]
    fn slow_load_does_not_replace_a_newer_topology() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let cached = |version, load_started, load_ended| CachedTopology {
            topology: Arc::new(topology("n", version)),
            load_started: at(load_started),
            load_ended: at(load_ended),
        };
        let slow = cached(1, 0, 9);
        assert!(cached(2, 2, 4).supersedes(&slow));
        assert!(!cached(1, 2, 4).supersedes(&slow));
        assert!(!slow.supersedes(&cached(2, 2, 4)));
        // A lower version that was loaded later counts: the database may have been restored from a backup.
        assert!(!cached(2, 0, 1).supersedes(&cached(1, 3, 4)));
    }
}
