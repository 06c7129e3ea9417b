//! The sink of the metrics: the queue's own recorder, or else the process's.

use std::sync::{Arc, PoisonError, RwLock};

use metrics::{Key, Label, Level, Metadata, Recorder, Unit};

use super::names::{ALL, Kind};

/// The origin of every metric.
static METADATA: Metadata<'static> = Metadata::new("windlass", Level::INFO, Some("windlass"));

pub(crate) struct MetricsSink(RwLock<Option<Arc<dyn Recorder + Send + Sync>>>);

impl MetricsSink {
    pub fn new() -> MetricsSink {
        MetricsSink(RwLock::default())
    }

    pub fn replace(&self, recorder: Arc<dyn Recorder + Send + Sync>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(recorder);
    }

    fn with(&self, record: impl FnOnce(&dyn Recorder)) {
        let own = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        match own {
            Some(own) => record(&*own),
            None => metrics::with_recorder(record),
        }
    }

    pub fn describe(&self) {
        self.with(|recorder| {
            for (name, kind, text) in ALL {
                match kind {
                    Kind::Counter => recorder.describe_counter(name.into(), None, text.into()),
                    Kind::Gauge => recorder.describe_gauge(name.into(), Some(Unit::Seconds), text.into()),
                    Kind::Histogram => recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into()),
                }
            }
        });
    }

    pub fn count(&self, name: &'static str, labels: &[(&'static str, &str)], by: u64) {
        self.with(|recorder| recorder.register_counter(&key(name, labels), &METADATA).increment(by));
    }

    pub fn set(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        self.with(|recorder| recorder.register_gauge(&key(name, labels), &METADATA).set(value));
    }

    pub fn observe(&self, name: &'static str, labels: &[(&'static str, &str)], values: &[f64]) {
        self.with(|recorder| {
            let histogram = recorder.register_histogram(&key(name, labels), &METADATA);
            values.iter().for_each(|value| histogram.record(*value));
        });
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}
