//! Where a claimer has read to in each stream.
//!
//! On PostgreSQL a claim must not scan the rows that earlier claims left behind: rows in progress, and finished rows that
//! vacuum has not removed. So a claim starts at a remembered position. A delivery can still appear behind a position: a
//! publisher committed late, a delivery was released or retried, or it was locked when the claim passed it. Positions
//! delay such a delivery, they never hide it:
//!
//! - A claim that takes nothing starts over, so "nothing to claim" is exact.
//! - Under load, the claimer looks behind its positions about once a second.
//! - After an error, or when the store has opened a new connection, the claimer forgets its positions: the server may have
//!   crashed and lost claims that were not synced.

use std::collections::HashMap;

use crate::store::{BehindCheck, Claimed, ReadyPosition, StreamPlace};

/// A stream that is ordered by ready time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReadyStream {
    Priority(i16),
    Lane(i64),
}

#[derive(Debug, Default)]
pub(super) struct Positions {
    /// In publish order: the last event that was claimed, or that was passed because it is not for this claimer.
    read: i64,
    /// In publish order: nothing at or before this event can become claimable there any more.
    settled: i64,
    /// An earlier check, and `read` as it was then.
    pending: Option<(BehindCheck, i64)>,
    ready: HashMap<ReadyStream, ReadyPosition>,
    /// How many connections the store had opened for claims.
    connects: u64,
}

impl Positions {
    pub fn after_event(&self) -> i64 {
        self.read
    }

    pub fn after_ready(&self, stream: ReadyStream) -> Option<ReadyPosition> {
        self.ready.get(&stream).copied()
    }

    pub fn priorities(&self) -> Vec<(i16, ReadyPosition)> {
        let priority = |(stream, position): (&ReadyStream, &ReadyPosition)| match stream {
            ReadyStream::Priority(priority) => Some((*priority, *position)),
            ReadyStream::Lane(_) => None,
        };
        self.ready.iter().filter_map(priority).collect()
    }

    /// In publish order: nothing at or before this event can be claimed.
    pub fn settled(&self) -> i64 {
        self.settled
    }

    /// Forgets everything if the store has opened a connection since the last claim. `true` if a claim from these positions
    /// may have missed something.
    pub fn note_connects(&mut self, connects: u64) -> bool {
        let reconnected = self.connects != connects;
        let missed = reconnected && (self.read > 0 || !self.ready.is_empty());
        if reconnected {
            *self = Positions { connects, ..Positions::default() };
        }
        missed
    }

    /// The events in publish order that must be checked before "nothing to claim" is certain, if any.
    pub fn unsettled(&self) -> Option<(i64, i64)> {
        (self.settled < self.read).then_some((self.settled, self.read))
    }

    /// Reads everything again that may have been missed.
    pub fn rewind(&mut self) {
        self.read = self.settled;
        self.ready.clear();
    }

    /// Reads the streams that are ordered by ready time from their start again. `true` if they were read from later on.
    pub fn restart_ready_streams(&mut self) -> bool {
        let restarted = !self.ready.is_empty();
        self.ready.clear();
        restarted
    }

    /// A claim took these. `filled`: it got all that it wanted.
    pub fn advance(&mut self, claimed: &Claimed, filled: bool) {
        let in_order = claimed.places.iter().filter_map(|place| match place {
            StreamPlace::InOrder { event_id } => Some(*event_id),
            _ => None,
        });
        let (first, last) = (in_order.clone().min(), in_order.clone().max());
        let alone = in_order.count() == claimed.places.len();
        match (first, last) {
            // Everything that was visible has been read.
            _ if !filled => self.read = self.read.max(claimed.newest.unwrap_or(0)),
            (Some(_), Some(last)) if alone => self.read = self.read.max(last),
            // Merged with other streams, an event that comes later in publish order may have been taken first.
            (Some(first), _) => self.read = self.read.max(first - 1),
            _ => {}
        }
        for place in &claimed.places {
            let (stream, position) = match *place {
                StreamPlace::OutOfOrder { priority, position } => (ReadyStream::Priority(priority), position),
                StreamPlace::Lane { lane_id, position } => (ReadyStream::Lane(lane_id), position),
                StreamPlace::Deadline | StreamPlace::InOrder { .. } => continue,
            };
            let known = self.ready.entry(stream).or_insert(position);
            *known = position.max(*known);
        }
    }

