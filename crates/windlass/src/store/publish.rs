//! Storing events with their deliveries.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::wake::ReadyLane;

/// A validated and routed event, ready to be stored.
#[derive(Debug, Clone)]
pub(crate) struct PreparedEvent {
    pub event: NewEvent,
    /// How long its key is remembered.
    pub key_window: Duration,
    /// How long after its first possible start it expires, unless the event has a deadline; `None`: never.
    pub expires_in: Option<Duration>,
    /// One for each matching subscription.
    pub deliveries: Vec<NewDelivery>,
}

#[derive(Debug, Clone)]
pub(crate) struct NewDelivery {
    pub subscription_id: i64,
    pub lane_id: i64,
    pub subscription: String,
    pub max_retries: Option<u32>,
    pub attempts_limit: u32,
}

impl NewDelivery {
    pub fn ready_lane(&self) -> ReadyLane {
        ReadyLane { subscription_id: self.subscription_id, lane_id: self.lane_id, rewind: false }
    }
}

/// The result of publishing one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishOutcome {
    pub event_id: i64,
    pub created_at: Timestamp,
    /// The key was known: this is the first event with it, and nothing was stored.
    pub duplicate: bool,
    /// The event is an arrival: the router creates its deliveries.
    pub arrived: bool,
}

impl PublishOutcome {
    pub fn new(event_id: i64, created_at: Timestamp) -> PublishOutcome {
        PublishOutcome { event_id, created_at, duplicate: false, arrived: false }
    }

    pub fn duplicate_of(event_id: i64, created_at: Timestamp) -> PublishOutcome {
        PublishOutcome { duplicate: true, ..PublishOutcome::new(event_id, created_at) }
    }
}

#[async_trait]
pub(crate) trait PublishStore {
    /// Stores all events or none. `None`: the namespace has another version, and nothing was stored.
    async fn publish(
        &self,
        namespace: &str,
        version: i64,
        events: Arc<Vec<PreparedEvent>>,
        now: Option<Timestamp>,
    ) -> Result<Option<Vec<PublishOutcome>>>;
}
