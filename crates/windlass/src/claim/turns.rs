//! Which lanes a claim asks, where there are many.
//!
//! To ask a thousand lanes for their first few deliveries costs more than to take five hundred. So while claims come
//! back full, each asks a few lanes only: most of those that gave something when they were last asked, and some of the
//! others, all in turn. What is left out waits for a few more claims. As soon as a claim is not filled by half, all are
//! asked.

use std::collections::{HashMap, HashSet, VecDeque};

use super::onward::{Got, Onward};
use crate::store::{Claim, LaneClaim, Pick};

/// So many lanes of one priority are asked at once.
const AT_ONCE: usize = 32;
/// Among them so many that gave nothing the last time: new work there is not left waiting.
const OTHERS: usize = 8;
/// Going on from event to event names all lanes: at most so many for each delivery that is wanted.
const ONWARD_LANES: usize = 4;

/// The lanes of a claimer, by when they are asked.
#[derive(Default)]
pub(super) struct Turns {
    lanes: Vec<LaneClaim>,
    place: HashMap<i64, usize>,
    classes: Vec<Class>,
    /// There are too few to choose from.
    few: bool,
    /// The last claim was filled, by half at least.
    full: bool,
    /// In stores that can, where all lanes are of one priority.
    onward: Option<Onward>,
}

/// The lanes of one priority, each by its place in the list; who was asked least lately comes first.
#[derive(Default)]
struct Class {
    giving: VecDeque<usize>,
    others: VecDeque<usize>,
}

impl Turns {
    pub fn new(lanes: Vec<LaneClaim>, goes_onward: bool) -> Turns {
        let mut by_priority: HashMap<i16, Class> = HashMap::new();
        for (place, lane) in lanes.iter().enumerate() {
            by_priority.entry(lane.priority).or_default().others.push_back(place);
        }
        let place = lanes.iter().enumerate().map(|(place, lane)| (lane.lane_id, place)).collect();
        let few = by_priority.values().all(|class| class.others.len() <= AT_ONCE);
        let classes: Vec<Class> = by_priority.into_values().collect();
        let onward = (goes_onward && classes.len() == 1).then(Onward::default);
        Turns { lanes, place, classes, few, full: false, onward }
    }

    pub fn all(&self) -> Vec<LaneClaim> {
        self.lanes.clone()
    }

    /// The lanes that the next claim asks, and how; `None`: all, for the earliest.
    pub fn next(&mut self, wanted: usize) -> Option<(Vec<LaneClaim>, Pick)> {
        if self.few || !self.full {
            return None;
        }
        if let Some(onward) = self.onward.filter(|_| self.lanes.len() <= ONWARD_LANES * wanted) {
            if onward.is_to_begin() {
                return None;
            } else if let Some(after) = onward.next() {
                return Some((self.all(), Pick::Onward { after }));
            }
        }
        let mut asked = Vec::new();
        self.classes.iter_mut().for_each(|class| class.next(&mut asked));
        Some((asked.into_iter().map(|place| self.lanes[place].clone()).collect(), Pick::Evenly))
    }

    pub fn note(&mut self, claim: &Claim, got: &[Got]) {
        if self.few {
            return;
        }
        if let Some(onward) = &mut self.onward {
            onward.note(claim, got);
        }
        // What is passed on the way says little about a lane.
        if !matches!(claim.pick, Pick::Onward { .. }) {
            self.full = !got.is_empty() && claim.is_filled(got.len());
            let gave = got.iter().map(|got| got.lane_id).collect();
            self.sort(claim.lanes.iter().map(|lane| lane.lane_id), &gave);
        }
    }

    fn sort(&mut self, asked: impl Iterator<Item = i64>, gave: &HashSet<i64>) {
        let (giving, silent): (Vec<i64>, Vec<i64>) = asked.partition(|lane| gave.contains(lane));
        let places = |lanes: Vec<i64>| lanes.iter().filter_map(|lane| self.place.get(lane).copied()).collect();
        let (giving, silent): (HashSet<usize>, HashSet<usize>) = (places(giving), places(silent));
        for class in &mut self.classes {
            shift(&mut class.giving, &mut class.others, &silent);
            shift(&mut class.others, &mut class.giving, &giving);
        }
    }
}

impl Class {
    /// Adds those whose turn it is; then it is the turn of those after them.
    fn next(&mut self, asked: &mut Vec<usize>) {
        let others = OTHERS.max(AT_ONCE.saturating_sub(self.giving.len())).min(self.others.len());
        for (lanes, count) in [(&mut self.giving, AT_ONCE - others), (&mut self.others, others)] {
            let count = count.min(lanes.len());
            asked.extend(lanes.iter().take(count));
            lanes.rotate_left(count);
        }
    }
}

