//! The waiting claim requests of a claimer, in arrival order and by the time at which each stops waiting.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::undelivered::Undelivered;
use crate::error::Result;
use crate::store::ClaimSlot;

/// A claim request and the channel for its reply.
pub(super) struct WaitingClaim {
    pub slot: ClaimSlot,
    pub until: Instant,
    /// Waits long enough to rely on the watcher, so it can join waiting requests without a claim of its own.
    pub long_poll: bool,
    pub reply_to: oneshot::Sender<Result<Undelivered>>,
}

impl WaitingClaim {
    /// If the caller is gone, the reply is dropped, which releases its deliveries.
    pub fn reply(self, reply: Result<Undelivered>) {
        let _ = self.reply_to.send(reply);
    }
}

/// All requests of one claimer. Adding or removing a request takes logarithmic time.
#[derive(Default)]
pub(super) struct WaitingClaims {
    by_arrival: BTreeMap<u64, WaitingClaim>,
    by_timeout: BTreeSet<(Instant, u64)>,
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

    /// Puts back a request that was taken out, at its old position.
    pub fn put_back(&mut self, arrival: u64, claim: WaitingClaim) {
        self.by_timeout.insert((claim.until, arrival));
        self.by_arrival.insert(arrival, claim);
    }

    /// Takes out the first requests with their positions: at least one, and more while they ask for at most `capacity`
    /// deliveries together. Requests whose caller is gone are dropped.
    pub fn take_first(&mut self, mut capacity: usize) -> Vec<(u64, WaitingClaim)> {
        let mut first: Vec<(u64, WaitingClaim)> = Vec::new();
        while let Some(next) = self.by_arrival.first_entry() {
            let (dropped, max) = (next.get().reply_to.is_closed(), next.get().slot.max);
            if !dropped && max > capacity && !first.is_empty() {
                break;
            }
            let (arrival, claim) = next.remove_entry();
            self.by_timeout.remove(&(claim.until, arrival));
            if !dropped {
                capacity = capacity.saturating_sub(max);
                first.push((arrival, claim));
            }
        }
        first
    }

    /// When the first request stops waiting.
    pub fn first_timeout(&self) -> Option<Instant> {
        self.by_timeout.first().map(|(until, _)| *until)
    }

    /// Takes out the requests that stop waiting by `now`.
    pub fn take_timed_out(&mut self, now: Instant) -> Vec<WaitingClaim> {
        let mut timed_out = Vec::new();
        while let Some((until, arrival)) = self.by_timeout.first().copied()
            && until <= now
        {
            self.by_timeout.remove(&(until, arrival));
            timed_out.extend(self.by_arrival.remove(&arrival));
        }
        timed_out
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = WaitingClaim> + use<> {
        self.by_timeout.clear();
        std::mem::take(&mut self.by_arrival).into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::event::delivery::Lease;

    type Reply = oneshot::Receiver<Result<Undelivered>>;

    fn claim(name: usize, max: usize, until: Instant) -> (WaitingClaim, Reply) {
        let (reply_to, reply) = oneshot::channel();
        let slot = ClaimSlot { worker_id: name.to_string(), lease: Lease(name as i64), max, group_run: 1 };
        (WaitingClaim { slot, until, long_poll: true, reply_to }, reply)
    }

    fn claims(of: &[(usize, u64)]) -> (WaitingClaims, Vec<Reply>, Instant) {
        let (mut claims, mut replies, now) = (WaitingClaims::default(), Vec::new(), Instant::now());
        for (name, (max, ms)) in of.iter().enumerate() {
            let (claim, reply) = claim(name, *max, now + Duration::from_millis(*ms));
            claims.push(claim);
            replies.push(reply);
        }
        (claims, replies, now)
    }

    fn names<'a>(claims: impl IntoIterator<Item = &'a WaitingClaim>) -> Vec<i64> {
        claims.into_iter().map(|claim| claim.slot.lease.0).collect()
    }

    #[test]
    fn requests_are_taken_in_order_and_keep_their_position() {
        let (mut claims, _replies, _) = claims(&[(2, 9), (2, 8), (2, 7), (9, 6)]);
        let first = claims.take_first(5);
        assert_eq!(names(first.iter().map(|(_, claim)| claim)), [0, 1]);
        for (arrival, claim) in first.into_iter().rev() {
            claims.put_back(arrival, claim);
        }
        assert_eq!(names(claims.take_first(6).iter().map(|(_, claim)| claim)), [0, 1, 2]);
        // A request for more than the capacity is taken alone.
        assert_eq!(names(claims.take_first(5).iter().map(|(_, claim)| claim)), [3]);
        assert!(claims.is_empty() && claims.first_timeout().is_none());
    }

    #[test]
    fn timed_out_requests_are_taken_out() {
        let (mut claims, _replies, now) = claims(&[(1, 30), (1, 10), (1, 20), (1, 10)]);
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(claims.first_timeout(), Some(at(10)));
        assert!(claims.take_timed_out(at(9)).is_empty());
        assert_eq!(names(&claims.take_timed_out(at(20))), [1, 3, 2]);
        assert_eq!(claims.first_timeout(), Some(at(30)));
        assert_eq!(names(&claims.take_all().collect::<Vec<_>>()), [0]);
        assert!(claims.is_empty() && claims.first_timeout().is_none());
    }

    #[test]
    fn requests_without_a_caller_are_dropped() {
        let (mut claims, mut replies, _) = claims(&[(1, 10), (5, 10), (1, 10)]);
        drop(replies.drain(..2));
        assert_eq!(names(claims.take_first(1).iter().map(|(_, claim)| claim)), [2]);
        assert!(claims.is_empty() && claims.first_timeout().is_none());
    }
}
