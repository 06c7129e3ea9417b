//! The measured figures and how they are formatted.

use std::collections::BTreeMap;

use serde::Serialize;

/// The figures of one measurement.
pub type Figures = BTreeMap<Figure, f64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Events published per second in the first step.
    Published,
    /// Events (or deliveries) per second.
    Rate,
    /// Events published per second while delays were measured.
    Offered,
    P50Ms,
    P95Ms,
    P99Ms,
    MaxMs,
    /// Per event.
    WalBytes,
    /// Writing transactions per event.
    Transactions,
    /// Events per second, as the median over the first 10 s after the snapshot began, the last 10 s before its end,
    /// and the time after it ended.
    First,
    Last,
    After,
    /// The last 10 s divided by the first 10 s.
    Kept,
    /// The rate afterwards divided by the first 10 s.
    Recovered,
}

impl Figure {
    pub fn title(self) -> &'static str {
        match self {
            Figure::Published => "published/s",
            Figure::Rate => "events/s",
            Figure::Offered => "offered/s",
            Figure::P50Ms => "p50 ms",
            Figure::P95Ms => "p95 ms",
            Figure::P99Ms => "p99 ms",
            Figure::MaxMs => "max ms",
            Figure::WalBytes => "WAL bytes/event",
            Figure::Transactions => "transactions/event",
            Figure::First => "first 10 s, events/s",
            Figure::Last => "last 10 s, events/s",
            Figure::After => "afterwards, events/s",
            Figure::Kept => "last ÷ first",
            Figure::Recovered => "afterwards ÷ first",
        }
    }

    pub fn format(self, value: f64) -> String {
        match self {
            Figure::P50Ms | Figure::P95Ms | Figure::P99Ms | Figure::MaxMs => format!("{value:.2}"),
            Figure::Kept | Figure::Recovered => format!("{value:.2}"),
            Figure::Transactions => format!("{value:.3}"),
            _ => thousands(value),
        }
    }

    pub fn less_is_better(self) -> bool {
        use Figure::{MaxMs, P50Ms, P95Ms, P99Ms, Transactions, WalBytes};
        matches!(self, P50Ms | P95Ms | P99Ms | MaxMs | WalBytes | Transactions)
    }
}

/// A whole number with thousands separators.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_formatted_with_separators_and_digits() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!((thousands(999.0), thousands(0.0)), ("999".into(), "0".into()));
        assert_eq!(Figure::P50Ms.format(0.7), "0.70");
        assert_eq!(Figure::Rate.format(100_000.0), "100,000");
    }
}