fn shift(from: &mut VecDeque<usize>, to: &mut VecDeque<usize>, which: &HashSet<usize>) {
    if from.iter().any(|place| which.contains(place)) {
        to.extend(from.iter().filter(|place| which.contains(place)));
        from.retain(|place| !which.contains(place));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::claim::onward::tests::{claim, got};

    fn turns(lanes: i64, priority: impl Fn(i64) -> i16) -> Turns {
        let lane = |lane_id| LaneClaim {
            lane_id,
            priority: priority(lane_id),
            lease: Duration::from_secs(60),
            deadline_horizon: Duration::ZERO,
        };
        Turns::new((1..=lanes).map(lane).collect(), false)
    }

    /// Asks once for ten, where these lanes have more than enough; which were asked, unless all.
    fn ask(turns: &mut Turns, having: impl Fn(i64) -> bool) -> Option<Vec<i64>> {
        let (asked, pick) = turns.next(10).unzip();
        let claim = claim(pick.unwrap_or(Pick::Earliest), asked.clone().unwrap_or_else(|| turns.all()), 10);
        let gave = claim.lanes.iter().map(|lane| lane.lane_id).filter(|lane| having(*lane));
        let gave: Vec<Got> = gave.flat_map(|lane| (0..10).map(move |event| got(lane, event))).collect();
        turns.note(&claim, &gave);
        asked.map(|asked| asked.iter().map(|lane| lane.lane_id).collect())
    }

    #[test]
    fn few_lanes_are_all_asked() {
        let mut turns = turns(AT_ONCE as i64, |_| 0);
        assert_eq!(ask(&mut turns, |_| true), None);
        assert_eq!(ask(&mut turns, |_| true), None);
    }

    #[test]
    fn of_many_lanes_each_has_its_turn() {
        let mut turns = turns(100, |_| 0);
        assert_eq!(ask(&mut turns, |_| true), None, "all, before anything is known");
        let mut seen = HashSet::new();
        for _ in 0..4 {
            let asked = ask(&mut turns, |_| true).unwrap();
            assert_eq!(asked.len(), AT_ONCE);
            seen.extend(asked);
        }
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn lanes_that_gave_nothing_are_asked_less_but_asked() {
        let mut turns = turns(1000, |_| 0);
        ask(&mut turns, |lane| lane <= 100);
        let (mut giving, mut others) = (HashSet::new(), HashSet::new());
        for _ in 0..120 {
            let asked = ask(&mut turns, |lane| lane <= 100).unwrap();
            assert_eq!(asked.iter().filter(|lane| **lane <= 100).count(), AT_ONCE - OTHERS);
            let (a, b): (Vec<i64>, Vec<i64>) = asked.into_iter().partition(|lane| *lane <= 100);
            giving.extend(a);
            others.extend(b);
        }
        assert_eq!((giving.len(), others.len()), (100, 900));
    }

    #[test]
    fn what_begins_to_give_is_remembered_and_what_ends_forgotten() {
        let mut turns = turns(100, |_| 0);
        ask(&mut turns, |lane| lane == 1);
        assert!(ask(&mut turns, |lane| lane == 1).unwrap().contains(&1));
        // From here on it is another one; within a few turns it is found, and from then on always asked.
        let found = (0..10).find(|_| ask(&mut turns, |lane| lane == 1 || lane == 77).unwrap().contains(&77));
        assert!(found.is_some());
        let asked = ask(&mut turns, |lane| lane == 77).unwrap();
        assert!(asked.contains(&77) && asked.contains(&1));
        assert_eq!(turns.classes[0].giving, [76]);
    }

    #[test]
    fn a_claim_that_is_not_filled_by_half_is_followed_by_one_to_all() {
        let mut turns = turns(100, |_| 0);
        let claim = claim(Pick::Earliest, turns.all(), 10);
        for (taken, goes_on) in [(10, true), (5, true), (4, false), (0, false)] {
            turns.note(&claim, &vec![got(1, 1); taken]);
            assert_eq!(turns.next(10).is_some(), goes_on, "{taken} of 10");
        }
    }

    #[test]
    fn where_the_store_can_a_claim_goes_on_from_the_last_one_unless_lanes_are_too_many() {
        let mut turns = Turns::new(turns(100, |_| 0).all(), true);
        let all = claim(Pick::Earliest, turns.all(), 50);
        turns.note(&all, &(1..=50).map(|n| got(n, n)).collect::<Vec<_>>());
        assert_eq!(turns.next(50).map(|(lanes, pick)| (lanes.len(), pick)), Some((100, Pick::Onward { after: 12 })));
        assert_eq!(turns.next(10).map(|(lanes, pick)| (lanes.len(), pick)), Some((AT_ONCE, Pick::Evenly)));
        // One that finds little says nothing about lanes.
        turns.note(&claim(Pick::Onward { after: 12 }, turns.all(), 50), &[]);
        assert_eq!(turns.next(50).map(|(lanes, pick)| (lanes.len(), pick)), Some((AT_ONCE, Pick::Evenly)));
    }

    #[test]
    fn every_priority_has_its_own_turns() {
        let mut turns = turns(200, |lane| i16::from(lane > 100));
        ask(&mut turns, |_| true);
        let asked = ask(&mut turns, |_| true).unwrap();
        assert_eq!(asked.iter().filter(|lane| **lane > 100).count(), AT_ONCE);
        assert_eq!(asked.len(), 2 * AT_ONCE);
    }
}
