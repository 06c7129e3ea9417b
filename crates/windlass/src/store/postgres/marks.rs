//! Where this process was in each lane, so that dead rows behind are not walked again.
//!
//! A mark may delay a delivery, never hide it: sweeps and empty claims look behind it, and whatever
//! becomes ready behind it moves it back – also while a claim is under way that cannot see it yet.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::clock::Timestamp;
use crate::wake::lock;

/// A place in a lane: the row that was taken last.
type Mark = (Timestamp, i64);

/// Before any instant that a database holds.
const BEGINNING: Mark = (Timestamp::UNIX_EPOCH, 0);

/// How many moves back are told apart; of more, the oldest count as one.
const MOVES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Marks(Mutex<Book>);

#[derive(Default)]
struct Book {
    /// Grows with every move back.
    moment: u64,
    lanes: HashMap<i64, Lane>,
}

struct Lane {
    mark: Mark,
    /// When it was moved back, and how far: a claim that began before that must not undo it.
    moves: Vec<(u64, Timestamp)>,
}

/// The marks that a claim begins at, and when they were read.
pub(super) struct Reading {
    pub ready_at: Vec<Timestamp>,
    pub event_id: Vec<i64>,
    moment: u64,
}

impl Marks {
    pub fn read(&self, lanes: &[i64]) -> Reading {
        let mut book = lock(&self.0);
        let moment = book.moment;
        let lane = |lane: &i64| book.lanes.entry(*lane).or_insert(Lane { mark: BEGINNING, moves: Vec::new() }).mark;
        let (ready_at, event_id) = lanes.iter().map(lane).unzip();
        Reading { ready_at, event_id, moment }
    }

    /// A claim that began at `reading` took the lane up to here.
    pub fn advance(&self, reading: &Reading, lane: i64, to: Mark) {
        let mut book = lock(&self.0);
        let Some(lane) = book.lanes.get_mut(&lane) else { return };
        let since = lane.moves.iter().filter(|(moment, _)| *moment > reading.moment);
        let moved_back = since.map(|(_, to)| (*to, 0)).min();
        lane.mark = lane.mark.max(to);
        lane.mark = moved_back.map_or(lane.mark, |back| back.min(lane.mark));
    }

    pub fn advance_all(&self, reading: &Reading, last: &HashMap<i64, Mark>) {
        last.iter().for_each(|(lane, mark)| self.advance(reading, *lane, *mark));
    }

    /// The next claim begins at `to`, if it would begin later.
    pub fn rewind(&self, lane: i64, to: Timestamp) {
        let mut book = lock(&self.0);
        book.moment += 1;
        let moment = book.moment;
        if let Some(lane) = book.lanes.get_mut(&lane) {
            lane.move_back(moment, to);
        }
    }

    /// The next claims on these lanes begin at the beginning.
    pub fn forget(&self, lanes: &[i64]) {
        lanes.iter().for_each(|lane| self.rewind(*lane, BEGINNING.0));
    }

    /// As [`Marks::rewind`], for every lane there is; to the beginning, without an instant.
    pub fn rewind_all(&self, to: Option<Timestamp>) {
        let mut book = lock(&self.0);
        book.moment += 1;
        let moment = book.moment;
        book.lanes.values_mut().for_each(|lane| lane.move_back(moment, to.unwrap_or(BEGINNING.0)));
    }
}

impl Lane {
    fn move_back(&mut self, moment: u64, to: Timestamp) {
        self.mark = self.mark.min((to, 0));
        self.moves.push((moment, to));
        if self.moves.len() > MOVES_MAX {
            let (_, oldest) = self.moves.remove(0);
            self.moves[0].1 = self.moves[0].1.min(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_micros;

    fn mark(marks: &Marks) -> Mark {
        let reading = marks.read(&[1]);
        (reading.ready_at[0], reading.event_id[0])
    }

    #[test]
    fn a_claim_under_way_does_not_undo_a_move_back() {
        let (marks, at) = (Marks::default(), from_micros);
        let reading = marks.read(&[1]);
        marks.rewind(1, at(50));
        marks.advance(&reading, 1, (at(90), 9));
        assert_eq!(mark(&marks), (at(50), 0));
        marks.advance(&marks.read(&[1]), 1, (at(90), 9));
        assert_eq!(mark(&marks), (at(90), 9));
        marks.rewind(1, at(95));
        assert_eq!(mark(&marks), (at(90), 9));
    }

    #[test]
    fn many_moves_back_are_remembered_as_one() {
        let (marks, at) = (Marks::default(), from_micros);
        let reading = marks.read(&[1]);
        (0..100).for_each(|n| marks.rewind(1, at(40 + n)));
        marks.advance(&reading, 1, (at(500), 9));
        assert_eq!(mark(&marks), (at(40), 0));
    }
}
