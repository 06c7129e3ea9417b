//! Writes gauges in Prometheus's text format.

use std::fmt::Write;

/// Metric families, written one after another.
#[derive(Default)]
pub(super) struct Exposition(String);

/// One metric family, to which values are added.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Exposition {
    /// Starts a family and ends the previous one.
    pub fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge\n");
        Family { text: &mut self.0, name }
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    pub fn add(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.text.push_str(self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let separator = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{separator}{name}=\"{}\"", escaped(value));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
        self
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_with_their_labels() {
        let mut text = Exposition::default();
        text.gauge("up", "Whether it is.").add(&[], 1.0);
        text.gauge("age_seconds", "How old.")
            .add(&[("type", "a\"b\\c\nd"), ("x", "")], 0.25)
            .add(&[("type", "e")], 3e9);
        let expected = "# HELP up Whether it is.\n# TYPE up gauge\nup 1\n\
                        # HELP age_seconds How old.\n# TYPE age_seconds gauge\n\
                        age_seconds{type=\"a\\\"b\\\\c\\nd\",x=\"\"} 0.25\nage_seconds{type=\"e\"} 3000000000\n";
        assert_eq!(text.into_text(), expected);
    }
}
