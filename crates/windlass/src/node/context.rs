//! What a handler may ask of its node.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

use super::envelope::Envelope;
use super::hand::Grip;
use crate::error::Result;
use crate::event::NewEvent;
use crate::queue::Queue;
use crate::queue::publish::Published;

/// What a handler may ask of its node. Clones are cheap.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Context, Envelope, Handled, HandlerError};
///
/// async fn export(event: Envelope, cx: Context) -> Handled {
///     tokio::select! {
///         () = write_all_of_it() => {}
///         // The node stops: let another one begin anew.
///         () = cx.cancelled() => return Err(HandlerError::snooze(Duration::ZERO)),
///     }
///     cx.emit("export.done", &event.id).await?;
///     Ok(())
/// }
///
/// async fn write_all_of_it() {}
/// ```
#[derive(Clone)]
pub struct Context {
    pub(super) envelope: Envelope,
    pub(super) producer: Producer,
    pub(super) grip: Arc<Grip>,
    pub(super) stopping: watch::Receiver<bool>,
}

impl Context {
    /// The event being handled; typed handlers find here what is not in their type.
    pub fn event(&self) -> &Envelope {
        &self.envelope
    }

    /// The queue that the event came from, in its namespace.
    pub fn queue(&self) -> &Queue {
        &self.producer.queue
    }

    /// The node that this runs on.
    pub fn node_id(&self) -> &str {
        &self.producer.node_id
    }

    /// Publishes an event with this node as its producer.
    pub async fn publish(&self, event: NewEvent) -> Result<Published> {
        self.producer.publish(event).await
    }

    /// Publishes an event of this type and payload; its id.
    pub async fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        self.producer.emit(event_type, payload).await
    }

    /// Ready when the work should be wound up: the node is stopping, or the event is no longer this node's, since
    /// its lease was lost. A handler that runs for long waits for this beside its work.
    pub async fn cancelled(&self) {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            // The node's end of it goes away only with the node.
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = self.grip.lost() => {}
        }
    }

    /// Whether the work should be wound up; see [`Context::cancelled`].
    pub fn is_cancelled(&self) -> bool {
        *self.stopping.borrow() || self.grip.is_lost()
    }
}

/// Publishes in the name of a node.
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

    /// Names the node as the producer of the event.
    pub fn stamp(&self, mut event: NewEvent) -> (Queue, NewEvent) {
        event.producer.get_or_insert_with(|| self.node_id.to_string());
        (self.queue.clone(), event)
    }

    pub async fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        Ok(self.publish(NewEvent::new(event_type).payload(payload)?).await?.event.id)
    }
}
