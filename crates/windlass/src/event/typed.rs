//! Typed events: a Rust type for the payload of an event type.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::Queue;
use crate::queue::publish::Published;

/// A Rust type for the payload of one event type.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use windlass::EventType;
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPaid {
///     order_id: u64,
/// }
///
/// impl EventType for OrderPaid {
///     const NAME: &'static str = "order.paid";
/// }
/// ```
pub trait EventType: Serialize + DeserializeOwned + Send + 'static {
    /// The event type's name.
    const NAME: &'static str;
}

impl NewEvent {
    /// An event with this payload and the payload's event type.
    pub fn of<T: EventType>(payload: &T) -> Result<NewEvent> {
        NewEvent::new(T::NAME).payload(payload)
    }
}

impl Queue {
    /// Publishes an event with this payload and the payload's event type. To set more options, use [`NewEvent::of`].
    pub async fn publish_as<T: EventType>(&self, payload: &T) -> Result<Published> {
        self.publish(NewEvent::of(payload)?).await
    }
}
