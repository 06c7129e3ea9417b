//! The way in: a queue on one database, seen from one namespace.

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
use crate::queue::busy::InFlight;
use crate::queue::coalesce::Coalescer;
use crate::queue::finish::{FinishUnit, FinishedUnit};
use crate::queue::handler_results::InterimResult;
use crate::queue::publish::{PublishUnit, PublishedUnit};
use crate::queue::route::{Departure, RoutePositions};
use crate::queue::wake::{WakeRegistry, lock};
use crate::schedule::Left;
use crate::store::Store;
use crate::topology::lanes::LaneCache;
use crate::topology::{DEFAULT_NAMESPACE, Topology};

pub(crate) mod busy;
pub(crate) mod cancel;
pub(crate) mod change;
pub(crate) mod coalesce;
pub(crate) mod decide;
pub(crate) mod finish;
pub(crate) mod handler_results;
pub(crate) mod heartbeat;
pub(crate) mod outcome;
pub(crate) mod publish;
pub(crate) mod publish_in;
pub(crate) mod redrive;
pub(crate) mod reset;
pub(crate) mod route;
pub(crate) mod wake;

/// A durable event queue on one database. Clones are cheap and share everything.
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

/// A queue that somebody else has to keep alive.
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
    lines: Mutex<HashMap<String, Arc<NamespaceCoalescers>>>,
    claimers: Claimers,
}

/// What the background work of a queue needs; it does not keep the queue alive.
pub(crate) struct Core {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub limits: Limits,
    pub wakes: Arc<WakeRegistry>,
    /// Who this process is, to those who look after the database.
    pub process: String,
    /// Claims under way, and deliveries on their way back.
    pub busy: InFlight,
    /// Nobody waits any more.
    pub hurry: watch::Sender<bool>,
    /// Schedules were added, changed or removed by this process.
    pub schedules_changed: watch::Sender<()>,
    /// How many schedules each namespace may get before they are counted again.
    pub schedules_room: Mutex<HashMap<String, usize>>,
    /// Schedules that could not be fired here.
    pub schedules_left: Mutex<Left>,
    /// What is counted for samples.
    pub counters: Arc<Counters>,
    /// What is counted for monitoring.
    pub metrics: MetricsRecorder,
    /// Where history goes before it is deleted.
    pub archive: Option<PathBuf>,
    /// How often waiting claims query the database without a notification.
    pub idle_poll: Duration,
    /// LeasedEvent by whoever looks into the health of the installation.
    pub diagnosing: tokio::sync::Mutex<()>,
    pub lanes: LaneCache,
    pub route_positions: RoutePositions,
    topologies: Mutex<HashMap<String, CachedTopology>>,
}

/// A topology, and when loading it began and ended.
#[derive(Clone)]
struct CachedTopology {
    topology: Arc<Topology>,
    begun: Instant,
    done: Instant,
}

impl CachedTopology {
    /// Whether it came while the other was being loaded, and is newer.
    fn outdates(&self, other: &CachedTopology) -> bool {
        self.done >= other.begun && self.topology.version > other.topology.version
    }
}

/// The coalesced calls of one namespace.
pub(crate) struct NamespaceCoalescers {
    pub publish: Coalescer<PublishUnit, PublishedUnit>,
    pub finish: Coalescer<FinishUnit, FinishedUnit>,
    /// Results of handlers whose delivery is still being processed.
    pub results: Coalescer<InterimResult, bool>,
    /// Groups of which a handler's transaction has completed a delivery.
    pub departures: Coalescer<Departure, ()>,
}

/// How to open a queue.
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

/// [`OpenOptions::handler_connections`] unless set.
const HANDLER_CONNECTIONS: usize = 16;
const HANDLER_CONNECTIONS_MAX: usize = 1_000;

