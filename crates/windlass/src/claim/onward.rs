//! Going on from event to event, where there are many lanes.
//!
//! To take what was published next, whatever its lane, costs least where a store keeps it together. That works while most of
//! what comes is for this claimer and there is enough of it; else lanes are asked. Whatever is passed by – a retry, a late
//! commit – is found there, too, since every few claims some lanes have their turn.

use crate::delivery::Delivery;
use crate::store::{Claim, Pick};

/// So many claims in a row, then lanes are asked once.
const RUN: usize = 8;
/// So many claims on lanes, once going on was of no use; then it begins anew.
const REST: usize = 256;

/// What a claim got, as far as it says what to ask next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Got {
    pub lane_id: i64,
    pub event_id: i64,
    has_deadline: bool,
}

impl From<&Delivery> for Got {
    fn from(delivery: &Delivery) -> Got {
        let has_deadline = delivery.event.expires_at.is_some();
        Got { lane_id: delivery.lane_id, event_id: delivery.event.id, has_deadline }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Onward {
    /// There is no place to go on from, nor one to be sought before so many more claims on lanes.
    Lost { rest: usize },
    /// Up to this event nearly all is taken.
    Going { after: i64, run: usize },
}

impl Default for Onward {
    fn default() -> Onward {
        Onward::Lost { rest: REST }
    }
}

impl Onward {
    /// The event to go on from, unless lanes are to be asked.
    pub fn next(self) -> Option<i64> {
        match self {
            Onward::Going { after, run } if run < RUN => Some(after),
            _ => None,
        }
    }

    /// It can begin where the earliest of all lanes are: what comes after them in a lane is later.
    pub fn is_to_begin(self) -> bool {
        self == Onward::Lost { rest: 0 }
    }

    pub fn note(&mut self, claim: &Claim, got: &[Got]) {
        let filled = !got.is_empty() && claim.is_filled(got.len());
        *self = match (claim.pick, *self) {
            // Lanes know what is urgent.
            _ if got.iter().any(|got| got.has_deadline) => Onward::default(),
            (Pick::Onward { after }, Onward::Going { run, .. }) if filled => {
                let last = got.iter().map(|got| got.event_id).max();
                Onward::Going { after: last.unwrap_or(after), run: run + 1 }
            }
            (Pick::Onward { .. }, _) => Onward::default(),
            (Pick::Evenly, Onward::Going { after, .. }) => Onward::Going { after, run: 0 },
            (Pick::Evenly, Onward::Lost { rest }) => Onward::Lost { rest: rest.saturating_sub(1) },
            (Pick::Earliest, _) if filled => Onward::Going { after: beginning(got), run: 0 },
            (Pick::Earliest, unchanged) => unchanged,
        };
    }
}

/// Most of what was got comes after this; a few may be much older, since they are tried again.
fn beginning(got: &[Got]) -> i64 {
    let mut ids: Vec<i64> = got.iter().map(|got| got.event_id).collect();
    ids.sort_unstable();
    ids[ids.len() / 4] - 1
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::delivery::Lease;
    use crate::store::{ClaimSlot, LaneClaim};

    /// One for so many.
    pub fn claim(pick: Pick, lanes: Vec<LaneClaim>, max: usize) -> Claim {
        let slot = ClaimSlot { worker_id: "w".into(), lease: Lease(1), max };
        let (namespace, subscription) = ("default".into(), "main".into());
        Claim { namespace, version: 1, subscription, lanes, pick, requests: vec![slot] }
    }

    pub fn got(lane_id: i64, event_id: i64) -> Got {
        Got { lane_id, event_id, has_deadline: false }
    }

    fn after(onward: Onward, pick: Pick, ids: impl IntoIterator<Item = i64>) -> Onward {
        let (mut onward, ids) = (onward, ids.into_iter().map(|id| got(1, id)));
        onward.note(&claim(pick, Vec::new(), 8), &ids.collect::<Vec<_>>());
        onward
    }

    #[test]
    fn it_begins_with_the_earliest_of_all_but_for_a_few_old_ones() {
        let begun = after(Onward::default(), Pick::Earliest, [3, 100, 101, 102, 103, 104, 105, 106]);
        assert_eq!(begun, Onward::Going { after: 100, run: 0 });
        assert_eq!(after(Onward::default(), Pick::Earliest, [1, 2, 3]), Onward::default(), "too few");
        assert_eq!(after(Onward::default(), Pick::Evenly, 1..9), Onward::Lost { rest: REST - 1 }, "of a few lanes");
    }

    #[test]
    fn it_goes_on_from_the_last_and_lanes_have_a_turn() {
        let mut onward = after(Onward::default(), Pick::Earliest, 1..9);
        for first in (9..).step_by(8).take(RUN) {
            let from = onward.next().unwrap();
            onward = after(onward, Pick::Onward { after: from }, first..first + 8);
            assert!(matches!(onward, Onward::Going { after, .. } if after == first + 7));
        }
        assert_eq!(onward.next(), None);
        let asked = after(onward, Pick::Evenly, [1_000]);
        assert_eq!(asked.next(), Some(8 + 8 * RUN as i64), "what lanes gave does not move it");
    }

    #[test]
    fn where_it_is_of_no_use_lanes_are_asked_for_long() {
        let going = Onward::Going { after: 10, run: 0 };
        let mut onward = after(going, Pick::Onward { after: 10 }, [11, 12, 13]);
        for _ in 0..REST {
            assert_eq!((onward.next(), onward.is_to_begin()), (None, false));
            onward = after(onward, Pick::Evenly, 20..28);
        }
        assert!(onward.is_to_begin());
        assert_eq!(after(onward, Pick::Earliest, 50..58).next(), Some(51));
    }

    #[test]
    fn a_deadline_stops_it() {
        let mut onward = Onward::Going { after: 10, run: 0 };
        let urgent = Got { has_deadline: true, ..got(1, 11) };
        onward.note(&claim(Pick::Onward { after: 10 }, Vec::new(), 1), &[urgent]);
        assert_eq!(onward, Onward::default());
    }
}
