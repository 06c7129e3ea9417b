//! Read-only views of the queue: inspection, lists, search, statistics, explanations, diagnostics, metrics and
//! traces.
//!
//! Nothing here changes an event or a delivery. Start with [`inspect`] for single events and lists, and with
//! [`diagnose`] for the checks behind `windlass doctor`.

pub(crate) mod activity;
pub(crate) mod backlog;
pub(crate) mod consumers;
pub(crate) mod diagnose;
pub(crate) mod explain;
pub(crate) mod inspect;
pub(crate) mod metrics;
pub(crate) mod overview;
pub(crate) mod pools;
pub(crate) mod samples;
pub(crate) mod search;
pub(crate) mod trace;
