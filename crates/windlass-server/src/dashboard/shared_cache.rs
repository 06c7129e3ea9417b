//! Caches expensive queries for all users of the dashboard.
//!
//! Concurrent requests share one query. The slower a query, the longer its result is cached, so that the queries use at
//! most a tenth of the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use windlass::Result;

/// Minimum time for which a value is cached.
const TTL_MIN: Duration = Duration::from_millis(500);
/// A value is cached for at least this many times as long as its query took.
const TTL_COST_FACTOR: u32 = 9;

pub(crate) struct SharedCache<K, V>(Mutex<HashMap<K, Entry<V>>>);

type Entry<V> = Arc<tokio::sync::Mutex<Option<CachedValue<V>>>>;

struct CachedValue<V> {
    value: Arc<V>,
    loaded_at: Instant,
    load_duration: Duration,
}

impl<K, V> Default for SharedCache<K, V> {
    fn default() -> SharedCache<K, V> {
        SharedCache(Mutex::default())
    }
}

impl<K: Hash + Eq, V> SharedCache<K, V> {
    /// The cached value, or a new one if it is too old.
    pub(super) async fn get(&self, key: K, load: impl Future<Output = Result<V>>) -> Result<Arc<V>> {
        let entry = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut cached = entry.lock().await;
        if let Some(cached) = cached
            .as_ref()
            .filter(|cached| cached.loaded_at.elapsed() < TTL_MIN.max(cached.load_duration * TTL_COST_FACTOR))
        {
            return Ok(cached.value.clone());
        }
        let started_at = Instant::now();
        let value = Arc::new(load.await?);
        *cached =
            Some(CachedValue { value: value.clone(), loaded_at: Instant::now(), load_duration: started_at.elapsed() });
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_queries_are_kept_longer() {
        let cache = SharedCache::default();
        let slow = async |value: u32| {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(value)
        };
        assert_eq!(*cache.get("a", slow(1)).await.unwrap(), 1);
        assert_eq!(*cache.get("b", async { Ok(9) }).await.unwrap(), 9);
        tokio::time::advance(Duration::from_secs(17)).await;
        assert_eq!(*cache.get("a", slow(2)).await.unwrap(), 1);
        assert_eq!(*cache.get("b", async { Ok(8) }).await.unwrap(), 8);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(*cache.get("a", slow(3)).await.unwrap(), 3);
    }
}
