//! How much there is of everything at this moment, in all namespaces: what monitoring shows as gauges.

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

/// Everything that is live or dead at this moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    /// By name.
    pub namespaces: Vec<NamespaceOverview>,
}

/// The same, of one namespace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamespaceOverview {
    /// Which.
    pub namespace: String,
    /// Nothing of it is handed out.
    pub paused: bool,
    /// What is live, by subscription and type. Types beyond [`Limits::metric_types_max`](crate::Limits::metric_types_max)
    /// are together as `other`.
    pub queues: Vec<QueueOverview>,
    /// Dead letters, by subscription, type and kind of reason; those there are.
    pub dead_letters: Vec<DeadLetterCount>,
    /// Nodes that were heard of lately.
    pub nodes_alive: u64,
    /// Nodes that were not, and did not say that they stop.
    pub nodes_stale: u64,
    /// For how long the schedule has been due that is due for longest.
    pub schedule_late: Duration,
    /// For how long the oldest event that was published in a transaction has waited to be routed; zero where none waits.
    pub oldest_arrival: Duration,
    /// What is known of its upkeep.
    pub tasks: Vec<MaintenanceOverview>,
}

/// The live deliveries of one subscription and type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QueueOverview {
    /// Whose they are.
    pub subscription: String,
    /// The type of their events.
    pub event_type: String,
    /// To be taken now.
    pub ready: u64,
    /// To be taken later: at their time, or after a failure.
    pub delayed: u64,
    /// Behind others of their group.
    pub waiting_for_group: u64,
    /// LeasedEvent by a worker.
    pub processing: u64,
    /// Of those, by how long they have been held: less than each of [`PROCESSING_AGES`](crate::PROCESSING_AGES), and
    /// longer. Each is counted once.
    pub processing_ages: [u64; 5],
    /// For how long the one has been ready that has been so for longest; zero where none is.
    pub oldest_ready: Duration,
}

/// How many dead letters there are for a kind of reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetterCount {
    /// Whose deliveries they were.
    pub subscription: String,
    /// The type of their events.
    pub event_type: String,
    /// Why they were given up.
    pub reason: DeadReason,
    /// How many.
    pub count: u64,
}

/// A piece of upkeep, and whether it is done in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MaintenanceOverview {
    /// What is on record of it.
    pub view: MaintenanceTaskView,
    /// For how long it has been due; zero where it is not.
    pub overdue: Duration,
}

/// What a store counts in one namespace, beside what is live.
#[derive(Debug, Clone)]
pub(crate) struct Counts {
    /// As of this instant.
    pub at: Timestamp,
    /// By subscription, type and reason, as far as the reason is one that was asked about.
    pub dead: Vec<DeadCount>,
    /// The earliest tick that has not happened yet.
    pub next_tick: Option<Timestamp>,
    /// When the first event was published that is not routed yet.
    pub oldest_arrival: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub(crate) struct DeadCount {
    pub subscription: String,
    pub event_type: String,
    /// One of the reasons asked about, the beginning that was asked about, or nothing.
    pub reason: String,
    pub count: u64,
}

/// The reasons that dead letters are told apart by: these, and what begins so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reasons {
    pub known: [&'static str; 4],
    pub beginning: &'static str,
}

impl Queue {
    /// How much there is of everything, in all namespaces. It reads what is live and the dead letters, never the history,
    /// in a few statements for each namespace.
    pub async fn overview(&self) -> Result<Overview> {
        let mut namespaces = Vec::new();
        for namespace in self.store().namespaces().await? {
            let queue = self.in_namespace(&namespace.namespace)?;
            match queue.overview_of(namespace).await {
                Ok(overview) => namespaces.push(overview),
                // It was removed meanwhile.
                Err(Error::NamespaceNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Overview { namespaces })
    }

    async fn overview_of(&self, namespace: Namespace) -> Result<NamespaceOverview> {
        let reasons = Reasons { known: DeadReason::KNOWN, beginning: NO_HANDLER };
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
            let event_type = self.core().metrics.name_of(self.namespace(), &live.event_type);
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
            let event_type = self.core().metrics.name_of(self.namespace(), &dead.event_type);
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

/// Nothing where it lies ahead.
fn since(from: Timestamp, now: Timestamp) -> Duration {
    (now - from).to_std().unwrap_or_default()
}
