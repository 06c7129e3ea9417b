//! A node that handles events when it is told to.

use std::sync::Arc;
use std::time::Duration;

use super::pool::Pool;
use super::shared::Shared;
use crate::error::Result;

pub(crate) struct ByHand(pub(super) Arc<Shared>);

impl ByHand {
    /// Handles whatever is ready, and whatever becomes ready by that, until nothing is; how many it took.
    pub async fn run_until_idle(&self) -> Result<usize> {
        let pools: Vec<Arc<Pool>> =
            self.0.handlers.subscriptions().iter().flat_map(|subscription| self.0.pools_of(subscription)).collect();
        let mut handled = 0;
        loop {
            let before = handled;
            for pool in &pools {
                handled += pool.take(pool.size, Duration::ZERO).await?;
                self.0.busy.idle().await;
            }
            if handled == before {
                return Ok(handled);
            }
        }
    }
}
