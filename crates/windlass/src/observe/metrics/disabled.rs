//! The sink without the feature `metrics`: it does nothing.

pub(crate) struct MetricsSink;

impl MetricsSink {
    pub fn new() -> MetricsSink {
        MetricsSink
    }

    pub fn describe(&self) {}

    pub fn count(&self, _name: &'static str, _labels: &[(&'static str, &str)], _by: u64) {}

    pub fn set(&self, _name: &'static str, _labels: &[(&'static str, &str)], _value: f64) {}

    pub fn observe(&self, _name: &'static str, _labels: &[(&'static str, &str)], _values: &[f64]) {}
}
