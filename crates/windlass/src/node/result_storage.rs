//! Stores each handler's result as soon as the handler finishes, under
//! [`HandlerResultStorage::Immediately`](crate::HandlerResultStorage::Immediately).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::context::Context;
use super::shared::Shared;
use super::verdict::{self, Run};

/// Stores the results of one attempt's handlers.
#[derive(Clone)]
pub(super) struct ResultStorage {
    node: Arc<Shared>,
    /// Handlers of the attempt that have not finished yet.
    unfinished: Arc<AtomicUsize>,
}

impl ResultStorage {
    /// For an attempt that runs so many handlers.
    pub fn new(node: &Arc<Shared>, handlers: usize) -> ResultStorage {
        ResultStorage { node: node.clone(), unfinished: Arc::new(AtomicUsize::new(handlers)) }
    }

    /// Stores the result of a handler that has just finished, unless it is the last one: its result is stored with the
    /// outcome of the attempt, which follows immediately.
    ///
    /// A failure is only logged, because the outcome stores the results again.
    pub async fn handler_finished(&self, run: &Run, cx: &Context) {
        let is_last = self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1;
        let Some(result) = verdict::result(run).filter(|_| !is_last) else { return };
        let event = cx.event();
        match self.node.queue.store_handler_result(&event.0, result).await {
            Ok(true) => {}
            Ok(false) => self.node.hand.lose(&cx.grip),
            Err(error) => tracing::warn!(
                %error,
                namespace = event.namespace,
                event_id = event.id,
                handler = run.handler,
                "could not store a handler's result; it is stored with the outcome of the attempt"
            ),
        }
    }
}
