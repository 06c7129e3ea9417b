//! How many events a measurement takes: as many as fill its time, found by trying.

/// At least so many times more than before.
const GROWTH_MIN: f64 = 1.5;
/// A short try says little: no more than this at once.
const GROWTH_MAX: f64 = 20.0;

/// How long a measurement shall take, and how many events it takes at most.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    pub seconds: f64,
    pub most: usize,
}

impl Aim {
    /// How many to try after so many took so long; `None` if that try was long enough to count.
    pub fn next(self, tried: usize, took: f64) -> Option<usize> {
        let wanted = tried as f64 * (self.seconds / took.max(1e-6)).min(GROWTH_MAX);
        let next = (wanted as usize).min(self.most);
        (next as f64 >= tried as f64 * GROWTH_MIN).then_some(next)
    }
}

/// How much of everything.
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

    pub fn aim(self, seconds: f64, most: usize) -> Aim {
        Aim { seconds: seconds * self.events.clamp(0.1, 1.0), most: self.events(most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_grow_until_they_fill_the_time() {
        let aim = Aim { seconds: 10.0, most: 100_000 };
        assert_eq!(aim.next(50, 0.01), Some(1_000));
        assert_eq!(aim.next(1_000, 1.0), Some(10_000));
        assert_eq!(aim.next(20_000, 0.5), Some(100_000));
        assert_eq!(aim.next(50, 10.0), None);
        assert_eq!(aim.next(10_000, 9.0), None);
        assert_eq!(aim.next(100_000, 2.0), None);
        assert_eq!(aim.next(90_000, 0.1), None);
    }

    #[test]
    fn a_smaller_scale_takes_less_of_everything() {
        let scale = Scale { events: 0.1, hold_seconds: None };
        assert_eq!((scale.events(100_000), scale.seconds(100), scale.seconds(15)), (10_000, 10, 3));
    }
}
