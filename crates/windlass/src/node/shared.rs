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
use crate::busy::Busy;
use crate::claim::ClaimRequest;
use crate::error::Result;
use crate::queue::Queue;
use crate::register::NewNode;
use crate::wake::lock;

/// Where a pool takes from: a subscription, and the type if it is for one only.
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
    /// The same for types that have their own.
    pub of_type: BTreeMap<String, (usize, Arc<Semaphore>)>,
    /// The pools there are.
    pub pools: Mutex<HashSet<Place>>,
    /// Nothing more is taken.
    pub stopping: watch::Sender<bool>,
    /// What still runs is given up.
    pub abandoned: watch::Sender<bool>,
    /// Handlers came.
    pub changed: watch::Sender<()>,
    /// What is in hand, or about to be.
    pub busy: Busy,
}

impl Shared {
    pub fn producer(&self) -> Producer {
        Producer { queue: self.queue.clone(), node_id: self.node_id.clone() }
    }

    /// Makes the node known, with what it handles now.
    pub async fn register(&self) -> Result<()> {
        let registration = self.registration.clone().event_types(self.handlers.patterns(None));
        self.queue.register_node(registration).await.map(drop)
    }

    /// Counts how handlers ended.
    pub fn count_handled(&self, event: &Envelope, runs: &[Run]) {
        let ends = runs.iter().map(|run| (run.handler.as_str(), run.end()));
        self.queue.core().meter.handled(&event.0, ends);
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

    /// For each subscription one for each type that has slots of its own and a handler there, and one for all others.
    fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for subscription in self.handlers.subscriptions() {
            places.extend(self.types_apart(&subscription).map(|event_type| (subscription.clone(), Some(event_type))));
            places.push((subscription, None));
        }
        places
    }

    fn types_apart(&self, subscription: &str) -> impl Iterator<Item = String> {
        let handled = |event_type: &&String| !self.handlers.of(subscription, event_type).is_empty();
        self.of_type.keys().filter(handled).cloned()
    }

    fn pool(self: &Arc<Shared>, (subscription, only): Place) -> Arc<Pool> {
        let of_type = only.as_ref().and_then(|event_type| self.of_type.get(event_type));
        let size = of_type.map_or(self.concurrency, |(size, _)| *size.min(&self.concurrency));
        let slots = of_type.map(|(_, slots)| slots.clone());
        Arc::new(Pool { node: self.clone(), subscription, only, slots, size, load: Load::default() })
    }

    /// What a pool asks for.
    pub fn request(&self, pool: &Pool) -> ClaimRequest {
        let request = ClaimRequest::new(&*self.node_id).subscription(&pool.subscription);
        match &pool.only {
            Some(event_type) => request.types([event_type]),
            None if self.leave_unhandled => {
                let handled = self.handlers.patterns(Some(&pool.subscription));
                request.types(handled).except_types(self.types_apart(&pool.subscription))
            }
            None => request.except_types(self.types_apart(&pool.subscription)),
        }
    }
}

async fn wait_for(signal: &watch::Sender<bool>) {
    // The sender is ours: it does not go away.
    let _ = signal.subscribe().wait_for(|signalled| *signalled).await;
}
