//! Handlers in a PostgreSQL transaction.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::oneshot;

use super::super::attempt::bounded;
use super::super::context::Context;
use super::super::error::Failure;
use super::super::handler::{Handler, Work};
use super::super::shared::Shared;
use super::super::verdict::Run;
use super::{TxCompletion, TxFailure, TxOutcome};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::queue::publish::Published;
use crate::store::postgres::Tx;

/// How long it may take to find out whether a connection still works.
const PING_MAX: Duration = Duration::from_secs(1);

/// The transaction that a handler runs in. Use it as the [`PgConnection`] that it is: `.execute(&mut *tx)`.
///
/// The node commits it, together with the completion of the event, if the handler succeeds, and rolls it back if not.
/// It must not be kept for longer than the handler runs, nor ended by it: that is a failure. Statements have the
/// handler's timeout. Another isolation level than READ COMMITTED is in the way of renewing the lease: a handler that
/// takes longer than a third of it fails then.
///
/// A process has at most 16 such transactions at once, or as many as
/// [`OpenOptions::handler_connections`](crate::OpenOptions::handler_connections) says; further handlers wait. Settings of
/// the whole session (`SET` without `LOCAL`, advisory locks) stay for the next handler.
pub struct PgTx {
    tx: Option<Tx>,
    back: Option<oneshot::Sender<Tx>>,
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

    /// Publishes an event of this type and payload in the transaction; its id.
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
        if let (Some(tx), Some(back)) = (self.tx.take(), self.back.take()) {
            // Where nobody waits for it any more, it is rolled back.
            let _ = back.send(tx);
        }
    }
}

pub(super) async fn transact(
    node: &Shared,
    cx: &Context,
    handlers: &[Arc<Handler>],
    closing: TxCompletion,
) -> std::result::Result<TxOutcome, TxFailure> {
    let core = node.queue.core();
    let store = core.store.postgres().ok_or(TxFailure::Database(Error::Closed))?;
    let timeout = handlers.iter().map(|handler| handler.timeout).max().unwrap_or_default();
    let mut tx = store.begin(timeout).await.map_err(TxFailure::Database)?;
    for handler in handlers {
        tx = run(handler, cx, tx).await?;
    }
    let closed = store.close_tx(tx, node.queue.namespace(), &closing, core.clock.overridden()).await;
    closed.map_err(TxFailure::Database)
}

/// Lends the transaction to a handler, and takes it back. After a failure it is dropped, and so rolled back.
async fn run(handler: &Handler, cx: &Context, tx: Tx) -> std::result::Result<Tx, TxFailure> {
    let Work::InPgTx(work) = &handler.work else { return Ok(tx) };
    let (back, mut returned) = oneshot::channel();
    let tx = PgTx { tx: Some(tx), back: Some(back), context: cx.clone() };
    let failure = bounded(handler, || work(cx.event().clone(), tx)).await;
    let failure = match (failure, returned.try_recv()) {
        (None, Ok(tx)) => return Ok(tx),
        (None, Err(_)) => kept(),
        (Some(failure), Ok(tx)) if is_retry(&failure) => {
            check_connection(tx).await.map_err(TxFailure::Database)?;
            failure
        }
        (Some(failure), _) => failure,
    };
    Err(TxFailure::Handler(Run { handler: handler.id.clone(), failure: Some(failure) }))
}

fn is_retry(failure: &Failure) -> bool {
    matches!(failure, Failure::Retry { .. })
}

/// Fails if the connection was lost. A connection that is still busy with the handler's statement was not.
async fn check_connection(mut tx: Tx) -> Result<()> {
    match tokio::time::timeout(PING_MAX, tx.ping()).await {
        Ok(Err(error)) => Err(Error::DatabaseUnavailable { detail: error.to_string() }),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

fn kept() -> Failure {
    let error = "the handler kept its transaction beyond its end; it is rolled back".to_owned();
    Failure::Retry { after: None, error }
}
