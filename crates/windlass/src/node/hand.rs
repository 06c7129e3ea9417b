//! What a node holds, and holding it for longer.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::event::delivery::{Delivery, Lease};
use crate::queue::Queue;
use crate::queue::finish::LeasedEvent;
use crate::queue::wake::lock;

/// A lease is renewed when one part in this many of it has passed. The rest is for a database that is away.
const RENEW_AFTER: u32 = 3;
/// A renewal that failed is tried again after one part in this many of the lease.
const RENEW_AGAIN: u32 = 10;
/// With nothing in hand, nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// One delivery in hand.
pub(super) struct Grip {
    delivery: Arc<Delivery>,
    lease: Duration,
    received: Instant,
    lost: AtomicBool,
    losing: Notify,
}

impl Grip {
    pub fn new(delivery: Arc<Delivery>) -> Arc<Grip> {
        let lease = (delivery.lease_expires_at - delivery.picked_at).to_std().unwrap_or_default();
        let (lost, losing) = (AtomicBool::new(false), Notify::new());
        Arc::new(Grip { delivery, lease, received: Instant::now(), lost, losing })
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Ready once the lease is lost.
    pub async fn lost(&self) {
        let mut losing = std::pin::pin!(self.losing.notified());
        losing.as_mut().enable();
        if !self.is_lost() {
            losing.await;
        }
    }

    /// Whether its deadline has passed, by the database's clock at the claim and ours since.
    pub fn is_expired(&self) -> bool {
        let Some(expires_at) = self.delivery.event.expires_at else { return false };
        let left = (expires_at - self.delivery.picked_at).to_std().unwrap_or_default();
        left <= self.received.elapsed()
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.losing.notify_waiters();
    }

    fn key(&self) -> Key {
        (self.delivery.event.id, self.delivery.lease)
    }
}

/// One that was lost may be in hand a second time, with another lease.
type Key = (i64, Lease);

/// Keeps a delivery in hand.
pub(super) struct Hold<'a> {
    hand: &'a Hand,
    key: Key,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        lock(&self.hand.book).grips.remove(&self.key);
    }
}

/// All that a node holds.
#[derive(Default)]
pub(super) struct Hand {
    book: Mutex<Book>,
    sooner: Notify,
}

#[derive(Default)]
struct Book {
    grips: HashMap<Key, (Arc<Grip>, Instant)>,
    /// When the keeper wakes up.
    next: Option<Instant>,
}

impl Hand {
    /// Renews its lease from now on, until what is returned is dropped.
    pub fn hold<'a>(&'a self, grip: &Arc<Grip>) -> Hold<'a> {
        let due = grip.received + grip.lease / RENEW_AFTER;
        let mut book = lock(&self.book);
        book.grips.insert(grip.key(), (grip.clone(), due));
        if book.next.is_none_or(|next| due < next) {
            book.next = Some(due);
            self.sooner.notify_one();
        }
        Hold { hand: self, key: grip.key() }
    }

    /// When the first lease is to be renewed.
    fn next(&self) -> Option<Instant> {
        let mut book = lock(&self.book);
        book.next = book.grips.values().map(|(_, due)| *due).min();
        book.next
    }

    /// The leases to renew now, including those that are due soon, in the order of their events. Transactions that lock
    /// deliveries in this order do not deadlock with each other.
    fn due(&self) -> Vec<Arc<Grip>> {
        let (book, now) = (lock(&self.book), Instant::now());
        let soon = |grip: &Grip| now + grip.lease / RENEW_AGAIN;
        let is_due = book.grips.values().filter(|(grip, due)| *due <= soon(grip));
        let mut due: Vec<Arc<Grip>> = is_due.map(|(grip, _)| grip.clone()).collect();
        due.sort_by_key(|grip| grip.delivery.event.id);
        due
    }

    fn renewed(&self, grip: &Grip, part: u32) {
        if let Some((_, due)) = lock(&self.book).grips.get_mut(&grip.key()) {
            *due = Instant::now() + grip.lease / part;
        }
    }

    /// Renews leases for as long as it is not dropped.
    pub async fn keep(&self, queue: &Queue) {
        loop {
            let next = self.next().unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                () = tokio::time::sleep_until(next) => self.renew(queue).await,
                () = self.sooner.notified() => {}
            }
        }
    }

    async fn renew(&self, queue: &Queue) {
        let mut by_lease: BTreeMap<Duration, Vec<Arc<Grip>>> = BTreeMap::new();
        self.due().into_iter().for_each(|grip| by_lease.entry(grip.lease).or_default().push(grip));
        for (lease, due) in by_lease {
            self.renew_all(queue, lease, &due).await;
        }
    }

    /// For as long as they were taken: the policy may have changed since, and we would come too late for a shorter one.
    async fn renew_all(&self, queue: &Queue, lease: Duration, due: &[Arc<Grip>]) {
        let held = due.iter().map(|grip| LeasedEvent::from(&*grip.delivery)).collect();
        match queue.extend_all(held, Some(lease)).await {
            Ok(extended) => {
                for (grip, extended) in due.iter().zip(extended) {
                    match extended {
                        Some(_) => self.renewed(grip, RENEW_AFTER),
                        None => self.lose(grip),
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, leases = due.len(), "could not renew leases; trying again");
                due.iter().for_each(|grip| self.renewed(grip, RENEW_AGAIN));
            }
        }
    }

    /// The lease on a delivery is lost: stops renewing it and tells its handlers.
    pub fn lose(&self, grip: &Grip) {
        // One that was finished meanwhile is not lost; one that is just being finished may be taken for it.
        if lock(&self.book).grips.remove(&grip.key()).is_some() {
            tracing::debug!(event_id = grip.delivery.event.id, "the lease on an event is gone");
            grip.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Timestamp, from_micros};
    use crate::event::Event;

    fn grip(expires_at: Option<Timestamp>) -> Arc<Grip> {
        let at = from_micros;
        let event = Event {
            id: 1,
            namespace: "n".into(),
            event_type: "t".into(),
            title: None,
            description: None,
            tags: String::new(),
            payload: serde_json::value::RawValue::NULL.to_owned(),
            group_id: None,
            key: None,
            priority: 0,
            producer: None,
            scheduled_task_id: None,
            run_at: None,
            expires_at,
            metadata: None,
            created_at: at(0),
        };
        Grip::new(Arc::new(Delivery {
            event,
            subscription: "main".into(),
            worker_id: "w".into(),
            lease: Lease(1),
            attempts: 1,
            retry_count: 0,
            max_retries: None,
            picked_at: at(1_000_000),
            lease_expires_at: at(61_000_000),
            subscription_id: 1,
            lane_id: 1,
            attempts_limit: 20,
        }))
    }

    // O3
    #[test]
    fn a_deadline_counts_from_the_claim_by_our_own_clock() {
        assert!(!grip(None).is_expired());
        assert!(grip(Some(from_micros(1_000_000))).is_expired());
        assert!(grip(Some(from_micros(999_999))).is_expired());
        assert!(!grip(Some(from_micros(3_600_000_000))).is_expired());
    }

    #[tokio::test]
    async fn what_is_held_is_renewed_until_it_is_let_go() {
        let (hand, grip) = (Hand::default(), grip(None));
        let hold = hand.hold(&grip);
        assert_eq!(hand.next(), Some(grip.received + Duration::from_secs(20)));
        drop(hold);
        assert_eq!(hand.next(), None);
    }
}
