//! Current totals of all namespaces, shown by monitoring as gauges.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::maintenance::task::MaintenanceTaskView;
use crate::node::registry::NodeStatus;
use crate::observe::backlog::LiveCount;
use crate::observe::metrics::DeadReason;
use crate::queue::Queue;
use crate::queue::decide::NO_HANDLER;
use crate::topology::Namespace;

/// The totals of all namespaces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    /// Ordered by name.
    pub namespaces: Vec<NamespaceOverview>,
}

/// The totals of one namespace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamespaceOverview {
    /// The name.
    pub namespace: String,
    /// Paused: nothing can be claimed.
    pub paused: bool,
    /// Pending and processing deliveries by subscription and type. Types beyond
    /// [`Limits::metric_types_max`](crate::Limits::metric_types_max) are combined as `other`.
    pub queues: Vec<QueueOverview>,
    /// Dead letters by subscription, type and kind of reason, without zero counts.
    pub dead_letters: Vec<DeadLetterCount>,
    /// Nodes with a recent heartbeat.
    pub nodes_alive: u64,
    /// Nodes without a recent heartbeat that did not report their stop.
    pub nodes_stale: u64,
    /// How long the most overdue schedule has been due.
    pub schedule_late: Duration,
    /// The age of the oldest arrival; zero if there is none.
    pub oldest_arrival: Duration,
    /// Its maintenance tasks.
    pub tasks: Vec<MaintenanceOverview>,
}

/// The pending and processing deliveries of one subscription and type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QueueOverview {
    /// The subscription.
    pub subscription: String,
    /// The event type.
    pub event_type: String,
    /// Ready to be claimed.
    pub ready: u64,
    /// Not due yet, or waiting for a retry.
    pub delayed: u64,
    /// Waiting for other deliveries of their group.
    pub waiting_for_group: u64,
    /// Leased by a worker.
    pub processing: u64,
    /// Processing deliveries by age: younger than each of [`PROCESSING_AGES`](crate::PROCESSING_AGES), and older.
    /// Each is counted once.
    pub processing_ages: [u64; 5],
    /// The age of the oldest ready delivery; zero if none is ready.
    pub oldest_ready: Duration,
}

/// The number of dead letters of one subscription, type and kind of reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetterCount {
    /// The subscription.
    pub subscription: String,
    /// The event type.
    pub event_type: String,
    /// The kind of reason.
    pub reason: DeadReason,
    /// The number of dead letters.
    pub count: u64,
}

/// A maintenance task, and whether it runs on time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MaintenanceOverview {
    /// The state of the task.
    pub view: MaintenanceTaskView,
    /// How long it has been due; zero if it is not due.
    pub overdue: Duration,
}

/// What a store counts in one namespace besides the backlog.
#[derive(Debug, Clone)]
pub(crate) struct Counts {
    /// The time of the counts.
    pub at: Timestamp,
    /// By subscription, type and reason, for the reasons in [`Reasons`].
    pub dead: Vec<DeadCount>,
    /// The earliest pending tick.
    pub next_tick: Option<Timestamp>,
    /// When the oldest arrival was published.
    pub oldest_arrival: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub(crate) struct DeadCount {
    pub subscription: String,
    pub event_type: String,
    /// One of the known reasons, the known prefix, or empty for all others.
    pub reason: String,
    pub count: u64,
}

/// The reasons that are counted separately: exact ones, and those with a prefix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reasons {
    pub known: [&'static str; 4],
    pub prefix: &'static str,
}

impl Queue {
    /// Returns the totals of all namespaces. It reads pending and processing deliveries and dead letters, but no
    /// history, with a few statements per namespace.
    pub async fn overview(&self) -> Result<Overview> {
        let mut namespaces = Vec::new();
        for namespace in self.store().namespaces().await? {
            let queue = self.in_namespace(&namespace.namespace)?;
            match queue.overview_of(namespace).await {
                Ok(overview) => namespaces.push(overview),
                // The namespace was removed in the meantime.
                Err(Error::NamespaceNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Overview { namespaces })
    }

    async fn overview_of(&self, namespace: Namespace) -> Result<NamespaceOverview> {
        let reasons = Reasons { known: DeadReason::KNOWN, prefix: NO_HANDLER };
        let live = self.store().backlog(self.namespace(), self.now()).await?;
        let counts = self.store().counts(self.namespace(), &reasons, self.now()).await?;
        let statuses: Vec<NodeStatus> = self.nodes().await?.iter().map(|node| node.status).collect();
        let nodes = |status| statuses.iter().filter(|found| **found == status).count() as u64;
        let tasks = self.store().maintenance_tasks(self.namespace()).await?.into_iter();
        Ok(NamespaceOverview {
            paused: namespace.paused,
            queues: self.queues(&live, counts.at),
            dead_letters: self.dead_letter_counts(&counts.dead),
            nodes_alive: nodes(NodeStatus::Alive),
            nodes_stale: nodes(NodeStatus::Stale),
            schedule_late: counts.next_tick.map_or(Duration::ZERO, |tick| since(tick, counts.at)),
            oldest_arrival: counts.oldest_arrival.map_or(Duration::ZERO, |arrival| since(arrival, counts.at)),
            tasks: tasks.map(|view| MaintenanceOverview { overdue: since(view.next_at, counts.at), view }).collect(),
            namespace: namespace.namespace,
        })
    }

    fn queues(&self, live: &[LiveCount], at: Timestamp) -> Vec<QueueOverview> {
        let mut queues: BTreeMap<(&str, &str), QueueOverview> = BTreeMap::new();
        for live in live {
            let event_type = self.core().metrics.type_label(self.namespace(), &live.event_type);
            queues.entry((&live.subscription, event_type)).or_default().add(live, at);
        }
        let named = queues.into_iter().map(|((subscription, event_type), queue)| QueueOverview {
            subscription: subscription.to_owned(),
            event_type: event_type.to_owned(),
            ..queue
        });
        named.collect()
    }

    fn dead_letter_counts(&self, dead: &[DeadCount]) -> Vec<DeadLetterCount> {
        let mut counts: BTreeMap<(&str, &str, DeadReason), u64> = BTreeMap::new();
        for dead in dead {
            let event_type = self.core().metrics.type_label(self.namespace(), &dead.event_type);
            let key = (dead.subscription.as_str(), event_type, DeadReason::from_text(&dead.reason));
            *counts.entry(key).or_default() += dead.count;
        }
        let named = counts.into_iter().map(|((subscription, event_type, reason), count)| DeadLetterCount {
            subscription: subscription.to_owned(),
            event_type: event_type.to_owned(),
            reason,
            count,
        });
        named.collect()
    }
}

impl QueueOverview {
    fn add(&mut self, live: &LiveCount, now: Timestamp) {
        self.ready += live.ready;
        self.delayed += live.delayed + live.retrying;
        self.waiting_for_group += live.waiting_for_group;
        self.processing += live.processing();
        self.processing_ages.iter_mut().zip(live.processing_ages).for_each(|(sum, more)| *sum += more);
        let oldest = live.ready_since.map_or(Duration::ZERO, |ready_since| since(ready_since, now));
        self.oldest_ready = self.oldest_ready.max(oldest);
    }
}

/// The time since `from`; zero if it is in the future.
fn since(from: Timestamp, now: Timestamp) -> Duration {
    (now - from).to_std().unwrap_or_default()
}
