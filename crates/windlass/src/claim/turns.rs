//! Which lanes a claim asks, where there are many.
//!
//! To ask a thousand lanes for their first few deliveries costs more than to take five hundred. So while claims come
//! back full, each asks a few lanes only: most of those that gave something when they were last asked, and some of the
//! others, all in turn. What is left out waits for a few more claims. As soon as a claim is not filled by half, all are
//! asked.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::store::LaneClaim;

/// So many lanes of one priority are asked at once.
const AT_ONCE: usize = 32;
/// Among them so many that gave nothing the last time: new work there is not left waiting.
const OTHERS: usize = 8;

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
}

/// The lanes of one priority, each by its place in the list; who was asked least lately comes first.
#[derive(Default)]
struct Class {
    giving: VecDeque<usize>,
    others: VecDeque<usize>,
}

impl Turns {
    pub fn new(lanes: Vec<LaneClaim>) -> Turns {
        let mut by_priority: HashMap<i16, Class> = HashMap::new();
        for (place, lane) in lanes.iter().enumerate() {
            by_priority.entry(lane.priority).or_default().others.push_back(place);
        }
        let place = lanes.iter().enumerate().map(|(place, lane)| (lane.lane_id, place)).collect();
        let few = by_priority.values().all(|class| class.others.len() <= AT_ONCE);
        Turns { lanes, place, classes: by_priority.into_values().collect(), few, full: false }
    }

    pub fn all(&self) -> Vec<LaneClaim> {
        self.lanes.clone()
    }

    /// The lanes that the next claim asks; `None`: all.
    pub fn next(&mut self) -> Option<Vec<LaneClaim>> {
        if self.few || !self.full {
            return None;
        }
        let mut asked = Vec::new();
        self.classes.iter_mut().for_each(|class| class.next(&mut asked));
        Some(asked.into_iter().map(|place| self.lanes[place].clone()).collect())
    }

    /// What came of asking these: the lane of each delivery that was taken.
    pub fn note(&mut self, asked: &[LaneClaim], taken: &[i64], filled: bool) {
        if self.few {
            return;
        }
        self.full = filled;
        self.sort(asked.iter().map(|lane| lane.lane_id), &taken.iter().copied().collect());
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

    fn turns(lanes: i64, priority: impl Fn(i64) -> i16) -> Turns {
        let lane = |lane_id| LaneClaim {
            lane_id,
            priority: priority(lane_id),
            lease: Duration::from_secs(60),
            deadline_horizon: Duration::ZERO,
        };
        Turns::new((1..=lanes).map(lane).collect())
    }

    /// Asks once, where these lanes have more than enough.
    fn ask(turns: &mut Turns, having: impl Fn(i64) -> bool) -> Option<Vec<i64>> {
        let asked = turns.next().map(|asked| asked.iter().map(|lane| lane.lane_id).collect::<Vec<i64>>());
        let lanes = asked.clone().unwrap_or_else(|| turns.lanes.iter().map(|lane| lane.lane_id).collect());
        let gave: HashSet<i64> = lanes.iter().copied().filter(|lane| having(*lane)).collect();
        turns.full = !gave.is_empty();
        turns.sort(lanes.into_iter(), &gave);
        asked
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
    fn a_claim_that_is_not_filled_is_followed_by_one_to_all() {
        let mut turns = turns(100, |_| 0);
        let all = turns.all();
        for filled in [true, false, true] {
            turns.note(&all, &[1], filled);
            assert_eq!(turns.next().is_some(), filled);
        }
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
