//! Calendar months.

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, Utc};

/// A calendar month: `from` is its beginning, `until` the beginning of the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Month {
    pub name: String,
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
}

/// The last months including the current one, the oldest first.
pub fn last(count: u32) -> Vec<Month> {
    let today = Utc::now().date_naive();
    (0..count).rev().map(|back| month(today - Months::new(back))).collect()
}

fn month(of: NaiveDate) -> Month {
    let first = of - Days::new(u64::from(of.day0()));
    let from = first.and_time(Default::default()).and_utc();
    Month { name: first.format("%Y_%m").to_string(), from, until: from + Months::new(1) }
}
