//! What this process does, told as counters and histograms to the recorder of the `metrics` facade. Without the feature
//! `metrics` nobody is told.
//!
//! The recorder is the process's (`metrics::set_global_recorder`), unless the queue was given one of its own. What is
//! told here is told where samples are counted: after the commit, once for a batch.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::clock::Timestamp;
use crate::event::delivery::Delivery;
use crate::maintenance::task::MaintenanceRun;
use crate::queue::wake::lock;
use crate::store::{DeliveryChange, PreparedEvent, PublishOutcome};
use crate::topology::MAIN;

pub(crate) mod names;
#[cfg(not(feature = "metrics"))]
mod nobody;
mod reason;
#[cfg(feature = "metrics")]
mod recorder;

use names::{OUTCOMES, SECONDS, outcome_of};
#[cfg(not(feature = "metrics"))]
use nobody::Sink;
pub use reason::DeadReason;
#[cfg(feature = "metrics")]
use recorder::Sink;

/// Without the feature all of this is left out of the program.
const ON: bool = cfg!(feature = "metrics");

/// Types beyond [`Limits::metric_types_max`](crate::Limits::metric_types_max) go by this name.
pub(crate) const OTHER: &str = "other";

pub(crate) struct MetricsRecorder {
    sink: Sink,
    types_max: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The types of each namespace that go by their own name.
    types: HashMap<String, HashSet<String>>,
    /// Namespace, subscription and type of which every counter was told, if only that it is zero: a counter that begins
    /// at one has never grown, as far as Prometheus can see.
    begun: HashSet<(String, String, String)>,
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

/// What was counted of one subscription and type in a batch.
#[derive(Default)]
struct Batch<'a> {
    counts: HashMap<(&'static str, &'a str), u64>,
    spans: HashMap<&'static str, Vec<f64>>,
}

impl MetricsRecorder {
    pub fn new(types_max: usize) -> MetricsRecorder {
        let metrics = MetricsRecorder { sink: Sink::new(), types_max, known: Mutex::default() };
        metrics.sink.describe();
        metrics
    }

