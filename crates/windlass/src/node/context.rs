//! The context of a handler: its event, its node, publishing and cancellation.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

use super::envelope::Envelope;
use super::leases::LeasedDelivery;
use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::Queue;
use crate::queue::publish::Published;

/// The context of a handler: the event, the node it runs on, publishing, and cancellation. Clones are cheap.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Context, Envelope, Handled, HandlerError};
///
/// async fn export(event: Envelope, cx: Context) -> Handled {
///     tokio::select! {
///         () = write_export() => {}
///         // The node is stopping: let another node start over.
///         () = cx.cancelled() => return Err(HandlerError::snooze(Duration::ZERO)),
///     }
///     cx.emit("export.done", &event.id).await?;
///     Ok(())
/// }
///
/// async fn write_export() {}
/// ```
#[derive(Clone)]
pub struct Context {
    pub(super) envelope: Envelope,
    pub(super) producer: Producer,
    pub(super) leased: Arc<LeasedDelivery>,
    pub(super) stopping: watch::Receiver<bool>,
}

impl Context {
    /// The event being handled. Typed handlers use it to get more than the payload.
    pub fn event(&self) -> &Envelope {
        &self.envelope
    }

    /// The queue of the event's namespace.
    pub fn queue(&self) -> &Queue {
        &self.producer.queue
    }

    /// The id of the node that runs the handler.
    pub fn node_id(&self) -> &str {
        &self.producer.node_id
    }

    /// Publishes an event with this node as its producer.
    pub async fn publish(&self, event: NewEvent) -> Result<Published> {
        self.producer.publish(event).await
    }

    /// Publishes an event of this type and payload. Returns its id.
    pub async fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        self.producer.emit(event_type, payload).await
    }

    /// Ready when the handler should stop: the node is stopping, or the lease on the event was lost. A long-running
    /// handler should wait for this while it works.
    pub async fn cancelled(&self) {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            // An error means that the node has been dropped.
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = self.leased.wait_until_lost() => {}
        }
    }

    /// Whether the handler should stop; see [`Context::cancelled`].
    pub fn is_cancelled(&self) -> bool {
        *self.stopping.borrow() || self.leased.is_lost()
    }
}

/// Publishes events with a node as their producer.
#[derive(Clone)]
pub(super) struct Producer {
    pub queue: Queue,
    pub node_id: Arc<str>,
}

impl Producer {
    pub async fn publish(&self, event: NewEvent) -> Result<Published> {
        let (queue, event) = self.stamp(event);
        queue.publish(event).await
    }

    /// Sets the node as the event's producer, unless the event has one.
    pub fn stamp(&self, mut event: NewEvent) -> (Queue, NewEvent) {
        event.producer.get_or_insert_with(|| self.node_id.to_string());
        (self.queue.clone(), event)
    }

    pub async fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        Ok(self.publish(NewEvent::new(event_type).payload(payload)?).await?.event.id)
    }
}
