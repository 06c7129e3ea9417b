//! Requests that wait, laid out for publishers: what is published for one of them is held for it in the same commit, and
//! handed to it without a claim.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::WeakUnboundedSender;

use super::asking::Ask;
use super::handed::Handed;
use crate::busy::Piece;
use crate::clock::after;
use crate::delivery::Delivery;
use crate::publish::finish;
use crate::queue::Core;
use crate::store::{Hold, NewDelivery, Prepared, Stored};
use crate::topology::Topology;

/// A request that waits.
pub(crate) struct Offer {
    pub(super) ask: Ask,
    pub(super) turn: u64,
    pub(super) wants: Arc<Wants>,
    /// Where it goes if nothing comes of it.
    pub(super) home: WeakUnboundedSender<Ask>,
}

/// What a claimer's requests are about.
pub(super) struct Wants {
    pub topology: Arc<Topology>,
    pub subscription: String,
    /// For how long a delivery is held, by its lane.
    pub leases: HashMap<i64, Duration>,
}

/// The requests that a publish serves. Dropped before that is done, they wait on.
pub(crate) struct Served {
    core: Arc<Core>,
    offers: Vec<Offer>,
    _busy: Piece,
}

impl Served {
    /// Holds deliveries for those who wait for them. `None`: nobody does.
    pub fn begin(core: &Arc<Core>, namespace: &str, topology: &Topology, prepared: &mut [Prepared]) -> Option<Served> {
        // Under a test clock every claim is exact. And a batch with keys or groups may have to wait for somebody's
        // transaction: no claim shall wait with it.
        if core.clock.overridden().is_some() || !prepared.iter().all(waits_for_nobody) {
            return None;
        }
        let lanes = prepared.iter().filter(|prepared| is_ready(prepared)).flat_map(|prepared| &prepared.deliveries);
        let mut lanes: Vec<i64> = lanes.map(|delivery| delivery.lane_id).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let offers = core.wakes.offers(namespace, &lanes);
        if offers.is_empty() {
            return None;
        }
        let served = Served { core: core.clone(), offers, _busy: core.busy.begin() };
        served.hold(topology, prepared);
        Some(served)
    }

    fn hold(&self, topology: &Topology, prepared: &mut [Prepared]) {
        for offer in &self.offers {
            // A lane that is paused meanwhile, or a policy that changed, shows in the version.
            if offer.wants.topology.version != topology.version || offer.ask.reply.is_closed() {
                continue;
            }
            let ready = prepared.iter_mut().filter(|prepared| is_ready(prepared));
            let free = ready.flat_map(|prepared| &mut prepared.deliveries).filter(|delivery| delivery.hold.is_none());
            let wanted = free.filter_map(|delivery| {
                let lease = offer.wants.leases.get(&delivery.lane_id)?;
                Some((delivery, *lease))
            });
            for (delivery, lease) in wanted.take(offer.ask.slot.max) {
                delivery.hold = Some(offer.hold(lease));
            }
        }
    }

    /// Hands over what was stored for them.
    pub fn complete(mut self, namespace: &str, prepared: &[Prepared], stored: &[Stored]) {
        let offers = std::mem::take(&mut self.offers);
        let mut handed: HashMap<i64, Vec<Delivery>> = HashMap::new();
        for (prepared, stored) in prepared.iter().zip(stored) {
            for delivery in &prepared.deliveries {
                if let Some(hold) = &delivery.hold {
                    let delivery = held(namespace, prepared, *stored, delivery, hold);
                    handed.entry(hold.lease.0).or_default().push(delivery);
                }
            }
        }
        for offer in offers {
            match handed.remove(&offer.ask.slot.lease.0) {
                Some(deliveries) => offer.answer(&self.core, namespace, deliveries),
                None => offer.go_home(),
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.offers.drain(..).for_each(Offer::go_home);
    }
}

impl Offer {
    fn hold(&self, lease_for: Duration) -> Hold {
        Hold { lease: self.ask.slot.lease, worker_id: self.ask.slot.worker_id.clone(), lease_for }
    }

    fn answer(self, core: &Arc<Core>, namespace: &str, deliveries: Vec<Delivery>) {
        let wants = &self.wants;
        core.count_claimed(&wants.topology, namespace, &wants.subscription, &deliveries);
        let handed = Handed { deliveries, core: core.clone(), topology: Some(wants.topology.clone()) };
        self.ask.answer(Ok(handed));
    }

    /// A claimer that has ended meanwhile is asked for anew by whoever waits.
    fn go_home(self) {
        if let Some(home) = self.home.upgrade() {
            let _ = home.send(self.ask);
        }
    }
}

/// Whether nothing stands between storing the event and handling it.
fn is_ready(prepared: &Prepared) -> bool {
    let event = &prepared.event;
    let at_once = event.run_at.is_none() && event.delay.is_none();
    let forever = event.expires_at.is_none() && prepared.expires_in.is_none();
    at_once && forever
}

fn waits_for_nobody(prepared: &Prepared) -> bool {
    prepared.event.key.is_none() && prepared.event.group_id.is_none()
}

fn held(namespace: &str, prepared: &Prepared, stored: Stored, new: &NewDelivery, hold: &Hold) -> Delivery {
    Delivery {
        event: finish(prepared.clone(), stored, namespace).event,
        subscription: new.subscription.clone(),
        worker_id: hold.worker_id.clone(),
        lease: hold.lease,
        attempts: 1,
        retry_count: 0,
        max_retries: new.max_retries,
        picked_at: stored.created_at,
        lease_expires_at: after(stored.created_at, hold.lease_for),
        lane_id: new.lane_id,
        attempts_limit: new.attempts_limit,
    }
}
