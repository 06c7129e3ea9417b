//! Stores each handler's result as soon as the handler finishes, under
//! [`HandlerResultStorage::Immediately`](crate::HandlerResultStorage::Immediately).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::context::Context;
use super::report::{self, HandlerRun};
use super::state::NodeState;

/// Stores the results of one attempt's handlers.
#[derive(Clone)]
pub(super) struct ResultStorage {
    node: Arc<NodeState>,
    /// Handlers of the attempt that have not finished yet.
    unfinished: Arc<AtomicUsize>,
}

impl ResultStorage {
    /// For an attempt that runs this many handlers.
    pub fn new(node: &Arc<NodeState>, handlers: usize) -> ResultStorage {
        ResultStorage { node: node.clone(), unfinished: Arc::new(AtomicUsize::new(handlers)) }
    }

    /// Stores the result of a finished handler, except of the last one: the outcome of the attempt follows immediately
    /// and includes its result.
    ///
    /// An error is only logged, because the outcome stores the results again.
    pub async fn handler_finished(&self, run: &HandlerRun, cx: &Context) {
        let is_last = self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1;
        let Some(result) = report::final_result(run).filter(|_| !is_last) else { return };
        let event = cx.event();
        match self.node.queue.store_handler_result(&event.0, result).await {
            Ok(true) => {}
            Ok(false) => self.node.leases.mark_lost(&cx.leased),
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
