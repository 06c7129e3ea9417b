//! Direct handoff: an event that is published while a claim waits for it is stored as claimed, in the same commit, and
//! given to that claim without a claim statement.
//!
//! A claimer offers its first waiting request as a [`HandoffSlot`]. Publishing knows only this module; the slot carries
//! what to do with the deliveries.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::busy::Piece;
use crate::clock::after;
use crate::delivery::Delivery;
use crate::publish::finish;
use crate::queue::Core;
use crate::store::{ClaimSlot, HandoffLease, LeaseTimes, NewDelivery, Prepared, Stored};
use crate::topology::Topology;
use crate::wake::ReadyLane;

/// A waiting request that a publisher may serve.
pub(crate) struct HandoffSlot {
    pub slot: ClaimSlot,
    pub subscription_id: i64,
    /// The namespace's version that the claimer knows. A pause or a changed policy shows in it.
    pub version: i64,
    /// The lanes that are wanted, sorted; `None`: all.
    pub lanes: Option<Arc<[i64]>>,
    pub leases: LeaseTimes,
    /// Gets the deliveries; `None`: the request goes on waiting.
    pub deliver: Box<dyn FnOnce(Option<Vec<Delivery>>) + Send>,
}

impl HandoffSlot {
    fn wants(&self, delivery: &NewDelivery) -> bool {
        delivery.subscription_id == self.subscription_id
            && self.lanes.as_ref().is_none_or(|lanes| lanes.binary_search(&delivery.lane_id).is_ok())
    }
}

/// The requests that one publish serves. If it is dropped before it is completed, they go on waiting.
pub(crate) struct Handoff {
    slots: Vec<HandoffSlot>,
    _busy: Piece,
}

impl Handoff {
    /// Assigns deliveries of these events to waiting requests. `None` if no request waits for them.
    pub fn begin(core: &Core, topology: &Topology, prepared: &mut [Prepared]) -> Option<Handoff> {
        // A batch with keys or groups may have to wait for a caller's transaction. No claim must wait with it.
        if !prepared.iter().all(|prepared| prepared.event.key.is_none() && prepared.event.group_id.is_none()) {
            return None;
        }
        let ready: HashSet<ReadyLane> = prepared
            .iter()
            .filter(|prepared| is_ready_without_deadline(prepared))
            .flat_map(|prepared| prepared.deliveries.iter().map(NewDelivery::ready_lane))
            .collect();
        let ready: Vec<ReadyLane> = ready.into_iter().collect();
        let slots = core.wakes.take_handoffs(&topology.namespace.namespace, &ready);
        if slots.is_empty() {
            return None;
        }
        for slot in slots.iter().filter(|slot| slot.version == topology.version) {
            assign(slot, prepared);
        }
        Some(Handoff { slots, _busy: core.busy.begin() })
    }

    /// Gives the stored deliveries to the requests that they were assigned to.
    pub fn complete(mut self, namespace: &str, prepared: &[Prepared], stored: &[Stored]) {
        let mut of_lease: HashMap<i64, Vec<Delivery>> = HashMap::new();
        for (prepared, stored) in prepared.iter().zip(stored) {
            for delivery in &prepared.deliveries {
                if let Some(lease) = &delivery.claimed_by {
                    let delivery = claimed(namespace, prepared, *stored, delivery, lease);
                    of_lease.entry(lease.lease.0).or_default().push(delivery);
                }
            }
        }
        for slot in self.slots.drain(..) {
            let deliveries = of_lease.remove(&slot.slot.lease.0);
            (slot.deliver)(deliveries);
        }
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        self.slots.drain(..).for_each(|slot| (slot.deliver)(None));
    }
}

/// Assigns up to as many deliveries as the request wants, higher priorities first.
fn assign(slot: &HandoffSlot, prepared: &mut [Prepared]) {
    let ready = prepared.iter_mut().filter(|prepared| is_ready_without_deadline(prepared));
    let mut wanted: Vec<(i16, &str, &mut NewDelivery)> = ready
        .flat_map(|prepared| {
            let Prepared { event, deliveries, .. } = prepared;
            deliveries.iter_mut().map(|delivery| (event.priority, event.event_type.as_str(), delivery))
        })
        .filter(|(_, _, delivery)| delivery.claimed_by.is_none() && slot.wants(delivery))
        .collect();
    wanted.sort_by_key(|(priority, ..)| std::cmp::Reverse(*priority));
    for (_, event_type, delivery) in wanted.into_iter().take(slot.slot.max) {
        let ClaimSlot { lease, worker_id, .. } = &slot.slot;
        let duration = slot.leases.of_type(event_type);
        delivery.claimed_by = Some(HandoffLease { lease: *lease, worker_id: worker_id.clone(), duration });
    }
}

/// Whether nothing stands between storing the event and processing it.
fn is_ready_without_deadline(prepared: &Prepared) -> bool {
    let event = &prepared.event;
    let ready = event.run_at.is_none() && event.delay.is_none();
    ready && event.expires_at.is_none() && prepared.expires_in.is_none()
}

fn claimed(namespace: &str, prepared: &Prepared, stored: Stored, new: &NewDelivery, lease: &HandoffLease) -> Delivery {
    Delivery {
        event: finish(prepared.clone(), stored, namespace).event,
        subscription: new.subscription.clone(),
        worker_id: lease.worker_id.clone(),
        lease: lease.lease,
        attempts: 1,
        retry_count: 0,
        max_retries: new.max_retries,
        picked_at: stored.created_at,
        lease_expires_at: after(stored.created_at, lease.duration),
        subscription_id: new.subscription_id,
        lane_id: new.lane_id,
        attempts_limit: new.attempts_limit,
    }
}
