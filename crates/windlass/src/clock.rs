//! Where "now" comes from: the database's clock, or a test's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

/// An instant, in UTC, with microseconds: what both databases can hold.
// Types that derive a schema spell it `DateTime<Utc>`: the derive goes by the name.
pub type Timestamp = DateTime<Utc>;

/// The source of every instant that Windlass stores or compares.
///
/// ```
/// use std::time::Duration;
/// use windlass::Clock;
///
/// let (clock, hand) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
/// hand.advance(Duration::from_secs(60));
/// assert_eq!(clock.now().to_rfc3339(), "2025-12-24T10:31:00+00:00");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicI64>>);

/// Moves a test clock.
#[derive(Debug, Clone)]
pub struct TestClock(Arc<AtomicI64>);

impl Clock {
    /// The real time: the server's on PostgreSQL, the process's on SQLite.
    pub fn system() -> Clock {
        Clock(None)
    }

    /// A clock that stands still until its hand is moved.
    pub fn test(start: Timestamp) -> (Clock, TestClock) {
        let micros = Arc::new(AtomicI64::new(start.timestamp_micros()));
        (Clock(Some(micros.clone())), TestClock(micros))
    }

    /// The present instant, as this process sees it.
    pub fn now(&self) -> Timestamp {
        self.overridden().unwrap_or_else(|| from_micros(Utc::now().timestamp_micros()))
    }

    /// The instant a statement has to use instead of the database's own; `None` but under test.
    pub(crate) fn overridden(&self) -> Option<Timestamp> {
        self.0.as_ref().map(|micros| from_micros(micros.load(Ordering::SeqCst)))
    }
}

impl TestClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// Sets the clock, also backwards.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.timestamp_micros(), Ordering::SeqCst);
    }
}

/// A duration in whole microseconds, at most about 292,000 years.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// How many whole milliseconds have passed.
pub(crate) fn millis_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn from_micros(micros: i64) -> Timestamp {
    DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// The longest span that an option or a field may name: a hundred years.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// `from + span`, for spans that were checked against [`SPAN_MAX`].
pub(crate) fn after(from: Timestamp, span: Duration) -> Timestamp {
    from + TimeDelta::microseconds(micros(span.min(SPAN_MAX)))
}
