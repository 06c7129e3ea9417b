//! Counters and histograms of what this process does, reported to the recorder of the `metrics` facade.
//!
//! The recorder is the process's (`metrics::set_global_recorder`), unless the queue was given its own. Metrics are
//! recorded where samples are counted: after the commit, once per batch. Without the feature `metrics` nothing is
//! recorded.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::clock::Timestamp;
use crate::event::delivery::Delivery;
use crate::maintenance::task::MaintenanceRun;
use crate::queue::wake::lock;
use crate::store::{DeliveryChange, PreparedEvent, PublishOutcome};
use crate::topology::MAIN;

#[cfg(not(feature = "metrics"))]
mod disabled;
pub(crate) mod names;
mod reason;
#[cfg(feature = "metrics")]
mod recorder;

#[cfg(not(feature = "metrics"))]
use disabled::MetricsSink;
use names::{MICROS_PER_SECOND, OUTCOMES, outcome_of};
pub use reason::DeadReason;
#[cfg(feature = "metrics")]
use recorder::MetricsSink;

/// A constant condition, so that without the feature the compiler removes this code.
const ENABLED: bool = cfg!(feature = "metrics");

/// The label of types beyond [`Limits::metric_types_max`](crate::Limits::metric_types_max).
pub(crate) const OTHER: &str = "other";

pub(crate) struct MetricsRecorder {
    sink: MetricsSink,
    types_max: usize,
    labels: Mutex<Labels>,
}

#[derive(Default)]
struct Labels {
    /// The types of each namespace that have their own label.
    types: HashMap<String, HashSet<String>>,
    /// Namespaces, subscriptions and types whose counters were initialized with zero. Prometheus cannot see the first
    /// increase of a counter that does not start at zero.
    initialized: HashSet<(String, String, String)>,
}

/// How one handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerEnd {
    Success,
    Transient,
    Snoozed,
    Unrecoverable,
}

impl HandlerEnd {
    pub fn as_str(self) -> &'static str {
        match self {
            HandlerEnd::Success => "success",
            HandlerEnd::Transient => "transient",
            HandlerEnd::Snoozed => "snoozed",
            HandlerEnd::Unrecoverable => "unrecoverable",
        }
    }
}

/// The counts of one subscription and type in a batch.
#[derive(Default)]
struct Batch<'a> {
    counts: HashMap<(&'static str, &'a str), u64>,
    durations_s: HashMap<&'static str, Vec<f64>>,
}

impl MetricsRecorder {
    pub fn new(types_max: usize) -> MetricsRecorder {
        let metrics = MetricsRecorder { sink: MetricsSink::new(), types_max, labels: Mutex::default() };
        metrics.sink.describe();
        metrics
    }

