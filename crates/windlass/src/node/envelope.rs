//! What a handler sees: the event, and where it stands.

use std::ops::Deref;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::clock::Timestamp;
use crate::event::Event;
use crate::event::delivery::Delivery;

/// An event on its way to its handlers. Clones are cheap.
///
/// It can be used as the [`Event`] that it is: `event.payload()`, `event.id`, `event.created_at`. As JSON it is
/// `{namespace, eventType, payload, emittedAt, producerNodeId, messageId, scheduledTaskId, redeliveryCount}`.
#[derive(Debug, Clone)]
pub struct Envelope(pub(super) Arc<Delivery>);

impl Envelope {
    /// For whom it is delivered: the subscription.
    pub fn subscription(&self) -> &str {
        &self.0.subscription
    }

    /// Which attempt this is, beginning with 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempts
    }

    /// How many times this delivery has been claimed, including this time: 1 on the first delivery. The same number
    /// as [`Envelope::attempt`].
    pub fn redelivery_count(&self) -> u32 {
        self.0.redelivery_count()
    }

    /// How many failures were reported so far.
    pub fn retry_count(&self) -> u32 {
        self.0.retry_count
    }

    /// The failure that brings [`Envelope::retry_count`] to this is the last; `None`: there is no such bound.
    pub fn max_retries(&self) -> Option<u32> {
        self.0.max_retries
    }

    /// When it was published.
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