    /// The events between `settled` and `read` were checked. `true` if one of them can be claimed.
    pub fn note_check(&mut self, check: &BehindCheck) -> bool {
        if let Some(first) = check.first {
            self.read = first - 1;
            return true;
        }
        let ended = self.pending.take_if(|(earlier, _)| check.settles(earlier)).map(|(_, read)| read.min(self.read));
        // Without open transactions and unsynced claims, the position is settled at once.
        let settled = if check.settles(check) { Some(self.read) } else { ended };
        self.settled = self.settled.max(settled.unwrap_or(0));
        self.pending.get_or_insert((*check, self.read));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_micros;

    fn claimed(places: impl IntoIterator<Item = StreamPlace>, newest: i64) -> Claimed {
        Claimed { places: places.into_iter().collect(), newest: Some(newest), ..Claimed::default() }
    }

    /// All that was written is synced.
    fn check(ended: i64, next: i64) -> BehindCheck {
        BehindCheck { ended, next, ..BehindCheck::default() }
    }

    fn in_order(ids: impl IntoIterator<Item = i64>) -> Vec<StreamPlace> {
        ids.into_iter().map(|event_id| StreamPlace::InOrder { event_id }).collect()
    }

    #[test]
    fn a_filled_claim_moves_to_its_last_event() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(3..=9), 50), true);
        assert_eq!((positions.after_event(), positions.unsettled()), (9, Some((0, 9))));
    }

    #[test]
    fn a_claim_that_is_not_filled_has_read_everything() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order([3]), 50), false);
        assert_eq!(positions.after_event(), 50);
    }

    #[test]
    fn a_merged_claim_moves_only_to_before_its_first_event() {
        let (mut positions, position) = (Positions::default(), (from_micros(5), 2));
        let retried = StreamPlace::OutOfOrder { priority: 0, position };
        positions.advance(&claimed(in_order([30, 31]).into_iter().chain([retried]), 50), true);
        assert_eq!((positions.after_event(), positions.priorities()), (29, vec![(0, position)]));
        positions.restart_ready_streams();
        assert!(positions.priorities().is_empty());
    }

    #[test]
    fn a_late_event_rewinds_the_position() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        assert!(positions.note_check(&BehindCheck { first: Some(4), ..check(100, 105) }));
        assert_eq!((positions.after_event(), positions.unsettled()), (3, Some((0, 3))));
    }

    #[test]
    fn a_position_is_settled_when_all_transactions_of_its_time_have_ended() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        positions.note_check(&check(100, 105));
        positions.advance(&claimed(in_order(10..=20), 20), true);
        // One of them is still open.
        positions.note_check(&check(104, 110));
        assert_eq!(positions.unsettled(), Some((0, 20)));
        positions.note_check(&check(105, 111));
        assert_eq!(positions.unsettled(), Some((9, 20)));
    }

    #[test]
    fn a_position_is_not_settled_before_its_claims_are_synced() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        positions.note_check(&BehindCheck { written: 500, synced: 400, ..check(7, 7) });
        positions.note_check(&BehindCheck { written: 600, synced: 499, ..check(7, 7) });
        assert_eq!(positions.unsettled(), Some((0, 9)));
        positions.note_check(&BehindCheck { written: 700, synced: 500, ..check(7, 7) });
        assert_eq!(positions.unsettled(), None);
    }

    #[test]
    fn without_overlapping_transactions_everything_is_settled() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        positions.note_check(&check(7, 7));
        assert_eq!(positions.unsettled(), None);
    }
}
