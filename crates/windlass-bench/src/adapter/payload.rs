//! Payloads with a number and a timestamp, padded to a size.

use std::hash::{DefaultHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// The type of all events.
pub const TYPE: &str = "bench.event";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberedPayload {
    /// Microseconds since the first call of [`micros`].
    pub at: u64,
    pub n: u64,
    fill: String,
}

/// How many tag sets and groups the events have; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventShape {
    pub tag_sets: usize,
    /// Tag sets in random order instead of in turn.
    pub mixed: bool,
    pub groups: usize,
}

impl EventShape {
    pub fn tag(self, n: u64) -> Option<String> {
        let n = if self.mixed { pseudo_random(n) } else { n };
        (self.tag_sets > 0).then(|| format!("set-{}", n % self.tag_sets as u64))
    }

    pub fn group(self, n: u64) -> Option<String> {
        (self.groups > 0).then(|| format!("group-{}", n % self.groups as u64))
    }
}

/// A pseudo-random value that is always the same for `n`.
fn pseudo_random(n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(n);
    hasher.finish()
}

/// New payloads of about `bytes` bytes each as JSON.
pub fn payloads(count: usize, bytes: usize) -> Vec<NumberedPayload> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = NEXT.fetch_add(count as u64, Ordering::Relaxed);
    let at = micros();
    let bare = format!(r#"{{"at":{at},"n":{first},"fill":""}}"#).len();
    let fill = "x".repeat(bytes.saturating_sub(bare).max(1));
    (first..first + count as u64).map(|n| NumberedPayload { at, n, fill: fill.clone() }).collect()
}

/// Microseconds since the first call.
pub fn micros() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn payloads_have_the_requested_size_and_unique_numbers() {
        let created = payloads(3, 200);
        for payload in &created {
            let length = serde_json::to_string(payload).unwrap().len();
            assert!((195..=205).contains(&length), "{length}");
        }
        assert_eq!((created[1].n, created[2].n), (created[0].n + 1, created[0].n + 2));
        assert_eq!(payloads(1, 0)[0].fill, "x");
    }

    #[test]
    fn events_are_spread_over_tags_and_groups() {
        let shape = EventShape { tag_sets: 3, mixed: false, groups: 0 };
        assert_eq!((shape.tag(4), shape.group(4)), (Some("set-1".into()), None));
        let mixed = EventShape { mixed: true, ..shape };
        let tags: HashSet<String> = (0..20).filter_map(|n| mixed.tag(n)).collect();
        assert_eq!(tags.len(), 3);
        assert!((0..20).any(|n| mixed.tag(n) != shape.tag(n)));
    }
}
