//! How far a claimer has read in each stream of deliveries.
//!
//! On PostgreSQL a claim must not scan the rows that earlier claims have passed: rows in progress, and finished rows
//! that vacuum has not removed. So a claim starts at a remembered position. A delivery can still appear behind a
//! position: a publisher committed late, a delivery was released or retried, or it was locked when the claim passed it.
//! Positions may delay such a delivery, but never hide it:
//!
//! - An empty claim is repeated from the start, so "nothing to claim" is exact.
//! - Under load, the claimer checks behind its positions about once a second.
//! - After an error, or when the store has opened a new connection, the claimer forgets its positions: the server may
//!   have crashed and lost claims that were not synced.

use std::collections::HashMap;

use crate::store::{BehindCheck, Claimed, ReadyPosition, StreamPosition};

/// A stream that is ordered by ready time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReadyStream {
    Priority(i16),
    Lane(i64),
}

#[derive(Debug, Default)]
pub(super) struct Positions {
    /// In publish order: the last event that was claimed, or passed because the filter does not select it.
    read: i64,
    /// In publish order: no delivery up to this event can become claimable in publish order any more.
    settled: i64,
    /// An earlier check that may settle later, and the value of `read` at that time.
    unsettled_check: Option<(BehindCheck, i64)>,
    ready: HashMap<ReadyStream, ReadyPosition>,
    /// The number of connections that the store had opened for claims at the last claim.
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

    /// In publish order: no delivery up to this event can be claimed.
    pub fn settled(&self) -> i64 {
        self.settled
    }

    /// Resets all positions if the store has opened a connection since the last claim. Returns `true` if a claim from
    /// the old positions may have missed a delivery.
    pub fn reset_on_reconnect(&mut self, connects: u64) -> bool {
        let reconnected = self.connects != connects;
        let missed = reconnected && (self.read > 0 || !self.ready.is_empty());
        if reconnected {
            *self = Positions { connects, ..Positions::default() };
        }
        missed
    }

    /// The range of events in publish order that must be checked before "nothing to claim" is certain.
    pub fn unsettled(&self) -> Option<(i64, i64)> {
        (self.settled < self.read).then_some((self.settled, self.read))
    }

    /// Moves back to where nothing can have been missed.
    pub fn rewind(&mut self) {
        self.read = self.settled;
        self.ready.clear();
    }

    /// Restarts the streams that are ordered by ready time. Returns `true` if they were not at their start.
    pub fn restart_ready_streams(&mut self) -> bool {
        let restarted = !self.ready.is_empty();
        self.ready.clear();
        restarted
    }

    /// Moves the positions after a claim. `filled`: the claim returned as many deliveries as it asked for.
    pub fn advance(&mut self, claimed: &Claimed, filled: bool) {
        let in_order = claimed.positions.iter().filter_map(|place| match place {
            StreamPosition::InOrder { event_id } => Some(*event_id),
            _ => None,
        });
        let (first, last) = (in_order.clone().min(), in_order.clone().max());
        let only_in_order = in_order.count() == claimed.positions.len();
        match (first, last) {
            // The claim has read everything that was visible.
            _ if !filled => self.read = self.read.max(claimed.newest.unwrap_or(0)),
            (Some(_), Some(last)) if only_in_order => self.read = self.read.max(last),
            // The streams were merged, so an earlier event in publish order may be left behind a later one.
            (Some(first), _) => self.read = self.read.max(first - 1),
            _ => {}
        }
        for place in &claimed.positions {
            let (stream, position) = match *place {
                StreamPosition::OutOfOrder { priority, position } => (ReadyStream::Priority(priority), position),
                StreamPosition::Lane { lane_id, position } => (ReadyStream::Lane(lane_id), position),
                StreamPosition::Deadline | StreamPosition::InOrder { .. } => continue,
            };
            let current = self.ready.entry(stream).or_insert(position);
            *current = position.max(*current);
        }
    }

    /// Applies a check of the events between `settled` and `read`. Returns `true` if one of them can be claimed.
    pub fn apply_check(&mut self, check: &BehindCheck) -> bool {
        if let Some(first) = check.first {
            self.read = first - 1;
            return true;
        }
        let earlier = self.unsettled_check.take_if(|(earlier, _)| check.settles(earlier));
        // Without open transactions and unsynced claims, the position is settled immediately.
        let settled = if check.settles(check) { Some(self.read) } else { earlier.map(|(_, read)| read.min(self.read)) };
        self.settled = self.settled.max(settled.unwrap_or(0));
        self.unsettled_check.get_or_insert((*check, self.read));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_micros;

    fn claimed(positions: impl IntoIterator<Item = StreamPosition>, newest: i64) -> Claimed {
        Claimed { positions: positions.into_iter().collect(), newest: Some(newest), ..Claimed::default() }
    }

    /// A check with a fully synced log.
    fn check(ended: i64, next: i64) -> BehindCheck {
        BehindCheck { ended, next, ..BehindCheck::default() }
    }

    fn in_order(ids: impl IntoIterator<Item = i64>) -> Vec<StreamPosition> {
        ids.into_iter().map(|event_id| StreamPosition::InOrder { event_id }).collect()
    }

    #[test]
    fn filled_claim_moves_to_its_last_event() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(3..=9), 50), true);
        assert_eq!((positions.after_event(), positions.unsettled()), (9, Some((0, 9))));
    }

    #[test]
    fn unfilled_claim_moves_to_the_newest_event() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order([3]), 50), false);
        assert_eq!(positions.after_event(), 50);
    }

    #[test]
    fn merged_claim_moves_to_before_its_first_event() {
        let (mut positions, position) = (Positions::default(), (from_micros(5), 2));
        let retried = StreamPosition::OutOfOrder { priority: 0, position };
        positions.advance(&claimed(in_order([30, 31]).into_iter().chain([retried]), 50), true);
        assert_eq!((positions.after_event(), positions.priorities()), (29, vec![(0, position)]));
        positions.restart_ready_streams();
        assert!(positions.priorities().is_empty());
    }

    #[test]
    fn late_event_rewinds_the_position() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        assert!(positions.apply_check(&BehindCheck { first: Some(4), ..check(100, 105) }));
        assert_eq!((positions.after_event(), positions.unsettled()), (3, Some((0, 3))));
    }

    #[test]
    fn position_settles_when_concurrent_transactions_have_ended() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        positions.apply_check(&check(100, 105));
        positions.advance(&claimed(in_order(10..=20), 20), true);
        // One of the transactions is still open.
        positions.apply_check(&check(104, 110));
        assert_eq!(positions.unsettled(), Some((0, 20)));
        positions.apply_check(&check(105, 111));
        assert_eq!(positions.unsettled(), Some((9, 20)));
    }

    #[test]
    fn position_does_not_settle_before_its_claims_are_synced() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        positions.apply_check(&BehindCheck { written: 500, synced: 400, ..check(7, 7) });
        positions.apply_check(&BehindCheck { written: 600, synced: 499, ..check(7, 7) });
        assert_eq!(positions.unsettled(), Some((0, 9)));
        positions.apply_check(&BehindCheck { written: 700, synced: 500, ..check(7, 7) });
        assert_eq!(positions.unsettled(), None);
    }

    #[test]
    fn position_settles_immediately_without_open_transactions() {
        let mut positions = Positions::default();
        positions.advance(&claimed(in_order(1..=9), 9), true);
        positions.apply_check(&check(7, 7));
        assert_eq!(positions.unsettled(), None);
    }
}
