//! The names, labels and descriptions of the metrics.

use crate::queue::decide::Transition;
use crate::queue::outcome::Action;
use crate::store::DeliveryChange;

pub(super) const MICROS_PER_SECOND: f64 = 1_000_000.0;

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

/// The type of a metric, as in Prometheus.
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
        "Events published in a transaction and dropped by the router because their key was known.",
    ),
    (CLAIMED, Kind::Counter, "Deliveries claimed by workers: attempts started."),
    (ATTEMPTS, Kind::Counter, "Entries of the delivery history, by outcome of the attempt or delivery."),
    (DEAD_LETTERED, Kind::Counter, "Deliveries that became dead letters, by kind of reason."),
    (LOST, Kind::Counter, "Reports refused because the lease was lost; nothing was changed."),
    (HANDLER_RUNS, Kind::Counter, "Runs of a node's handlers, by result."),
    (MAINTENANCE_RUNS, Kind::Counter, "Maintenance task runs of this process, by result."),
    (MAINTENANCE_LAST_SUCCESS, Kind::Gauge, "When this process last ran the maintenance task successfully."),
    (WAIT, Kind::Histogram, "Time from a delivery being ready to its first claim."),
    (HANDLING, Kind::Histogram, "Time from a claim to the report of its outcome."),
    (MAINTENANCE_DURATION, Kind::Histogram, "Duration of the maintenance tasks run by this process."),
];

/// The label of a counter besides namespace, subscription and type.
pub(super) fn label_of(name: &str) -> Option<&'static str> {
    match name {
        ATTEMPTS => Some("outcome"),
        DEAD_LETTERED => Some("reason"),
        _ => None,
    }
}

/// The outcomes of an attempt, or of a delivery without one.
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

/// Both `retried` and `failed` are reports of a failure: `retried` ones are attempted again, `failed` ones are not.
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
