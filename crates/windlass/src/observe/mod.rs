//! Read-only views: lists, counts, samples, explanations, diagnostics, metrics and traces.

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
