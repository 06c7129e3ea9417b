//! What takes long to gather is gathered by one visitor for all, with a rest after it that the database can bear:
//! counting a million deliveries takes a while.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use windlass::Result;

/// Not gathered again within this time.
const FRESH: Duration = Duration::from_millis(500);
/// Nor for so many times as long as gathering took.
const REST: u32 = 9;

pub(crate) struct Rested<K, V>(Mutex<HashMap<K, Entry<V>>>);

type Entry<V> = Arc<tokio::sync::Mutex<Option<Kept<V>>>>;

struct Kept<V> {
    value: Arc<V>,
    read_at: Instant,
    took: Duration,
}

impl<K, V> Default for Rested<K, V> {
    fn default() -> Rested<K, V> {
        Rested(Mutex::default())
    }
}

impl<K: Hash + Eq, V> Rested<K, V> {
    /// What was gathered lately, or is now.
    pub(super) async fn get(&self, key: K, gather: impl Future<Output = Result<V>>) -> Result<Arc<V>> {
        let entry = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut kept = entry.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.read_at.elapsed() < FRESH.max(kept.took * REST)) {
            return Ok(kept.value.clone());
        }
        let begun = Instant::now();
        let value = Arc::new(gather.await?);
        *kept = Some(Kept { value: value.clone(), read_at: Instant::now(), took: begun.elapsed() });
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longer_it_takes_the_longer_it_is_kept() {
        let rested = Rested::default();
        let slow = async |value: u32| {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(value)
        };
        assert_eq!(*rested.get("a", slow(1)).await.unwrap(), 1);
        assert_eq!(*rested.get("b", async { Ok(9) }).await.unwrap(), 9);
        tokio::time::advance(Duration::from_secs(17)).await;
        assert_eq!(*rested.get("a", slow(2)).await.unwrap(), 1);
        assert_eq!(*rested.get("b", async { Ok(8) }).await.unwrap(), 8);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(*rested.get("a", slow(3)).await.unwrap(), 3);
    }
}
