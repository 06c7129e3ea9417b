//! Claim requests in the order in which they came, and by when each stops waiting.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::undelivered::Undelivered;
use crate::error::Result;
use crate::store::ClaimSlot;

/// One claim request, and where its answer goes.
pub(super) struct WaitingClaim {
    pub slot: ClaimSlot,
    pub until: Instant,
    /// It waits long enough to rely on the watcher, so it need not claim when it arrives.
    pub long_poll: bool,
    pub reply: oneshot::Sender<Result<Undelivered>>,
}

impl WaitingClaim {
    /// A caller that is gone drops what it gets.
    pub fn answer(self, answer: Result<Undelivered>) {
        let _ = self.reply.send(answer);
    }
}

/// All requests of one claimer. Adding and removing a request costs the same however many there are.
#[derive(Default)]
pub(super) struct WaitingClaims {
    by_arrival: BTreeMap<u64, WaitingClaim>,
    by_end: BTreeSet<(Instant, u64)>,
    last_arrival: u64,
}

impl WaitingClaims {
    pub fn is_empty(&self) -> bool {
        self.by_arrival.is_empty()
    }

    pub fn push(&mut self, claim: WaitingClaim) {
        self.last_arrival += 1;
        self.put_back(self.last_arrival, claim);
    }

    /// Puts back a request that was taken out, in its old place.
    pub fn put_back(&mut self, arrival: u64, claim: WaitingClaim) {
        self.by_end.insert((claim.until, arrival));
        self.by_arrival.insert(arrival, claim);
    }

    /// Takes out the first requests, with their places: as many as want `room` deliveries together, and at least one.
    /// Requests whose caller is gone are dropped.
    pub fn take_first(&mut self, mut room: usize) -> Vec<(u64, WaitingClaim)> {
        let mut first: Vec<(u64, WaitingClaim)> = Vec::new();
        while let Some(next) = self.by_arrival.first_entry() {
            let (dropped, max) = (next.get().reply.is_closed(), next.get().slot.max);
            if !dropped && max > room && !first.is_empty() {
                break;
            }
            let (arrival, claim) = next.remove_entry();
            self.by_end.remove(&(claim.until, arrival));
            if !dropped {
                room = room.saturating_sub(max);
                first.push((arrival, claim));
            }
        }
        first
    }

    /// When the first of them stops waiting.
    pub fn first_end(&self) -> Option<Instant> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// Takes out the requests that stop waiting by now.
    pub fn take_ended(&mut self, now: Instant) -> Vec<WaitingClaim> {
        let mut ended = Vec::new();
        while let Some((until, arrival)) = self.by_end.first().copied()
            && until <= now
        {
            self.by_end.remove(&(until, arrival));
            ended.extend(self.by_arrival.remove(&arrival));
        }
        ended
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = WaitingClaim> + use<> {
        self.by_end.clear();
        std::mem::take(&mut self.by_arrival).into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::event::delivery::Lease;

    type Answer = oneshot::Receiver<Result<Undelivered>>;

    fn claim(name: usize, max: usize, until: Instant) -> (WaitingClaim, Answer) {
        let (reply, answer) = oneshot::channel();
        let slot = ClaimSlot { worker_id: name.to_string(), lease: Lease(name as i64), max, group_run: 1 };
        (WaitingClaim { slot, until, long_poll: true, reply }, answer)
    }

    fn claims(of: &[(usize, u64)]) -> (WaitingClaims, Vec<Answer>, Instant) {
        let (mut claims, mut answers, now) = (WaitingClaims::default(), Vec::new(), Instant::now());
        for (name, (max, ms)) in of.iter().enumerate() {
            let (claim, answer) = claim(name, *max, now + Duration::from_millis(*ms));
            claims.push(claim);
            answers.push(answer);
        }
        (claims, answers, now)
    }

    fn names<'a>(claims: impl IntoIterator<Item = &'a WaitingClaim>) -> Vec<i64> {
        claims.into_iter().map(|claim| claim.slot.lease.0).collect()
    }

    #[test]
    fn requests_are_taken_in_order_and_keep_their_place() {
        let (mut claims, _answers, _) = claims(&[(2, 9), (2, 8), (2, 7), (9, 6)]);
        let first = claims.take_first(5);
        assert_eq!(names(first.iter().map(|(_, claim)| claim)), [0, 1]);
        for (arrival, claim) in first.into_iter().rev() {
            claims.put_back(arrival, claim);
        }
        assert_eq!(names(claims.take_first(6).iter().map(|(_, claim)| claim)), [0, 1, 2]);
        // A request for more than there is room for is taken alone.
        assert_eq!(names(claims.take_first(5).iter().map(|(_, claim)| claim)), [3]);
        assert!(claims.is_empty() && claims.first_end().is_none());
    }

    #[test]
    fn requests_that_stop_waiting_are_found() {
        let (mut claims, _answers, now) = claims(&[(1, 30), (1, 10), (1, 20), (1, 10)]);
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(claims.first_end(), Some(at(10)));
        assert!(claims.take_ended(at(9)).is_empty());
        assert_eq!(names(&claims.take_ended(at(20))), [1, 3, 2]);
        assert_eq!(claims.first_end(), Some(at(30)));
        assert_eq!(names(&claims.take_all().collect::<Vec<_>>()), [0]);
        assert!(claims.is_empty() && claims.first_end().is_none());
    }

    #[test]
    fn requests_whose_caller_is_gone_are_skipped() {
        let (mut claims, mut answers, _) = claims(&[(1, 10), (5, 10), (1, 10)]);
        drop(answers.drain(..2));
        assert_eq!(names(claims.take_first(1).iter().map(|(_, claim)| claim)), [2]);
        assert!(claims.is_empty() && claims.first_end().is_none());
    }
}
