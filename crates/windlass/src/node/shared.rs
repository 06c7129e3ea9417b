//! What the parts of a running node share.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, watch};

use super::context::Producer;
use super::envelope::Envelope;
use super::hand::Hand;
use super::handlers::Handlers;
use super::pool::{Load, Pool};
use super::verdict::Run;
use crate::claim::ClaimRequest;
use crate::error::Result;
use crate::event::names;
use crate::node::registry::NewNode;
use crate::policy::Policy;
use crate::queue::Queue;
use crate::queue::busy::InFlight;
use crate::queue::wake::lock;

/// What a pool claims: a subscription, and the type pattern if the pool has a concurrency limit of its own.
pub(super) type Place = (String, Option<String>);

pub(super) struct Shared {
    pub queue: Queue,
    pub node_id: Arc<str>,
    pub registration: NewNode,
    pub handlers: Handlers,
    /// Whether types without a handler are left to others.
    pub leave_unhandled: bool,
    pub hand: Hand,
    /// How many events may be handled at once, and a slot for each.
    pub concurrency: usize,
    pub slots: Arc<Semaphore>,
    /// One of them became free.
    pub freed: Notify,
    /// How many consecutive events of a group are claimed together.
    pub group_run: usize,
    /// Concurrency limits by type pattern, with a slot for each event that may run at once.
    pub type_limits: BTreeMap<String, (usize, Arc<Semaphore>)>,
    /// The pools there are.
    pub pools: Mutex<HashSet<Place>>,
    /// Nothing more is taken.
    pub stopping: watch::Sender<bool>,
    /// What still runs is given up.
    pub abandoned: watch::Sender<bool>,
    /// Handlers came.
    pub changed: watch::Sender<()>,
    /// What is in hand, or about to be.
    pub busy: InFlight,
}

impl Shared {
    pub fn producer(&self) -> Producer {
        Producer { queue: self.queue.clone(), node_id: self.node_id.clone() }
    }

    /// The policy for the delivery's subscription and type.
    pub async fn policy_for(&self, event: &Envelope) -> Result<Policy> {
        Ok(self.queue.topology().await?.policy(event.subscription(), &event.event_type))
    }

    /// Makes the node known, with what it handles now.
    pub async fn register(&self) -> Result<()> {
        let registration = self.registration.clone().event_types(self.handlers.patterns(None));
        self.queue.register_node(registration).await.map(drop)
    }

    /// Counts how handlers ended.
    pub fn count_handled(&self, event: &Envelope, runs: &[Run]) {
        let ends = runs.iter().map(|run| (run.handler.as_str(), run.end()));
        self.queue.core().metrics.handled(&event.0, ends);
    }

    /// Whether a handler of the event commits by itself.
    pub fn has_transactions(&self, event: &Envelope) -> bool {
        self.handlers.of(event.subscription(), &event.event_type).iter().any(|handler| !handler.is_plain())
    }

    pub fn stops(&self) -> bool {
        *self.stopping.borrow()
    }

    pub async fn is_stopping(&self) {
        wait_for(&self.stopping).await;
    }

    pub async fn is_abandoned(&self) {
        wait_for(&self.abandoned).await;
    }

    /// The pools that the handlers need and that are not there yet.
    pub fn new_pools(self: &Arc<Shared>) -> Vec<Arc<Pool>> {
        let mut known = lock(&self.pools);
        let new = self.places().into_iter().filter(|place| known.insert(place.clone()));
        new.map(|place| self.pool(place)).collect()
    }

    /// For each subscription, one pool for each limited type pattern that has a handler there, and one pool for all
    /// other types.
    fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for subscription in self.handlers.subscriptions() {
            let limited = self.limited_patterns(&subscription);
            // A limit on `*` leaves no other types.
            let all_limited = limited.iter().any(|pattern| pattern == "*");
            places.extend(limited.into_iter().map(|pattern| (subscription.clone(), Some(pattern))));
            if !all_limited {
                places.push((subscription, None));
            }
        }
        places
    }

    /// The type patterns that have a concurrency limit and at least one handler for the subscription.
    fn limited_patterns(&self, subscription: &str) -> Vec<String> {
        let handled = self.handlers.patterns(Some(subscription));
        let has_handler = |limited: &&String| handled.iter().any(|h| names::pattern_intersection(h, limited).is_some());
        self.type_limits.keys().filter(has_handler).cloned().collect()
    }

    fn pool(self: &Arc<Shared>, (subscription, limited): Place) -> Arc<Pool> {
        let limit = limited.as_ref().and_then(|pattern| self.type_limits.get(pattern));
        let size = limit.map_or(self.concurrency, |(size, _)| *size.min(&self.concurrency));
        let slots = limit.map(|(_, slots)| slots.clone());
        Arc::new(Pool { node: self.clone(), subscription, limited, slots, size, load: Load::default() })
    }

    /// What a pool claims: the types of its pattern, without those that a more specific limit covers.
    pub fn request(&self, pool: &Pool) -> ClaimRequest {
        let request = ClaimRequest::new(&*self.node_id).subscription(&pool.subscription);
        let pattern = pool.limited.as_deref().unwrap_or("*");
        let mut others = self.limited_patterns(&pool.subscription);
        others.retain(|other| pool.limited.as_ref() != Some(other) && names::pattern_covers(pattern, other));
        let types = match (self.leave_unhandled, &pool.limited) {
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

async fn wait_for(signal: &watch::Sender<bool>) {
    // The sender is ours: it does not go away.
    let _ = signal.subscribe().wait_for(|signalled| *signalled).await;
}
