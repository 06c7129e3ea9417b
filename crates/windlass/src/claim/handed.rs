//! Deliveries on their way from the claimer to who asked: none gets lost where nobody is there any more.

use std::sync::Arc;

use crate::change::{apply_counted, change};
use crate::decide::give_back;
use crate::delivery::Delivery;
use crate::outcome::Action;
use crate::queue::Core;
use crate::store::{Change, Guard};
use crate::topology::Topology;

/// Deliveries on their way to who asked. Dropped before they are kept, others may have them at once.
pub(super) struct Handed {
    pub deliveries: Vec<Delivery>,
    pub core: Arc<Core>,
    pub topology: Option<Arc<Topology>>,
}

impl Handed {
    pub fn keep(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let (deliveries, Some(topology)) = (std::mem::take(&mut self.deliveries), self.topology.take()) else { return };
        let (core, Ok(runtime)) = (self.core.clone(), tokio::runtime::Handle::try_current()) else { return };
        if !deliveries.is_empty() {
            let busy = core.busy.begin();
            runtime.spawn(async move {
                give_back_all(core, topology, deliveries).await;
                drop(busy);
            });
        }
    }
}

async fn give_back_all(core: Arc<Core>, topology: Arc<Topology>, deliveries: Vec<Delivery>) {
    let released = |delivery: &Delivery| {
        change(&topology, delivery.live(), Guard::Lease(delivery.lease), (Action::Released, give_back()))
    };
    let changes: Vec<Change> = deliveries.iter().map(released).collect();
    if let Err(error) = apply_counted(&core, &topology.namespace.namespace, &changes).await {
        tracing::warn!(%error, "could not give back deliveries; they come back when their lease runs out");
    }
}
