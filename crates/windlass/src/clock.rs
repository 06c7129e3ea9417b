//! The source of the current time: the database's clock, or a test clock. Also conversions of timestamps and durations.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

/// A timestamp in UTC with microsecond precision, which both databases can store.
// Types that derive `ToSchema` spell it `DateTime<Utc>`, because the derive matches the name.
pub type Timestamp = DateTime<Utc>;

/// The source of every timestamp that Windlass stores or compares.
///
/// ```
/// use std::time::Duration;
/// use windlass::Clock;
///
/// let (clock, test_clock) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
/// test_clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now().to_rfc3339(), "2025-12-24T10:31:00+00:00");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicI64>>);

/// Sets and advances a test clock. Created with its [`Clock`] by [`Clock::test`].
#[derive(Debug, Clone)]
pub struct TestClock(Arc<AtomicI64>);

impl Clock {
    /// The real time: the server's on PostgreSQL, the process's on SQLite.
    pub fn system() -> Clock {
        Clock(None)
    }

    /// A clock that stands still until the returned [`TestClock`] moves it.
    pub fn test(start: Timestamp) -> (Clock, TestClock) {
        let micros = Arc::new(AtomicI64::new(start.timestamp_micros()));
        (Clock(Some(micros.clone())), TestClock(micros))
    }

    /// The current time, as this process sees it.
    pub fn now(&self) -> Timestamp {
        self.overridden().unwrap_or_else(|| from_micros(Utc::now().timestamp_micros()))
    }

    /// The test clock's time, which statements use instead of the database's; `None` without a test clock.
    pub(crate) fn overridden(&self) -> Option<Timestamp> {
        self.0.as_ref().map(|micros| from_micros(micros.load(Ordering::SeqCst)))
    }
}

impl TestClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// Sets the clock. It may move backwards.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.timestamp_micros(), Ordering::SeqCst);
    }
}

/// A duration in whole microseconds, at most about 292,000 years.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The number of whole milliseconds since `start`.
pub(crate) fn millis_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn from_micros(micros: i64) -> Timestamp {
    DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// The longest duration that an option or a field accepts: 100 years.
pub(crate) const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// `from + duration`, for durations that were checked against [`DURATION_MAX`].
pub(crate) fn after(from: Timestamp, duration: Duration) -> Timestamp {
    from + TimeDelta::microseconds(micros(duration.min(DURATION_MAX)))
}
