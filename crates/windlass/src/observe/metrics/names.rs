//! The names of what is counted, and what they mean.

use crate::queue::decide::Transition;
use crate::queue::outcome::Action;
use crate::store::DeliveryChange;

/// Microseconds in a second.
pub(super) const SECONDS: f64 = 1_000_000.0;

pub(super) const PUBLISHED: &str = "windlass_events_published_total";
pub(super) const DROPPED: &str = "windlass_events_dropped_total";
pub(super) const CLAIMED: &str = "windlass_deliveries_claimed_total";
pub(super) const ATTEMPTS: &str = "windlass_attempts_total";
pub(super) const DEAD_LETTERED: &str = "windlass_dead_lettered_total";
pub(super) const LOST: &str = "windlass_leases_lost_total";
pub(super) const HANDLER_RUNS: &str = "windlass_handler_runs_total";
pub(super) const MAINTENANCE_RUNS: &str = "windlass_maintenance_runs_total";
pub(super) const MAINTENANCE_LAST_SUCCESS: &str = "windlass_maintenance_last_success_timestamp_seconds";
pub(super) const WAIT: &str = "windlass_wait_seconds";
pub(super) const HANDLING: &str = "windlass_handling_seconds";
pub(super) const MAINTENANCE_DURATION: &str = "windlass_maintenance_duration_seconds";

/// What a metric is, in the words of Prometheus.
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub(super) const ALL: [(&str, Kind, &str); 12] = [
    (PUBLISHED, Kind::Counter, "Events stored; repeated keys are not."),
    (
        DROPPED,
        Kind::Counter,
        "Events that were published in a transaction and dropped after it because their key was known.",
    ),
    (CLAIMED, Kind::Counter, "Deliveries handed to a worker: attempts begun."),
    (ATTEMPTS, Kind::Counter, "Entries of the history of deliveries, by what became of the attempt or delivery."),
    (DEAD_LETTERED, Kind::Counter, "Deliveries given up and kept as dead letters, by the kind of reason."),
    (LOST, Kind::Counter, "Reports that came when somebody else had the delivery already; nothing was changed."),
    (HANDLER_RUNS, Kind::Counter, "Runs of a node's handlers, by how they ended."),
    (MAINTENANCE_RUNS, Kind::Counter, "Upkeep done by this process, by how it ended."),
    (MAINTENANCE_LAST_SUCCESS, Kind::Gauge, "When this process last did a piece of upkeep without a failure."),
    (WAIT, Kind::Histogram, "From when a delivery could be taken to its first claim."),
    (HANDLING, Kind::Histogram, "From a claim to the report that ended it."),
    (MAINTENANCE_DURATION, Kind::Histogram, "How long upkeep took this process."),
];

/// The label that tells the parts of a counter apart, beside those that all have.
pub(super) fn label_of(name: &str) -> Option<&'static str> {
    match name {
        ATTEMPTS => Some("outcome"),
        DEAD_LETTERED => Some("reason"),
        _ => None,
    }
}

/// What may become of an attempt, or of a delivery without one.
pub(super) const FAILED: &str = "failed";
pub(super) const OUTCOMES: [&str; 10] = [
    "completed",
    "completed_with_errors",
    "retried",
    FAILED,
    "snoozed",
    "released",
    "abandoned",
    "reset",
    "expired",
    "cancelled",
];

/// `retried` and `failed` are both reports of a failure: after the one it is tried again, after the other it is not.
pub(super) fn outcome_of(change: &DeliveryChange) -> &'static str {
    match (change.action, &change.transition) {
        (Action::Failed, Transition::Requeue { .. }) => "retried",
        (Action::Completed, _) => "completed",
        (Action::CompletedWithErrors, _) => "completed_with_errors",
        (Action::Snoozed, _) => "snoozed",
        (Action::Released, _) => "released",
        (Action::Abandoned, _) => "abandoned",
        (Action::Reset, _) => "reset",
        (Action::Expired, _) => "expired",
        (Action::Cancelled, _) => "cancelled",
        _ => FAILED,
    }
}
