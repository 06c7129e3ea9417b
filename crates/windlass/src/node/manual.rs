//! A node that handles events only when [`ManualNode::run_until_idle`] is called. For tests.

use std::sync::Arc;
use std::time::Duration;

use super::pool::WorkerPool;
use super::state::NodeState;
use crate::error::Result;

pub(crate) struct ManualNode {
    state: Arc<NodeState>,
    pools: Vec<Arc<WorkerPool>>,
}

impl ManualNode {
    pub(super) fn new(state: Arc<NodeState>) -> ManualNode {
        let pools = state.create_missing_pools();
        ManualNode { state, pools }
    }

    /// Handles ready deliveries, and those that become ready while they are handled, until none is left. Returns how
    /// many it handled.
    pub async fn run_until_idle(&self) -> Result<usize> {
        let mut handled = 0;
        let max = self.state.queue.limits().claim_batch_max;
        loop {
            let before = handled;
            for pool in &self.pools {
                handled += pool.claim_and_start(pool.concurrency.min(max), Duration::ZERO).await?;
                self.state.in_flight.wait_until_idle().await;
            }
            if handled == before {
                return Ok(handled);
            }
        }
    }
}
