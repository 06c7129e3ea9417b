//! A node that handles events when it is told to.

use std::sync::Arc;
use std::time::Duration;

use super::pool::Pool;
use super::shared::Shared;
use crate::error::Result;

pub(crate) struct ByHand(Arc<Shared>, Vec<Arc<Pool>>);

impl ByHand {
    pub(super) fn new(shared: Arc<Shared>) -> ByHand {
        let pools = shared.new_pools();
        ByHand(shared, pools)
    }

    /// Handles whatever is ready, and whatever becomes ready by that, until nothing is; how many it took.
    pub async fn run_until_idle(&self) -> Result<usize> {
        let (pools, mut handled) = (&self.1, 0);
        let max = self.0.queue.limits().claim_batch_max;
        loop {
            let before = handled;
            for pool in pools {
                handled += pool.take(pool.size.min(max), Duration::ZERO).await?;
                self.0.busy.idle().await;
            }
            if handled == before {
                return Ok(handled);
            }
        }
    }
}
