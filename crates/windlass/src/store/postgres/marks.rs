//! Where this process was in each lane, so that dead rows behind are not walked again.
//!
//! A mark may delay a delivery, never hide it: sweeps and empty claims look behind it.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::clock::Timestamp;
use crate::wake::lock;

/// A place in a lane: the row that was taken last.
pub(super) type Mark = (Timestamp, i64);

#[derive(Default)]
pub(super) struct Marks(Mutex<HashMap<i64, Mark>>);

impl Marks {
    /// The marks of these lanes; before everything where there is none.
    pub fn of(&self, lanes: &[i64]) -> (Vec<Timestamp>, Vec<i64>) {
        let marks = lock(&self.0);
        lanes.iter().map(|lane| marks.get(lane).copied().unwrap_or(BEGINNING)).unzip()
    }

    pub fn advance(&self, lane: i64, to: Mark) {
        let mut marks = lock(&self.0);
        let mark = marks.entry(lane).or_insert(to);
        *mark = (*mark).max(to);
    }

    /// The next claim begins at `to`, if it would begin later.
    pub fn rewind(&self, lane: i64, to: Timestamp) {
        if let Some(mark) = lock(&self.0).get_mut(&lane) {
            *mark = (*mark).min((to, 0));
        }
    }

    /// The next claims on these lanes begin at the beginning.
    pub fn forget(&self, lanes: &[i64]) {
        let mut marks = lock(&self.0);
        for lane in lanes {
            marks.remove(lane);
        }
    }

    /// As [`Marks::rewind`], for every lane there is.
    pub fn rewind_all(&self, to: Option<Timestamp>) {
        let mut marks = lock(&self.0);
        match to {
            Some(to) => marks.values_mut().for_each(|mark| *mark = (*mark).min((to, 0))),
            None => marks.clear(),
        }
    }
}

/// Before any instant that a database holds.
const BEGINNING: Mark = (Timestamp::UNIX_EPOCH, 0);
