//! What the parts of a running node share.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, watch};

use super::context::Producer;
use super::hand::Hand;
use super::handlers::Handlers;
use super::pool::{Load, Pool};
use crate::busy::Busy;
use crate::claim::ClaimRequest;
use crate::error::Result;
use crate::queue::Queue;
use crate::register::NewNode;
use crate::wake::lock;

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
    /// The pools there are, by subscription.
    pub pools: Mutex<HashSet<String>>,
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
        let new = self.handlers.subscriptions().into_iter().filter(|subscription| known.insert(subscription.clone()));
        new.flat_map(|subscription| self.pools_of(&subscription)).collect()
    }

    /// One for each type that has slots of its own, and one for all others.
    pub fn pools_of(self: &Arc<Shared>, subscription: &str) -> Vec<Arc<Pool>> {
        let pool = |only: Option<&String>, slots: Option<Arc<Semaphore>>, size| {
            let (node, subscription, load) = (self.clone(), subscription.to_owned(), Load::default());
            Arc::new(Pool { node, subscription, only: only.cloned(), slots, size, load })
        };
        let of_types = self.of_type.iter();
        let of_types = of_types.map(|(event_type, (size, slots))| pool(Some(event_type), Some(slots.clone()), *size));
        of_types.chain([pool(None, None, self.concurrency)]).collect()
    }

    /// What a pool asks for.
    pub fn request(&self, pool: &Pool) -> ClaimRequest {
        let request = ClaimRequest::new(&*self.node_id).subscription(&pool.subscription);
        match &pool.only {
            Some(event_type) => request.types([event_type]),
            None if self.leave_unhandled => {
                request.types(self.handlers.patterns(Some(&pool.subscription))).except_types(self.of_type.keys())
            }
            None => request.except_types(self.of_type.keys()),
        }
    }
}

async fn wait_for(signal: &watch::Sender<bool>) {
    // The sender is ours: it does not go away.
    let _ = signal.subscribe().wait_for(|signalled| *signalled).await;
}
