//! Chooses how many events a measurement needs to fill its time, by trial runs.

/// The least growth from one trial to the next.
const GROWTH_MIN: f64 = 1.5;
/// The most growth from one trial to the next: a short trial is a poor estimate.
const GROWTH_MAX: f64 = 20.0;

/// The target duration of a measurement, and the most events that it may use.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    pub seconds: f64,
    pub events_max: usize,
}

impl Aim {
    /// The number of events for the next trial, after a trial with `tried` events took `took` seconds; `None` if that
    /// trial was long enough to count.
    pub fn next(self, tried: usize, took: f64) -> Option<usize> {
        let wanted = tried as f64 * (self.seconds / took.max(1e-6)).min(GROWTH_MAX);
        let next = (wanted as usize).min(self.events_max);
        (next as f64 >= tried as f64 * GROWTH_MIN).then_some(next)
    }
}

/// The scale of a run: factors for event counts and durations.
#[derive(Clone, Copy)]
pub struct Scale {
    pub events: f64,
    pub hold_seconds: Option<u64>,
}

impl Scale {
    pub fn events(self, events: usize) -> usize {
        ((events as f64 * self.events) as usize).max(1)
    }

    pub fn seconds(self, seconds: u64) -> u64 {
        ((seconds as f64 * self.events.min(1.0)) as u64).max(3)
    }

    pub fn aim(self, seconds: f64, events_max: usize) -> Aim {
        Aim { seconds: seconds * self.events.clamp(0.1, 1.0), events_max: self.events(events_max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_grow_until_they_fill_the_time() {
        let aim = Aim { seconds: 10.0, events_max: 100_000 };
        assert_eq!(aim.next(50, 0.01), Some(1_000));
        assert_eq!(aim.next(1_000, 1.0), Some(10_000));
        assert_eq!(aim.next(20_000, 0.5), Some(100_000));
        assert_eq!(aim.next(50, 10.0), None);
        assert_eq!(aim.next(10_000, 9.0), None);
        assert_eq!(aim.next(100_000, 2.0), None);
        assert_eq!(aim.next(90_000, 0.1), None);
    }

    #[test]
    fn smaller_scale_reduces_events_and_seconds() {
        let scale = Scale { events: 0.1, hold_seconds: None };
        assert_eq!((scale.events(100_000), scale.seconds(100), scale.seconds(15)), (10_000, 10, 3));
    }
}
