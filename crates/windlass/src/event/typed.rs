//! Events as Rust types.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::Queue;
use crate::queue::publish::Published;

/// A Rust type that stands for the payload of one event type.
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
    /// An event with this payload, of its type.
    pub fn of<T: EventType>(payload: &T) -> Result<NewEvent> {
        NewEvent::new(T::NAME).payload(payload)
    }
}

impl Queue {
    /// Publishes an event with this payload, of its type. For more than that there is [`NewEvent::of`].
    pub async fn publish_as<T: EventType>(&self, payload: &T) -> Result<Published> {
        self.publish(NewEvent::of(payload)?).await
    }
}
