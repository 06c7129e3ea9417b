//! The payloads: numbered, stamped with the time, and filled up to a size.

use std::hash::{DefaultHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What all events are of.
pub const TYPE: &str = "bench.event";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbered {
    /// Microseconds on this process's clock.
    pub at: u64,
    pub n: u64,
    fill: String,
}

/// Over how many tag sets and groups events are spread; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    pub tag_sets: usize,
    /// The sets come in no order; else in turn.
    pub mixed: bool,
    pub groups: usize,
}

impl Shape {
    pub fn tag(self, n: u64) -> Option<String> {
        let n = if self.mixed { scattered(n) } else { n };
        (self.tag_sets > 0).then(|| format!("set-{}", n % self.tag_sets as u64))
    }

    pub fn group(self, n: u64) -> Option<String> {
        (self.groups > 0).then(|| format!("group-{}", n % self.groups as u64))
    }
}

/// As if drawn by lot, and always the same for this number.
fn scattered(n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(n);
    hasher.finish()
}

/// So many new ones, each of about so many bytes as JSON.
pub fn payloads(count: usize, bytes: usize) -> Vec<Numbered> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = NEXT.fetch_add(count as u64, Ordering::Relaxed);
    let at = micros();
    let bare = format!(r#"{{"at":{at},"n":{first},"fill":""}}"#).len();
    let fill = "x".repeat(bytes.saturating_sub(bare).max(1));
    (first..first + count as u64).map(|n| Numbered { at, n, fill: fill.clone() }).collect()
}

/// Since the first call.
pub fn micros() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn payloads_have_the_size_that_was_asked_for_and_numbers_of_their_own() {
        let made = payloads(3, 200);
        for payload in &made {
            let length = serde_json::to_string(payload).unwrap().len();
            assert!((195..=205).contains(&length), "{length}");
        }
        assert_eq!((made[1].n, made[2].n), (made[0].n + 1, made[0].n + 2));
        assert_eq!(payloads(1, 0)[0].fill, "x");
    }

    #[test]
    fn events_are_spread_over_tags_and_groups() {
        let shape = Shape { tag_sets: 3, mixed: false, groups: 0 };
        assert_eq!((shape.tag(4), shape.group(4)), (Some("set-1".into()), None));
        let mixed = Shape { mixed: true, ..shape };
        let tags: HashSet<String> = (0..20).filter_map(|n| mixed.tag(n)).collect();
        assert_eq!(tags.len(), 3);
        assert!((0..20).any(|n| mixed.tag(n) != shape.tag(n)));
    }
}