    /// The label of a type: its own name if it is among the first types of its namespace that this process recorded.
    pub fn type_label<'a>(&self, namespace: &str, event_type: &'a str) -> &'a str {
        let mut labels = lock(&self.labels);
        let Some(types) = labels.types.get_mut(namespace) else {
            labels.types.insert(namespace.to_owned(), HashSet::from([event_type.to_owned()]));
            return event_type;
        };
        if types.contains(event_type) {
            return event_type;
        }
        if types.len() >= self.types_max {
            return OTHER;
        }
        types.insert(event_type.to_owned());
        event_type
    }

    /// Initializes the counters of a subscription and type with zero, once.
    fn initialize_counters(&self, namespace: &str, subscription: &str, event_type: &str) {
        let key = (namespace.to_owned(), subscription.to_owned(), event_type.to_owned());
        if !lock(&self.labels).initialized.insert(key) {
            return;
        }
        let of = [("namespace", namespace), ("subscription", subscription), ("type", event_type)];
        self.sink.count(names::CLAIMED, &of, 0);
        for outcome in OUTCOMES {
            self.sink.count(names::ATTEMPTS, &with_label(of, ("outcome", outcome)), 0);
        }
        for reason in DeadReason::ALL {
            self.sink.count(names::DEAD_LETTERED, &with_label(of, ("reason", reason.as_str())), 0);
        }
    }

    /// Replaces the recorder.
    #[cfg(feature = "metrics")]
    pub fn set_recorder(&self, recorder: std::sync::Arc<dyn metrics::Recorder + Send + Sync>) {
        self.sink.replace(recorder);
        lock(&self.labels).initialized.clear();
        self.sink.describe();
    }

    pub fn published<'a>(&self, namespace: &str, new: impl Iterator<Item = (&'a PreparedEvent, &'a PublishOutcome)>) {
        if !ENABLED {
            return;
        }
        let (mut types, mut routes) = (HashMap::new(), HashSet::new());
        for (new, _) in new {
            let name = self.type_label(namespace, &new.event.event_type);
            *types.entry(name).or_insert(0) += 1;
            routes.extend(new.deliveries.iter().map(|delivery| (delivery.subscription.as_str(), name)));
        }
        for (event_type, count) in types {
            self.count_published(namespace, event_type, count);
        }
        for (subscription, event_type) in routes {
            self.initialize_counters(namespace, subscription, event_type);
        }
    }

    /// Counts stored events of one type.
    fn count_published(&self, namespace: &str, event_type: &str, count: u64) {
        let event_type = self.type_label(namespace, event_type);
        self.sink.count(names::PUBLISHED, &[("namespace", namespace), ("type", event_type)], count);
    }

    /// Counts events that the router dropped because of a known key.
    pub fn dropped(&self, namespace: &str, count: u64) {
        self.sink.count(names::DROPPED, &[("namespace", namespace)], count);
    }

    /// Counts events that the router could not deliver and that became dead letters of `main`, each with its type and
    /// reason.
    pub fn rejected<'a>(&self, namespace: &str, rejected: impl Iterator<Item = (&'a str, &'static str)>) {
        if !ENABLED {
            return;
        }
        let mut batches: HashMap<&str, Batch> = HashMap::new();
        for (event_type, reason) in rejected {
            let batch = batches.entry(self.type_label(namespace, event_type)).or_default();
            *batch.counts.entry((names::ATTEMPTS, names::FAILED)).or_default() += 1;
            *batch.counts.entry((names::DEAD_LETTERED, DeadReason::from_text(reason).as_str())).or_default() += 1;
        }
        for (event_type, batch) in batches {
            self.record_batch(namespace, MAIN, event_type, &batch);
        }
    }

    /// Counts claimed deliveries, each with the time before its first claim in microseconds.
    pub fn claimed<'a>(
        &self,
        namespace: &str,
        subscription: &str,
        claimed: impl Iterator<Item = (&'a Delivery, Option<u64>)>,
    ) {
        if !ENABLED {
            return;
        }
        let mut batches: HashMap<&str, Batch> = HashMap::new();
        for (delivery, wait_us) in claimed {
            let batch = batches.entry(self.type_label(namespace, &delivery.event.event_type)).or_default();
            *batch.counts.entry((names::CLAIMED, "")).or_default() += 1;
            if let Some(wait_us) = wait_us {
                batch.durations_s.entry(names::WAIT).or_default().push(wait_us as f64 / MICROS_PER_SECOND);
            }
        }
        for (event_type, batch) in batches {
            self.record_batch(namespace, subscription, event_type, &batch);
        }
    }

    /// Counts applied changes, each with the type of its event and the time since the claim in microseconds.
    pub fn changed<'a>(
        &self,
        namespace: &str,
        changes: impl Iterator<Item = (&'a str, &'a DeliveryChange, Option<u64>)>,
    ) {
        if !ENABLED {
            return;
        }
        let mut batches: HashMap<(&str, &str), Batch> = HashMap::new();
        for (event_type, change, run_us) in changes {
            let name = self.type_label(namespace, event_type);
            let batch = batches.entry((&change.live.subscription, name)).or_default();
            *batch.counts.entry((names::ATTEMPTS, outcome_of(change))).or_default() += 1;
            if let Some(reason) = DeadReason::of(change) {
                *batch.counts.entry((names::DEAD_LETTERED, reason.as_str())).or_default() += 1;
            }
            if let Some(run_us) = run_us {
                batch.durations_s.entry(names::HANDLING).or_default().push(run_us as f64 / MICROS_PER_SECOND);
            }
        }
        for ((subscription, event_type), batch) in batches {
            self.record_batch(namespace, subscription, event_type, &batch);
        }
    }

    fn record_batch(&self, namespace: &str, subscription: &str, event_type: &str, batch: &Batch) {
        self.initialize_counters(namespace, subscription, event_type);
        let of = [("namespace", namespace), ("subscription", subscription), ("type", event_type)];
        for ((name, value), count) in &batch.counts {
            match names::label_of(name) {
                Some(label) => self.sink.count(name, &with_label(of, (label, value)), *count),
                None => self.sink.count(name, &of, *count),
            }
        }
        for (name, durations_s) in &batch.durations_s {
            self.sink.observe(name, &of, durations_s);
        }
    }

    /// Counts handler runs of a delivery, each with the handler's name and result.
    pub fn handled<'a>(&self, delivery: &Delivery, ends: impl Iterator<Item = (&'a str, HandlerEnd)>) {
        if !ENABLED {
            return;
        }
        let (namespace, subscription) = (&*delivery.event.namespace, &*delivery.subscription);
        for (handler, end) in ends {
            let of = [("namespace", namespace), ("subscription", subscription), ("handler", handler)];
            self.sink.count(names::HANDLER_RUNS, &with_label(of, ("result", end.as_str())), 1);
        }
    }

    /// Records a run of a maintenance task.
    pub fn task(&self, namespace: &str, run: &MaintenanceRun, now: Timestamp) {
        if !ENABLED {
            return;
        }
        let of = [("namespace", namespace), ("task", run.task.as_str())];
        for (result, happened) in [("ok", run.error.is_none()), ("failed", run.error.is_some())] {
            let labels = [of[0], of[1], ("result", result)];
            self.sink.count(names::MAINTENANCE_RUNS, &labels, u64::from(happened));
        }
        self.sink.observe(names::MAINTENANCE_DURATION, &of[1..], &[run.took.as_secs_f64()]);
        if run.error.is_none() {
            self.sink.set(names::MAINTENANCE_LAST_SUCCESS, &of, now.timestamp_micros() as f64 / MICROS_PER_SECOND);
        }
    }

    /// Counts reports that were refused because the lease was lost.
    pub fn lost(&self, namespace: &str, count: u64) {
        self.sink.count(names::LOST, &[("namespace", namespace)], count);
    }
}

fn with_label<'a>(of: [(&'static str, &'a str); 3], more: (&'static str, &'a str)) -> [(&'static str, &'a str); 4] {
    [of[0], of[1], of[2], more]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_type_labels_per_namespace_is_limited() {
        let metrics = MetricsRecorder::new(2);
        let table = [("n", "a", "a"), ("n", "b", "b"), ("n", "c", OTHER), ("n", "a", "a"), ("m", "c", "c")];
        for (namespace, event_type, name) in table {
            assert_eq!(metrics.type_label(namespace, event_type), name, "{namespace} {event_type}");
        }
    }
}
