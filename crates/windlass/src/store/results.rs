//! Results of single handlers of a delivery.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::queue::handler_results::InterimResult;
use crate::queue::outcome::HandlerResult;

#[async_trait]
pub(crate) trait ResultStore {
    /// Stores each result whose delivery still has its lease. Returns which ones. A call has at most one result for each
    /// delivery and handler.
    async fn store_handler_results(
        &self,
        namespace: &str,
        results: &[InterimResult],
        now: Option<Timestamp>,
    ) -> Result<Vec<bool>>;

    /// The stored handler results of each delivery, ordered by handler.
    async fn handler_results(&self, namespace: &str, live: &[LiveDelivery]) -> Result<Vec<Vec<HandlerResult>>>;
}
