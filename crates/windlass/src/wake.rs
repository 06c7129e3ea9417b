//! Who waits for what, and who is told that something came.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

/// Everyone in this process who waits for deliveries.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    waiters: Mutex<Vec<Weak<Waiter>>>,
}

/// One claimer's bell.
#[derive(Debug)]
pub(crate) struct Waiter {
    namespace: String,
    /// The lanes it takes from; lanes that it does not know yet wake it too.
    known: Mutex<Lanes>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Lanes {
    wanted: HashSet<i64>,
    newest: i64,
}

impl Wakes {
    pub fn register(&self, namespace: &str) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter { namespace: namespace.to_owned(), known: Mutex::default(), bell: Notify::new() });
        let mut waiters = lock(&self.waiters);
        waiters.retain(|waiter| waiter.strong_count() > 0);
        waiters.push(Arc::downgrade(&waiter));
        waiter
    }

    /// Something is ready in these lanes; with no lanes named, it may be in any.
    pub fn ring(&self, namespace: &str, lanes: &[i64]) {
        for waiter in lock(&self.waiters).iter().filter_map(Weak::upgrade) {
            if waiter.namespace == namespace && waiter.wants(lanes) {
                waiter.bell.notify_one();
            }
        }
    }

    /// Anything may have happened anywhere.
    pub fn ring_all(&self) {
        for waiter in lock(&self.waiters).iter().filter_map(Weak::upgrade) {
            waiter.bell.notify_one();
        }
    }
}

impl Waiter {
    /// Tells the waiter which of the lanes that exist it takes from.
    pub fn set_lanes(&self, wanted: impl IntoIterator<Item = i64>, newest: i64) {
        *lock(&self.known) = Lanes { wanted: wanted.into_iter().collect(), newest };
    }

    fn wants(&self, lanes: &[i64]) -> bool {
        let known = lock(&self.known);
        lanes.is_empty() || lanes.iter().any(|lane| known.wanted.contains(lane) || *lane > known.newest)
    }

    /// Until the next ring, or at once if one came since the last time.
    pub async fn wait(&self) {
        self.bell.notified().await;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn rang(waiter: &Waiter) -> bool {
        tokio::time::timeout(std::time::Duration::ZERO, waiter.wait()).await.is_ok()
    }

    #[tokio::test]
    async fn only_who_wants_the_lane_is_woken() {
        let wakes = Wakes::default();
        let (a, b) = (wakes.register("ns"), wakes.register("ns"));
        a.set_lanes([1], 5);
        b.set_lanes([2], 5);
        wakes.ring("ns", &[1]);
        assert!(rang(&a).await && !rang(&b).await);
        wakes.ring("other", &[]);
        assert!(!rang(&a).await);
        wakes.ring("ns", &[6]);
        assert!(rang(&a).await && rang(&b).await);
        wakes.ring("ns", &[]);
        assert!(rang(&a).await && rang(&b).await);
    }
}
