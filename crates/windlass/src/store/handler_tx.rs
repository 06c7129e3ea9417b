//! The end of a delivery that is committed in the transaction of its handler. Only the types: each store has its own
//! type of transaction.

use std::time::Instant;

use super::{AppliedChanges, DeliveryChange};
use crate::clock::millis_since;
use crate::queue::handler_results::InterimResult;

/// What is committed together with the writes of a handler.
pub(crate) enum TxCompletion {
    /// The end of the attempt.
    End(Box<AttemptInTx>),
    /// The result of this handler; the attempt continues.
    Note(InterimResult),
}

/// The end of an attempt whose handlers run in a transaction.
pub(crate) struct AttemptInTx {
    pub change: DeliveryChange,
    /// When the handlers of the attempt began.
    pub begun: Instant,
}

impl AttemptInTx {
    /// The change if the attempt ends now.
    pub fn change(&self) -> DeliveryChange {
        let mut change = self.change.clone();
        change.record.execution_time_ms = Some(millis_since(self.begun));
        change
    }
}

/// How a handler's transaction ended.
pub(crate) enum TxOutcome {
    /// Committed, with this change of the delivery.
    Changed(Box<DeliveryChange>, AppliedChanges),
    /// Committed. The attempt continues.
    Noted,
    /// Rolled back: the lease is not the current one.
    Lost,
}
