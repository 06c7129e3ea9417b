//! The state that the parts of a running node share, and which pools it needs.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, watch};

use super::context::Producer;
use super::envelope::Envelope;
use super::handlers::Handlers;
use super::leases::LeasedDeliveries;
use super::pool::{PoolLoad, WorkerPool};
use super::report::HandlerRun;
use crate::claim::ClaimRequest;
use crate::error::Result;
use crate::event::names;
use crate::node::registry::NewNode;
use crate::policy::Policy;
use crate::queue::Queue;
use crate::queue::in_flight::InFlight;
use crate::queue::wake::lock;

/// What a pool claims: a subscription, and a type pattern if the pool has its own concurrency limit.
pub(super) type PoolKey = (String, Option<String>);

pub(super) struct NodeState {
    pub queue: Queue,
    pub node_id: Arc<str>,
    pub registration: NewNode,
    pub handlers: Handlers,
    /// Whether events without a handler are left to other nodes.
    pub leave_unhandled: bool,
    pub leases: LeasedDeliveries,
    /// How many events the node handles concurrently; `slots` has one permit for each.
    pub concurrency: usize,
    pub slots: Arc<Semaphore>,
    /// Notified when a handler has finished and its slots are free again.
    pub slots_freed: Notify,
    /// How many consecutive events of a group are claimed together.
    pub group_run: usize,
    /// Concurrency limits by type pattern, each with a semaphore of that many permits.
    pub type_limits: BTreeMap<String, (usize, Arc<Semaphore>)>,
    /// The pools that have been created.
    pub pools: Mutex<HashSet<PoolKey>>,
    /// The node claims no more deliveries.
    pub stopping: watch::Sender<bool>,
    /// Handlers that still run are aborted and their deliveries released.
    pub abandoned: watch::Sender<bool>,
    /// Handlers were added.
    pub handlers_changed: watch::Sender<()>,
    /// Deliveries that are being handled or claimed.
    pub in_flight: InFlight,
}

impl NodeState {
    pub fn producer(&self) -> Producer {
        Producer { queue: self.queue.clone(), node_id: self.node_id.clone() }
    }

    /// The policy for the delivery's subscription and type.
    pub async fn policy_for(&self, event: &Envelope) -> Result<Policy> {
        Ok(self.queue.topology().await?.policy(event.subscription(), &event.event_type))
    }

    /// Registers the node with the event types it handles now.
    pub async fn register(&self) -> Result<()> {
        let registration = self.registration.clone().event_types(self.handlers.patterns(None));
        self.queue.register_node(registration).await.map(drop)
    }

    /// Counts handler results in the metrics.
    pub fn count_handled(&self, event: &Envelope, runs: &[HandlerRun]) {
        let ends = runs.iter().map(|run| (run.handler.as_str(), run.end()));
        self.queue.core().metrics.handled(&event.0, ends);
    }

    /// Whether the event has a handler that runs in a transaction.
    pub fn has_transactional_handler(&self, event: &Envelope) -> bool {
        self.handlers.find(event.subscription(), &event.event_type).iter().any(|handler| !handler.is_plain())
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub async fn wait_until_stopping(&self) {
        wait_until_set(&self.stopping).await;
    }

    pub async fn wait_until_abandoned(&self) {
        wait_until_set(&self.abandoned).await;
    }

    /// Creates the pools that the handlers need and that do not exist yet.
    pub fn create_missing_pools(self: &Arc<NodeState>) -> Vec<Arc<WorkerPool>> {
        let mut existing = lock(&self.pools);
        let missing = self.pool_keys().into_iter().filter(|key| existing.insert(key.clone()));
        missing.map(|key| self.create_pool(key)).collect()
    }

    /// For each subscription, one pool for each limited type pattern that has a handler there, and one pool for all
    /// other types.
    fn pool_keys(&self) -> Vec<PoolKey> {
        let mut keys = Vec::new();
        for subscription in self.handlers.subscriptions() {
            let limited = self.limited_patterns(&subscription);
            // A limit on `*` covers all types: no other pool is needed.
            let all_limited = limited.iter().any(|pattern| pattern == "*");
            keys.extend(limited.into_iter().map(|pattern| (subscription.clone(), Some(pattern))));
            if !all_limited {
                keys.push((subscription, None));
            }
        }
        keys
    }

    /// The type patterns that have a concurrency limit and at least one handler for the subscription.
    fn limited_patterns(&self, subscription: &str) -> Vec<String> {
        let handled = self.handlers.patterns(Some(subscription));
        let has_handler = |limited: &&String| handled.iter().any(|h| names::pattern_intersection(h, limited).is_some());
        self.type_limits.keys().filter(has_handler).cloned().collect()
    }

    fn create_pool(self: &Arc<NodeState>, (subscription, limited_type): PoolKey) -> Arc<WorkerPool> {
        let limit = limited_type.as_ref().and_then(|pattern| self.type_limits.get(pattern));
        let concurrency = limit.map_or(self.concurrency, |(max, _)| *max.min(&self.concurrency));
        let type_slots = limit.map(|(_, slots)| slots.clone());
        Arc::new(WorkerPool {
            node: self.clone(),
            subscription,
            limited_type,
            type_slots,
            concurrency,
            load: PoolLoad::default(),
        })
    }

    /// The claim request of a pool: the types of its pattern, except those that a more specific limit covers.
    pub fn claim_request(&self, pool: &WorkerPool) -> ClaimRequest {
        let request = ClaimRequest::new(&*self.node_id).subscription(&pool.subscription);
        let pattern = pool.limited_type.as_deref().unwrap_or("*");
        let mut others = self.limited_patterns(&pool.subscription);
        others.retain(|other| pool.limited_type.as_ref() != Some(other) && names::pattern_covers(pattern, other));
        let types = match (self.leave_unhandled, &pool.limited_type) {
            (true, _) => {
                let handled = self.handlers.patterns(Some(&pool.subscription));
                let both = handled.iter().filter_map(|handled| names::pattern_intersection(handled, pattern));
                both.map(str::to_owned).collect()
            }
            (false, Some(limited)) => vec![limited.clone()],
            (false, None) => Vec::new(),
        };
        request.types(types).except_types(others)
    }
}

async fn wait_until_set(signal: &watch::Sender<bool>) {
    // This cannot fail: the caller owns the sender.
    let _ = signal.subscribe().wait_for(|signalled| *signalled).await;
}
