//! Who asks, in the order they came, and when each gives up.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::handed::Handed;
use crate::error::Result;
use crate::store::ClaimSlot;

/// One request, and where its answer goes.
pub(super) struct Ask {
    pub slot: ClaimSlot,
    pub until: Instant,
    /// It waits long enough to rely on what is found for those who wait.
    pub patient: bool,
    pub reply: oneshot::Sender<Result<Handed>>,
}

impl Ask {
    /// Who no longer listens drops what it gets.
    pub fn answer(self, answer: Result<Handed>) {
        let _ = self.reply.send(answer);
    }
}

/// All that ask. Whoever comes, goes or gives up costs the same however many there are.
#[derive(Default)]
pub(super) struct Asking {
    by_turn: BTreeMap<u64, Ask>,
    by_end: BTreeSet<(Instant, u64)>,
    next_turn: u64,
}

impl Asking {
    pub fn is_empty(&self) -> bool {
        self.by_turn.is_empty()
    }

    pub fn push(&mut self, ask: Ask) {
        self.next_turn += 1;
        self.put_back(self.next_turn, ask);
    }

    /// One that was taken out gets its turn again.
    pub fn put_back(&mut self, turn: u64, ask: Ask) {
        self.by_end.insert((ask.until, turn));
        self.by_turn.insert(turn, ask);
    }

    /// Takes out those whose turn it is, with their turns: as many as want `room` deliveries together, and
    /// at least one. Who no longer listens is dropped.
    pub fn take_first(&mut self, mut room: usize) -> Vec<(u64, Ask)> {
        let mut first: Vec<(u64, Ask)> = Vec::new();
        while let Some(next) = self.by_turn.first_entry() {
            let (dropped, max) = (next.get().reply.is_closed(), next.get().slot.max);
            if !dropped && max > room && !first.is_empty() {
                break;
            }
            let (turn, ask) = next.remove_entry();
            self.by_end.remove(&(ask.until, turn));
            if !dropped {
                room = room.saturating_sub(max);
                first.push((turn, ask));
            }
        }
        first
    }

    /// When the first of them gives up.
    pub fn first_end(&self) -> Option<Instant> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// Takes out whoever has given up by now.
    pub fn take_ended(&mut self, now: Instant) -> Vec<Ask> {
        let mut ended = Vec::new();
        while let Some((until, turn)) = self.by_end.first().copied()
            && until <= now
        {
            self.by_end.remove(&(until, turn));
            ended.extend(self.by_turn.remove(&turn));
        }
        ended
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = Ask> + use<> {
        self.by_end.clear();
        std::mem::take(&mut self.by_turn).into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::delivery::Lease;

    type Answer = oneshot::Receiver<Result<Handed>>;

    fn ask(name: usize, max: usize, until: Instant) -> (Ask, Answer) {
        let (reply, answer) = oneshot::channel();
        let slot = ClaimSlot { worker_id: name.to_string(), lease: Lease(name as i64), max };
        (Ask { slot, until, patient: true, reply }, answer)
    }

    fn asking(asks: &[(usize, u64)]) -> (Asking, Vec<Answer>, Instant) {
        let (mut asking, mut answers, now) = (Asking::default(), Vec::new(), Instant::now());
        for (name, (max, ms)) in asks.iter().enumerate() {
            let (ask, answer) = ask(name, *max, now + Duration::from_millis(*ms));
            asking.push(ask);
            answers.push(answer);
        }
        (asking, answers, now)
    }

    fn names<'a>(asks: impl IntoIterator<Item = &'a Ask>) -> Vec<i64> {
        asks.into_iter().map(|ask| ask.slot.lease.0).collect()
    }

    #[test]
    fn turns_are_taken_in_order_and_kept_by_who_is_put_back() {
        let (mut asking, _answers, _) = asking(&[(2, 9), (2, 8), (2, 7), (9, 6)]);
        let first = asking.take_first(5);
        assert_eq!(names(first.iter().map(|(_, ask)| ask)), [0, 1]);
        for (turn, ask) in first.into_iter().rev() {
            asking.put_back(turn, ask);
        }
        assert_eq!(names(asking.take_first(6).iter().map(|(_, ask)| ask)), [0, 1, 2]);
        // One that wants more than there is room for is not passed over for ever.
        assert_eq!(names(asking.take_first(5).iter().map(|(_, ask)| ask)), [3]);
        assert!(asking.is_empty() && asking.first_end().is_none());
    }

    #[test]
    fn who_gives_up_is_found_by_its_end() {
        let (mut asking, _answers, now) = asking(&[(1, 30), (1, 10), (1, 20), (1, 10)]);
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(asking.first_end(), Some(at(10)));
        assert!(asking.take_ended(at(9)).is_empty());
        assert_eq!(names(&asking.take_ended(at(20))), [1, 3, 2]);
        assert_eq!(asking.first_end(), Some(at(30)));
        assert_eq!(names(&asking.take_all().collect::<Vec<_>>()), [0]);
        assert!(asking.is_empty() && asking.first_end().is_none());
    }

    #[test]
    fn who_no_longer_listens_is_passed_over() {
        let (mut asking, mut answers, _) = asking(&[(1, 10), (5, 10), (1, 10)]);
        drop(answers.drain(..2));
        assert_eq!(names(asking.take_first(1).iter().map(|(_, ask)| ask)), [2]);
        assert!(asking.is_empty() && asking.first_end().is_none());
    }
}
