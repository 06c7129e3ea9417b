//! Handlers in a PostgreSQL transaction.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::oneshot;

use super::super::attempt::run_with_timeout;
use super::super::context::Context;
use super::super::error::Failure;
use super::super::handler::{Handler, Work};
use super::super::report::HandlerRun;
use super::super::state::NodeState;
use super::{TxCompletion, TxFailure, TxOutcome};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::queue::publish::Published;
use crate::store::postgres::Tx;

/// The timeout of the check whether a connection still works.
const PING_MAX: Duration = Duration::from_secs(1);

/// The transaction that a handler runs in. It dereferences to [`PgConnection`]: `.execute(&mut *tx)`.
///
/// If the handler succeeds, the node commits the transaction together with the completion of the event; otherwise it
/// rolls the transaction back. A handler that ends the transaction, or keeps it after it returns, fails. Statements
/// have the handler's timeout. Use READ COMMITTED: with another isolation level a lease renewal conflicts with the
/// completion, and a handler that takes longer than a third of the lease fails.
///
/// A process has at most 16 such transactions concurrently, unless
/// [`OpenOptions::handler_connections`](crate::OpenOptions::handler_connections) is set; further handlers wait. Session
/// state (`SET` without `LOCAL`, advisory locks) stays on the connection for the next handler.
pub struct PgTx {
    tx: Option<Tx>,
    return_to: Option<oneshot::Sender<Tx>>,
    context: Context,
}

impl PgTx {
    /// The event, the node and its queue.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Publishes an event in the transaction, with this node as its producer: see
    /// [`Queue::publish_in`](crate::Queue::publish_in).
    pub async fn publish(&mut self, event: NewEvent) -> Result<Published> {
        let (queue, event) = self.context.producer.stamp(event);
        queue.publish_in(&mut **self, event).await
    }

    /// Publishes an event of this type and payload in the transaction. Returns its id.
    pub async fn emit<T: Serialize + ?Sized>(&mut self, event_type: &str, payload: &T) -> Result<i64> {
        Ok(self.publish(NewEvent::new(event_type).payload(payload)?).await?.event.id)
    }
}

impl Deref for PgTx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.tx.as_ref().expect("present until dropped")
    }
}

impl DerefMut for PgTx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.tx.as_mut().expect("present until dropped")
    }
}

impl Drop for PgTx {
    fn drop(&mut self) {
        if let (Some(tx), Some(return_to)) = (self.tx.take(), self.return_to.take()) {
            // If the node no longer waits for the transaction, it is dropped and so rolled back.
            let _ = return_to.send(tx);
        }
    }
}

pub(super) async fn transact(
    node: &NodeState,
    cx: &Context,
    handlers: &[Arc<Handler>],
    completion: TxCompletion,
) -> std::result::Result<TxOutcome, TxFailure> {
    let core = node.queue.core();
    let store = core.store.postgres().ok_or(TxFailure::Database(Error::Closed))?;
    let timeout = handlers.iter().map(|handler| handler.timeout).max().unwrap_or_default();
    let mut tx = store.begin(timeout).await.map_err(TxFailure::Database)?;
    for handler in handlers {
        tx = run(handler, cx, tx).await?;
    }
    let outcome = store.close_tx(tx, node.queue.namespace(), &completion, core.clock.overridden()).await;
    outcome.map_err(TxFailure::Database)
}

/// Runs a handler with the transaction and returns the transaction. After a failure the transaction is dropped, and so
/// rolled back.
async fn run(handler: &Handler, cx: &Context, tx: Tx) -> std::result::Result<Tx, TxFailure> {
    let Work::InPgTx(work) = &handler.work else { return Ok(tx) };
    let (return_to, mut returned) = oneshot::channel();
    let tx = PgTx { tx: Some(tx), return_to: Some(return_to), context: cx.clone() };
    let failure = run_with_timeout(handler, || work(cx.event().clone(), tx)).await;
    let failure = match (failure, returned.try_recv()) {
        (None, Ok(tx)) => return Ok(tx),
        (None, Err(_)) => kept_failure(),
        (Some(failure), Ok(tx)) if is_retry(&failure) => {
            check_connection(tx).await.map_err(TxFailure::Database)?;
            failure
        }
        (Some(failure), _) => failure,
    };
    Err(TxFailure::Handler(HandlerRun { handler: handler.id.clone(), failure: Some(failure) }))
}

fn is_retry(failure: &Failure) -> bool {
    matches!(failure, Failure::Retry { .. })
}

/// Fails if the connection is lost. A connection that is still busy with the handler's statement is not lost.
async fn check_connection(mut tx: Tx) -> Result<()> {
    match tokio::time::timeout(PING_MAX, tx.ping()).await {
        Ok(Err(error)) => Err(Error::DatabaseUnavailable { detail: error.to_string() }),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

fn kept_failure() -> Failure {
    let error = "the handler returned without dropping its transaction; it is rolled back".to_owned();
    Failure::Retry { after: None, error }
}
