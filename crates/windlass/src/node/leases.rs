//! The deliveries a node has leased, and the renewal of their leases.

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

/// A lease is renewed after one third of its duration. The rest is time to retry while the database is unavailable.
const RENEW_AFTER_FRACTION: u32 = 3;
/// A failed renewal is retried after one tenth of the lease duration.
const RETRY_AFTER_FRACTION: u32 = 10;
/// How long the renewer sleeps while the node holds no lease.
const IDLE_SLEEP: Duration = Duration::from_secs(3600);

/// One delivery that the node has leased.
pub(super) struct LeasedDelivery {
    delivery: Arc<Delivery>,
    lease_duration: Duration,
    received: Instant,
    lost: AtomicBool,
    lost_notify: Notify,
}

impl LeasedDelivery {
    pub fn new(delivery: Arc<Delivery>) -> Arc<LeasedDelivery> {
        let lease_duration = (delivery.lease_expires_at - delivery.picked_at).to_std().unwrap_or_default();
        let (lost, lost_notify) = (AtomicBool::new(false), Notify::new());
        Arc::new(LeasedDelivery { delivery, lease_duration, received: Instant::now(), lost, lost_notify })
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Waits until the lease is lost.
    pub async fn wait_until_lost(&self) {
        let mut lost_notify = std::pin::pin!(self.lost_notify.notified());
        lost_notify.as_mut().enable();
        if !self.is_lost() {
            lost_notify.await;
        }
    }

    /// Whether the event's deadline has passed: the database's clock at the claim plus the local time since then.
    pub fn is_past_deadline(&self) -> bool {
        let Some(expires_at) = self.delivery.event.expires_at else { return false };
        let remaining = (expires_at - self.delivery.picked_at).to_std().unwrap_or_default();
        remaining <= self.received.elapsed()
    }

    fn mark_lost(&self) {
        self.lost.store(true, Ordering::Release);
        self.lost_notify.notify_waiters();
    }

    fn key(&self) -> Key {
        (self.delivery.event.id, self.delivery.lease)
    }
}

/// The lease is part of the key: the node may claim the same event again after it lost the first lease.
type Key = (i64, Lease);

/// The delivery's lease is renewed until this is dropped.
pub(super) struct RenewalGuard<'a> {
    leases: &'a LeasedDeliveries,
    key: Key,
}

impl Drop for RenewalGuard<'_> {
    fn drop(&mut self) {
        lock(&self.leases.renewals).by_key.remove(&self.key);
    }
}

/// All deliveries that a node has leased.
#[derive(Default)]
pub(super) struct LeasedDeliveries {
    renewals: Mutex<Renewals>,
    /// Notified when a renewal is due earlier than the renewer wakes up.
    earlier_renewal: Notify,
}

#[derive(Default)]
struct Renewals {
    /// Each delivery with the time of its next renewal.
    by_key: HashMap<Key, (Arc<LeasedDelivery>, Instant)>,
    /// When the renewer wakes up.
    next: Option<Instant>,
}