/// [`OpenOptions::idle_poll`] unless set.
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
    /// Uses this clock instead of the database's.
    pub fn clock(mut self, clock: Clock) -> OpenOptions {
        self.clock = clock;
        self
    }

    /// Uses these limits.
    pub fn limits(mut self, limits: Limits) -> OpenOptions {
        self.limits = limits;
        self
    }

    /// Whether opening brings the database's schema up to date; it does unless told not to.
    pub fn migrate(mut self, migrate: bool) -> OpenOptions {
        self.migrate = migrate;
        self
    }

    /// Where history is written to before it is deleted, in namespaces whose policy says so: see [`Policy::archive`].
    ///
    /// [`Policy::archive`]: crate::Policy::archive
    pub fn archive_to(mut self, folder: impl Into<PathBuf>) -> OpenOptions {
        self.archive = Some(folder.into());
        self
    }

    /// How often this process queries the database while its claims and nodes wait for deliveries, from 10 ms to
    /// 1 hour; 1 second unless set.
    ///
    /// The poll is a fallback. New events are reported by notifications, and delayed events and retries by a timer, so
    /// a longer interval does not delay them. It is the longest time after which a waiting claim finds a delivery whose
    /// notification was lost, and an expired lease that the maintenance of no server or node has released (they check
    /// every 10 seconds). A longer interval means fewer queries from idle processes.
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

    /// How many handlers of this process work in a PostgreSQL transaction at once, each on a connection of its own; 16
    /// unless set, from 1 to 1000. Further ones wait. The connections are opened when they are needed, besides those of the
    /// queue. See [`Handler::in_pg_tx`](crate::Handler::in_pg_tx). No effect on SQLite, which has one writer.
    pub fn handler_connections(mut self, connections: usize) -> OpenOptions {
        self.handler_connections = connections;
        self
    }

    /// Opens the queue, in the namespace `default`.
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
            busy: InFlight::new(),
            hurry: watch::Sender::new(false),
            schedules_changed: watch::Sender::new(()),
            schedules_room: Mutex::default(),
            schedules_left: Mutex::default(),
            archive: self.archive,
            idle_poll: self.idle_poll,
            diagnosing: tokio::sync::Mutex::default(),
            lanes: LaneCache::default(),
            route_positions: RoutePositions::default(),
            topologies: Mutex::default(),
        };
        let shared = Shared { core: Arc::new(core), lines: Mutex::default(), claimers: Claimers::default() };
        Ok(Queue { shared: Arc::new(shared), namespace: DEFAULT_NAMESPACE.into() })
    }
}

/// The schema versions of a database: what it has, and what this build needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaVersion {
    /// What the database has; 0 where there is nothing yet.
    pub found: i64,
    /// What this build needs.
    pub known: i64,
}

/// The schema version of the database at `url`, which is left as it is.
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
    // The password of postgres://user:password@host stays out of messages.
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
    /// Opens the database at `url`: `sqlite://file` or `postgres://…`. The file is created where there
    /// is none, and the schema is brought up to date. `sqlite::memory:` is a database in memory, for tests: it is
    /// gone when the queue is.
    pub async fn open(url: &str) -> Result<Queue> {
        Queue::options(url).open().await
    }

    /// Opens it with other than the usual settings.
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

    /// The same queue, seen from another namespace. Whether it exists is found out on use.
    pub fn in_namespace(&self, namespace: &str) -> Result<Queue> {
        names::check_identifier("namespace", namespace)?;
        Ok(Queue { shared: self.shared.clone(), namespace: namespace.into() })
    }

    /// The namespace this handle works in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What this queue accepts.
    pub fn limits(&self) -> &Limits {
        &self.shared.core.limits
    }

    /// The clock this queue goes by.
    pub fn clock(&self) -> &Clock {
        &self.shared.core.clock
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<()> {
        self.store().exists(self.namespace(), &[]).await.map(drop)
    }

    /// Tells this recorder, from now on, what all clones of this queue do: counters and histograms, which are listed in
    /// `docs/metrics.md`. Without it the process's recorder is told, as `metrics::set_global_recorder` made it.
    #[cfg(feature = "metrics")]
    pub fn record_to(&self, recorder: impl metrics::Recorder + Send + Sync + 'static) {
        self.core().metrics.tell_to(Arc::new(recorder));
    }

    /// From now on no claim waits: those that do are answered with what there is. For the end of a process.
    pub fn stop_waiting(&self) {
        self.core().hurry.send_replace(true);
    }

    /// Whether claims no longer wait.
    pub(crate) fn is_hurried(&self) -> bool {
        *self.core().hurry.borrow()
    }

    /// Finishes what is under way and closes the connections. Later calls fail with [`Error::Closed`].
    pub async fn close(&self) {
        self.stop_waiting();
        // What was claimed for somebody who is gone is given back first. Without it, its lease would have to end.
        let _ = tokio::time::timeout(GIVE_BACK_MAX, self.core().busy.idle()).await;
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

    /// The instant that statements have to use; see [`Clock`].
    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.shared.core.clock.overridden()
    }

    pub(crate) async fn topology(&self) -> Result<Arc<Topology>> {
        self.core().topology(&self.namespace).await
    }

    pub(crate) async fn reload(&self) -> Result<Arc<Topology>> {
        self.core().reload(&self.namespace).await
    }

    /// The topology, newly loaded if the known one has no such subscription.
    pub(crate) async fn topology_with(&self, subscription: &str) -> Result<Arc<Topology>> {
        let known = self.topology().await?;
        let topology = if known.subscription(subscription).is_some() { known } else { self.reload().await? };
        match topology.subscription(subscription) {
            Some(_) => Ok(topology),
            None => Err(Error::SubscriptionNotFound {
                namespace: self.namespace().to_owned(),
                subscription: subscription.to_owned(),
            }),
        }
    }

    pub(crate) fn no_event(&self, event_id: i64) -> Error {
        Error::EventNotFound { namespace: self.namespace().to_owned(), event_id }
    }

    pub(crate) fn lines(&self) -> Arc<NamespaceCoalescers> {
        let mut lines = lock(&self.shared.lines);
        if let Some(found) = lines.get(self.namespace()) {
            return found.clone();
        }
        let made = Arc::new(self.new_lines());
        lines.insert(self.namespace().to_owned(), made.clone());
        made
    }

    fn new_lines(&self) -> NamespaceCoalescers {
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
            // One batch at a time: they must not take the connections that publishing and finishing need.
            results: Coalescer::new(1, BATCH_WEIGHT_MAX, move |units| {
                handler_results::run(results.0.clone(), results.1.clone(), units)
            }),
            departures: Coalescer::new(1, BATCH_WEIGHT_MAX, move |groups| {
                route::run_departures(departures.0.clone(), departures.1.clone(), groups)
            }),
        }
    }
}