    /// The name that a type goes by: its own, if it is among the first of its namespace that this process met.
    pub fn name_of<'a>(&self, namespace: &str, event_type: &'a str) -> &'a str {
        let mut known = lock(&self.known);
        let Some(types) = known.types.get_mut(namespace) else {
            known.types.insert(namespace.to_owned(), HashSet::from([event_type.to_owned()]));
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

    /// Tells that every counter of a subscription and type is there, once.
    fn begin(&self, namespace: &str, subscription: &str, event_type: &str) {
        let key = (namespace.to_owned(), subscription.to_owned(), event_type.to_owned());
        if !lock(&self.known).begun.insert(key) {
            return;
        }
        let of = [("namespace", namespace), ("subscription", subscription), ("type", event_type)];
        self.sink.count(names::CLAIMED, &of, 0);
        for outcome in OUTCOMES {
            self.sink.count(names::ATTEMPTS, &with(of, ("outcome", outcome)), 0);
        }
        for reason in DeadReason::ALL {
            self.sink.count(names::DEAD_LETTERED, &with(of, ("reason", reason.as_str())), 0);
        }
    }

    /// From now on another recorder is told.
    #[cfg(feature = "metrics")]
    pub fn tell_to(&self, recorder: std::sync::Arc<dyn metrics::Recorder + Send + Sync>) {
        self.sink.replace(recorder);
        lock(&self.known).begun.clear();
        self.sink.describe();
    }

    pub fn published<'a>(&self, namespace: &str, new: impl Iterator<Item = (&'a PreparedEvent, &'a PublishOutcome)>) {
        if !ON {
            return;
        }
        let (mut types, mut routes) = (HashMap::new(), HashSet::new());
        for (new, _) in new {
            let name = self.name_of(namespace, &new.event.event_type);
            *types.entry(name).or_insert(0) += 1;
            routes.extend(new.deliveries.iter().map(|delivery| (delivery.subscription.as_str(), name)));
        }
        for (event_type, count) in types {
            self.count_published(namespace, event_type, count);
        }
        for (subscription, event_type) in routes {
            self.begin(namespace, subscription, event_type);
        }
    }

    /// Events of one type that were stored.
    fn count_published(&self, namespace: &str, event_type: &str, count: u64) {
        let event_type = self.name_of(namespace, event_type);
        self.sink.count(names::PUBLISHED, &[("namespace", namespace), ("type", event_type)], count);
    }

    /// Events that the router dropped because their key was known.
    pub fn dropped(&self, namespace: &str, count: u64) {
        self.sink.count(names::DROPPED, &[("namespace", namespace)], count);
    }

    /// Events that the router could not deliver, each with its type and the reason: they are dead letters of `main`.
    pub fn rejected<'a>(&self, namespace: &str, rejected: impl Iterator<Item = (&'a str, &'static str)>) {
        if !ON {
            return;
        }
        let mut batches: HashMap<&str, Batch> = HashMap::new();
        for (event_type, reason) in rejected {
            let batch = batches.entry(self.name_of(namespace, event_type)).or_default();
            *batch.counts.entry((names::ATTEMPTS, names::FAILED)).or_default() += 1;
            *batch.counts.entry((names::DEAD_LETTERED, DeadReason::from_text(reason).as_str())).or_default() += 1;
        }
        for (event_type, batch) in batches {
            self.tell(namespace, MAIN, event_type, &batch);
        }
    }

    /// Deliveries that were taken; how long the first-time ones had waited, in microseconds.
    pub fn claimed<'a>(
        &self,
        namespace: &str,
        subscription: &str,
        taken: impl Iterator<Item = (&'a Delivery, Option<u64>)>,
    ) {
        if !ON {
            return;
        }
        let mut batches: HashMap<&str, Batch> = HashMap::new();
        for (delivery, wait_us) in taken {
            let batch = batches.entry(self.name_of(namespace, &delivery.event.event_type)).or_default();
            *batch.counts.entry((names::CLAIMED, "")).or_default() += 1;
            if let Some(wait_us) = wait_us {
                batch.spans.entry(names::WAIT).or_default().push(wait_us as f64 / SECONDS);
            }
        }
        for (event_type, batch) in batches {
            self.tell(namespace, subscription, event_type, &batch);
        }
    }

    /// Changes that were applied, each with the type of its event and how long its worker had it, in microseconds.
    pub fn changed<'a>(
        &self,
        namespace: &str,
        changes: impl Iterator<Item = (&'a str, &'a DeliveryChange, Option<u64>)>,
    ) {
        if !ON {
            return;
        }
        let mut batches: HashMap<(&str, &str), Batch> = HashMap::new();
        for (event_type, change, run_us) in changes {
            let name = self.name_of(namespace, event_type);
            let batch = batches.entry((&change.live.subscription, name)).or_default();
            *batch.counts.entry((names::ATTEMPTS, outcome_of(change))).or_default() += 1;
            if let Some(reason) = DeadReason::of(change) {
                *batch.counts.entry((names::DEAD_LETTERED, reason.as_str())).or_default() += 1;
            }
            if let Some(run_us) = run_us {
                batch.spans.entry(names::HANDLING).or_default().push(run_us as f64 / SECONDS);
            }
        }
        for ((subscription, event_type), batch) in batches {
            self.tell(namespace, subscription, event_type, &batch);
        }
    }

    fn tell(&self, namespace: &str, subscription: &str, event_type: &str, batch: &Batch) {
        self.begin(namespace, subscription, event_type);
        let of = [("namespace", namespace), ("subscription", subscription), ("type", event_type)];
        for ((name, value), count) in &batch.counts {
            match names::label_of(name) {
                Some(label) => self.sink.count(name, &with(of, (label, value)), *count),
                None => self.sink.count(name, &of, *count),
            }
        }
        for (name, spans) in &batch.spans {
            self.sink.observe(name, &of, spans);
        }
    }

    pub fn handled<'a>(&self, delivery: &Delivery, ends: impl Iterator<Item = (&'a str, HandlerEnd)>) {
        if !ON {
            return;
        }
        let (namespace, subscription) = (&*delivery.event.namespace, &*delivery.subscription);
        for (handler, end) in ends {
            let of = [("namespace", namespace), ("subscription", subscription), ("handler", handler)];
            self.sink.count(names::HANDLER_RUNS, &with(of, ("result", end.as_str())), 1);
        }
    }

    pub fn task(&self, namespace: &str, run: &MaintenanceRun, now: Timestamp) {
        if !ON {
            return;
        }
        let of = [("namespace", namespace), ("task", run.task.as_str())];
        for (result, happened) in [("ok", run.error.is_none()), ("failed", run.error.is_some())] {
            let labels = [of[0], of[1], ("result", result)];
            self.sink.count(names::MAINTENANCE_RUNS, &labels, u64::from(happened));
        }
        self.sink.observe(names::MAINTENANCE_DURATION, &of[1..], &[run.took.as_secs_f64()]);
        if run.error.is_none() {
            self.sink.set(names::MAINTENANCE_LAST_SUCCESS, &of, now.timestamp_micros() as f64 / SECONDS);
        }
    }

    /// The lease was another's by the time that somebody reported the end of a delivery.
    pub fn lost(&self, namespace: &str, count: u64) {
        self.sink.count(names::LOST, &[("namespace", namespace)], count);
    }
}

fn with<'a>(of: [(&'static str, &'a str); 3], more: (&'static str, &'a str)) -> [(&'static str, &'a str); 4] {
    [of[0], of[1], of[2], more]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_types_of_a_namespace_go_by_their_name() {
        let metrics = MetricsRecorder::new(2);
        let table = [("n", "a", "a"), ("n", "b", "b"), ("n", "c", OTHER), ("n", "a", "a"), ("m", "c", "c")];
        for (namespace, event_type, name) in table {
            assert_eq!(metrics.name_of(namespace, event_type), name, "{namespace} {event_type}");
        }
    }
}