impl LeasedDeliveries {
    /// Renews the lease until the returned guard is dropped.
    pub fn start_renewing<'a>(&'a self, leased: &Arc<LeasedDelivery>) -> RenewalGuard<'a> {
        let due = leased.received + leased.lease_duration / RENEW_AFTER_FRACTION;
        let mut renewals = lock(&self.renewals);
        renewals.by_key.insert(leased.key(), (leased.clone(), due));
        if renewals.next.is_none_or(|next| due < next) {
            renewals.next = Some(due);
            self.earlier_renewal.notify_one();
        }
        RenewalGuard { leases: self, key: leased.key() }
    }

    /// When the next lease is due for renewal.
    fn next_renewal(&self) -> Option<Instant> {
        let mut renewals = lock(&self.renewals);
        renewals.next = renewals.by_key.values().map(|(_, due)| *due).min();
        renewals.next
    }

    /// The leases to renew now, including those that are due soon, ordered by event id. Transactions that lock
    /// deliveries in this order do not deadlock with each other.
    fn due_renewals(&self) -> Vec<Arc<LeasedDelivery>> {
        let (renewals, now) = (lock(&self.renewals), Instant::now());
        let soon = |leased: &LeasedDelivery| now + leased.lease_duration / RETRY_AFTER_FRACTION;
        let is_due = renewals.by_key.values().filter(|(leased, due)| *due <= soon(leased));
        let mut due: Vec<Arc<LeasedDelivery>> = is_due.map(|(leased, _)| leased.clone()).collect();
        due.sort_by_key(|leased| leased.delivery.event.id);
        due
    }

    fn schedule_renewal(&self, leased: &LeasedDelivery, fraction: u32) {
        if let Some((_, due)) = lock(&self.renewals).by_key.get_mut(&leased.key()) {
            *due = Instant::now() + leased.lease_duration / fraction;
        }
    }

    /// Renews leases until the future is dropped.
    pub async fn renew_forever(&self, queue: &Queue) {
        loop {
            let next = self.next_renewal().unwrap_or_else(|| Instant::now() + IDLE_SLEEP);
            tokio::select! {
                () = tokio::time::sleep_until(next) => self.renew_due(queue).await,
                () = self.earlier_renewal.notified() => {}
            }
        }
    }

    async fn renew_due(&self, queue: &Queue) {
        let mut by_duration: BTreeMap<Duration, Vec<Arc<LeasedDelivery>>> = BTreeMap::new();
        for leased in self.due_renewals() {
            by_duration.entry(leased.lease_duration).or_default().push(leased);
        }
        for (lease_duration, due) in by_duration {
            self.renew(queue, lease_duration, &due).await;
        }
    }

    /// Renews leases for the duration they were claimed with. The policy may have a shorter one by now, and a lease
    /// renewed for that would expire before its next renewal.
    async fn renew(&self, queue: &Queue, lease_duration: Duration, due: &[Arc<LeasedDelivery>]) {
        let held = due.iter().map(|leased| LeasedEvent::from(&*leased.delivery)).collect();
        match queue.extend_all(held, Some(lease_duration)).await {
            Ok(extended) => {
                for (leased, extended) in due.iter().zip(extended) {
                    match extended {
                        Some(_) => self.schedule_renewal(leased, RENEW_AFTER_FRACTION),
                        None => self.mark_lost(leased),
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, leases = due.len(), "could not renew leases; retrying");
                due.iter().for_each(|leased| self.schedule_renewal(leased, RETRY_AFTER_FRACTION));
            }
        }
    }

    /// Stops renewing a lost lease and notifies its handlers.
    pub fn mark_lost(&self, leased: &LeasedDelivery) {
        // A delivery that has been finished meanwhile is not lost. One that is just being finished may be reported as
        // lost.
        if lock(&self.renewals).by_key.remove(&leased.key()).is_some() {
            tracing::debug!(event_id = leased.delivery.event.id, "lease lost");
            leased.mark_lost();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Timestamp, from_micros};
    use crate::event::Event;

    fn leased(expires_at: Option<Timestamp>) -> Arc<LeasedDelivery> {
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
        LeasedDelivery::new(Arc::new(Delivery {
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
    fn deadline_is_measured_from_the_claim_by_the_local_clock() {
        assert!(!leased(None).is_past_deadline());
        assert!(leased(Some(from_micros(1_000_000))).is_past_deadline());
        assert!(leased(Some(from_micros(999_999))).is_past_deadline());
        assert!(!leased(Some(from_micros(3_600_000_000))).is_past_deadline());
    }

    #[tokio::test]
    async fn lease_is_renewed_until_its_guard_is_dropped() {
        let (leases, leased) = (LeasedDeliveries::default(), leased(None));
        let guard = leases.start_renewing(&leased);
        assert_eq!(leases.next_renewal(), Some(leased.received + Duration::from_secs(20)));
        drop(guard);
        assert_eq!(leases.next_renewal(), None);
    }
}
