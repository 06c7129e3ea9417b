//! Schedules that this process could not fire or read. They are fired one by one, so that they do not block others, and
//! each is logged once.

use std::collections::HashSet;

/// The most ids in a set. A full set is cleared.
const IDS_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct FailingSchedules {
    /// Ids of schedules that failed or were blocked at the last try.
    isolated: HashSet<String>,
    logged: HashSet<String>,
}

impl FailingSchedules {
    /// From now on the schedule is fired alone. Returns whether that is new.
    pub fn isolate(&mut self, id: &str) -> bool {
        insert(&mut self.isolated, id)
    }

    pub fn is_isolated(&self, id: &str) -> bool {
        self.isolated.contains(id)
    }

    /// Returns `true` the first time it is called for a schedule, which is then logged.
    pub fn should_log(&mut self, id: &str) -> bool {
        insert(&mut self.logged, id)
    }

    /// Removes a schedule that was fired.
    pub fn remove(&mut self, id: &str) {
        self.isolated.remove(id);
        self.logged.remove(id);
    }
}

fn insert(ids: &mut HashSet<String>, id: &str) -> bool {
    if ids.len() >= IDS_MAX {
        ids.clear();
    }
    ids.insert(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_schedule_is_logged_once_until_it_fires() {
        let mut failing = FailingSchedules::default();
        assert_eq!((failing.isolate("a"), failing.isolate("a"), failing.is_isolated("a")), (true, false, true));
        assert_eq!((failing.should_log("a"), failing.should_log("a"), failing.should_log("b")), (true, false, true));
        failing.remove("a");
        assert_eq!((failing.is_isolated("a"), failing.should_log("a"), failing.should_log("b")), (false, true, false));
    }

    #[test]
    fn full_set_of_ids_is_cleared() {
        let mut failing = FailingSchedules::default();
        assert!((0..=IDS_MAX).all(|n| failing.isolate(&n.to_string())));
        assert_eq!((failing.isolated.len(), failing.is_isolated("0")), (1, false));
    }
}
