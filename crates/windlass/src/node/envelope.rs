//! The event as a handler receives it, with the state of its delivery.

use std::ops::Deref;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::clock::Timestamp;
use crate::event::Event;
use crate::event::delivery::Delivery;

/// An event delivered to a handler. Clones are cheap.
///
/// It dereferences to [`Event`]: `event.payload()`, `event.id`, `event.created_at`. As JSON it is
/// `{namespace, eventType, payload, emittedAt, producerNodeId, messageId, scheduledTaskId, redeliveryCount}`.
#[derive(Debug, Clone)]
pub struct Envelope(pub(super) Arc<Delivery>);

impl Envelope {
    /// The subscription that the event is delivered for.
    pub fn subscription(&self) -> &str {
        &self.0.subscription
    }

    /// The number of this attempt, starting at 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempts
    }

    /// How many times this delivery has been claimed, including this attempt. The same number as [`Envelope::attempt`].
    pub fn redelivery_count(&self) -> u32 {
        self.0.redelivery_count()
    }

    /// How many failures have been reported so far.
    pub fn retry_count(&self) -> u32 {
        self.0.retry_count
    }

    /// The delivery is dead-lettered when [`Envelope::retry_count`] reaches this number. `None` means no limit.
    pub fn max_retries(&self) -> Option<u32> {
        self.0.max_retries
    }

    /// When the event was published.
    pub fn emitted_at(&self) -> Timestamp {
        self.0.event.created_at
    }
}

impl Deref for Envelope {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.0.event
    }
}

impl Serialize for Envelope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let event = &self.0.event;
        let mut envelope = serializer.serialize_struct("Envelope", 8)?;
        envelope.serialize_field("namespace", &event.namespace)?;
        envelope.serialize_field("eventType", &event.event_type)?;
        envelope.serialize_field("payload", &event.payload)?;
        envelope.serialize_field("emittedAt", &event.created_at)?;
        envelope.serialize_field("producerNodeId", &event.producer)?;
        envelope.serialize_field("messageId", &event.id)?;
        match &event.scheduled_task_id {
            Some(id) => envelope.serialize_field("scheduledTaskId", id)?,
            None => envelope.skip_field("scheduledTaskId")?,
        }
        envelope.serialize_field("redeliveryCount", &self.redelivery_count())?;
        envelope.end()
    }
}
