//! Deliveries on their way from the claimer to the caller. If the caller drops its claim, they are released.

use std::sync::Arc;

use crate::event::delivery::Delivery;
use crate::queue::Core;
use crate::queue::change::{apply_counted, change};
use crate::queue::decide::release_transition;
use crate::queue::outcome::Action;
use crate::store::{ChangeGuard, DeliveryChange};
use crate::topology::Topology;

/// Claimed deliveries that the caller has not received yet. Dropping this value releases them.
pub(super) struct Undelivered {
    pub deliveries: Vec<Delivery>,
    pub core: Arc<Core>,
    pub topology: Option<Arc<Topology>>,
}

impl Undelivered {
    /// Passes the deliveries to the caller.
    pub fn into_received(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let (deliveries, Some(topology)) = (std::mem::take(&mut self.deliveries), self.topology.take()) else { return };
        let (core, Ok(runtime)) = (self.core.clone(), tokio::runtime::Handle::try_current()) else { return };
        if !deliveries.is_empty() {
            let in_flight = core.in_flight.begin();
            runtime.spawn(async move {
                release(core, topology, deliveries).await;
                drop(in_flight);
            });
        }
    }
}

async fn release(core: Arc<Core>, topology: Arc<Topology>, deliveries: Vec<Delivery>) {
    let released = |delivery: &Delivery| {
        change(delivery.live(), ChangeGuard::Lease(delivery.lease), (Action::Released, release_transition()))
    };
    let changes: Vec<DeliveryChange> = deliveries.iter().map(released).collect();
    if let Err(error) = apply_counted(&core, &topology.namespace.namespace, &changes).await {
        tracing::warn!(%error, "could not release deliveries that no caller received; their leases will expire");
    }
}
