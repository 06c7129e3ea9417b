//! Deliveries of past events for a new subscription.

use std::sync::Arc;

use async_trait::async_trait;

use super::NewDelivery;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::Event;
use crate::topology::Subscription;

/// A page of past events that a new subscription may match.
#[derive(Debug, Clone)]
pub(crate) struct PastEvents {
    pub events: Vec<Event>,
    /// The id at which the next page begins; `None` after the last page.
    pub next: Option<i64>,
}

#[async_trait]
pub(crate) trait BackfillStore {
    /// Up to `limit` events with an id of at least `from` that were published between the subscription's start and its
    /// creation, ordered by id.
    async fn past_events(&self, namespace: &str, of: &Subscription, from: i64, limit: usize) -> Result<PastEvents>;

    /// Adds deliveries of stored events and records the next id to continue from (`None`: the backfill is complete), in
    /// one transaction. Skips events that have, or had, a delivery for the subscription. Returns `false`, having done
    /// nothing, if the subscription was removed or another process has continued from `from`.
    async fn backfill(
        &self,
        namespace: &str,
        subscription: &str,
        deliveries: Arc<[(Event, NewDelivery)]>,
        from: i64,
        next: Option<i64>,
        now: Option<Timestamp>,
    ) -> Result<bool>;
}