/// Gathered batches grow to at most this many events: large enough to share a commit, small enough
/// that nobody waits long for his neighbours.
const BATCH_WEIGHT_MAX: usize = 1_000;

/// How long closing waits for deliveries to be given back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);

impl Core {
    pub async fn topology(&self, namespace: &str) -> Result<Arc<Topology>> {
        match self.known_topology(namespace) {
            Some(known) => Ok(known),
            None => self.reload(namespace).await,
        }
    }

    pub fn known_topology(&self, namespace: &str) -> Option<Arc<Topology>> {
        lock(&self.topologies).get(namespace).map(|known| known.topology.clone())
    }

    /// Keeps a topology for everybody, unless somebody else has loaded a newer one meanwhile; the newer one.
    fn remember(&self, namespace: &str, new: CachedTopology) -> Arc<Topology> {
        let mut topologies = lock(&self.topologies);
        if let Some(known) = topologies.get(namespace).filter(|known| known.outdates(&new)) {
            return known.topology.clone();
        }
        topologies.insert(namespace.to_owned(), new.clone());
        new.topology
    }

    /// Loads it anew, also for everybody after.
    pub async fn reload(&self, namespace: &str) -> Result<Arc<Topology>> {
        let begun = Instant::now();
        match self.store.topology(namespace).await? {
            Some(topology) => {
                let new = CachedTopology { topology: Arc::new(topology), begun, done: Instant::now() };
                let topology = self.remember(namespace, new);
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
    fn a_bad_url_is_shown_without_its_password() {
        let error = bad_url("mysql://me:secret@host/db", "no");
        assert_eq!(error.to_string(), "database URL 'mysql://…@host/db': no");
    }

    #[test]
    fn a_slow_load_does_not_bring_back_an_old_topology() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let known = |version, begun, done| CachedTopology {
            topology: Arc::new(topology("n", version)),
            begun: at(begun),
            done: at(done),
        };
        let slow = known(1, 0, 9);
        assert!(known(2, 2, 4).outdates(&slow));
        assert!(!known(1, 2, 4).outdates(&slow));
        assert!(!slow.outdates(&known(2, 2, 4)));
        // What was there before is not: the database may have been put back to an earlier state.
        assert!(!known(2, 0, 1).outdates(&known(1, 3, 4)));
    }
}
