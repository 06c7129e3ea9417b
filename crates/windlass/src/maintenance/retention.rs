//! What is kept for how long: every decision about it, and no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::clock::{SPAN_MAX, Timestamp, micros};
use crate::event::delivery::Status;
use crate::policy::{NamespacePolicy, Policy, PolicyOverrides};
use crate::topology::Topology;

/// A way through what has ended, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// Attempts, by when they ended.
    Attempts,
    /// Dead letters, by when they were given up.
    DeadLetters,
}

impl Walk {
    pub fn as_str(self) -> &'static str {
        match self {
            Walk::Attempts => "attempts",
            Walk::DeadLetters => "dead_letters",
        }
    }
}

/// Where a walk is: an instant in microseconds, and what tells rows of one instant apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct WalkPosition {
    pub at: i64,
    pub id: i64,
    pub subscription_id: i64,
}

/// How far the walk for one keep has come, and under which rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub keep_ms: u64,
    pub rules: i64,
    pub place: WalkPosition,
}

/// An end that a walk came by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub event_id: i64,
    pub subscription_id: i64,
    pub subscription: String,
    /// Empty where it is not known.
    pub event_type: String,
    /// Of a dead letter.
    pub status: Option<Status>,
    pub at: Timestamp,
}

/// A delivery that no walk comes by any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftover {
    pub event_id: i64,
    pub subscription: String,
    /// When it ended.
    pub since: Timestamp,
}

/// What a namespace says about keeping, apart from all else that its policy says.
pub(crate) struct Rules {
    policy: NamespacePolicy,
    subscriptions: BTreeMap<String, PolicyOverrides>,
}

/// What the hash of the rules is made of.
#[derive(Serialize)]
struct Hashed<'a> {
    base: [Option<u64>; 3],
    types: Vec<(&'a str, Kept)>,
    subscriptions: Vec<(&'a str, Kept)>,
}

type Kept = [Option<Option<u64>>; 3];

fn kept(overrides: &PolicyOverrides) -> Kept {
    [overrides.keep_completed_ms, overrides.keep_failed_ms, overrides.keep_expired_ms]
}

fn keeps(policy: &Policy) -> [Option<u64>; 3] {
    [policy.keep_completed_ms, policy.keep_failed_ms, policy.keep_expired_ms]
}

impl Rules {
    pub fn of(topology: &Topology) -> Rules {
        let overrides = topology.subscriptions.iter().map(|found| (found.subscription.clone(), found.policy.clone()));
        Rules::new(topology.namespace.policy.clone(), overrides.collect())
    }

    pub fn new(policy: NamespacePolicy, mut subscriptions: BTreeMap<String, PolicyOverrides>) -> Rules {
        // Those without an exception come and go without a change of the rules.
        subscriptions.retain(|_, overrides| kept(overrides) != Kept::default());
        Rules { policy, subscriptions }
    }

    /// Differs from that of other rules; never 0, which stands for "not looked at yet".
    pub fn hash(&self) -> i64 {
        let hashed = Hashed {
            base: keeps(&self.policy.base),
            types: self.policy.types.iter().map(|(pattern, overrides)| (pattern.as_str(), kept(overrides))).collect(),
            subscriptions: self
                .subscriptions
                .iter()
                .map(|(name, overrides)| (name.as_str(), kept(overrides)))
                .collect(),
        };
        // Numbers and text always serialize.
        let digest = Sha256::digest(serde_json::to_vec(&hashed).unwrap_or_default());
        let first: [u8; 8] = std::array::from_fn(|at| digest[at]);
        match i64::from_le_bytes(first) {
            0 => 1,
            hash => hash,
        }
    }

    /// How long what ended so is kept; `None`: forever.
    pub fn keep_ms(&self, status: Option<Status>, subscription: &str, event_type: &str) -> Option<u64> {
        let none = PolicyOverrides::default();
        let overrides = self.subscriptions.get(subscription).unwrap_or(&none);
        keep_of(&self.policy.resolve(event_type, overrides), status)
    }

    /// Every policy that any delivery of the namespace may be under.
    fn policies(&self) -> Vec<Policy> {
        let base = &self.policy.base;
        let of_types = self.policy.types.values().map(|overrides| overrides.apply(base));
        let mut policies: Vec<Policy> = std::iter::once(base.clone()).chain(of_types).collect();
        let of_all = policies.clone();
        for overrides in self.subscriptions.values() {
            policies.extend(of_all.iter().map(|policy| overrides.apply(policy)));
        }
        policies
    }

    /// The different times that what a walk comes by is kept for, but for "forever".
    pub fn keeps(&self, walk: Walk) -> BTreeSet<u64> {
        let of = |policy: &Policy| match walk {
            Walk::Attempts => vec![policy.keep_completed_ms],
            Walk::DeadLetters => vec![policy.keep_failed_ms, policy.keep_expired_ms],
        };
        self.policies().iter().flat_map(of).flatten().collect()
    }

    /// Whether history is written to files before it goes.
    pub fn archives(&self) -> bool {
        self.policy.base.archive
    }

    /// The longest that any completed delivery is kept; `None`: forever.
    pub fn longest_ms(&self) -> Option<u64> {
        self.policies()
            .iter()
            .map(|policy| policy.keep_completed_ms)
            .try_fold(0, |longest, keep| Some(longest.max(keep?)))
    }
}

/// The longest that anything completed is kept in the whole database; `None`: forever.
pub(crate) fn longest_ms(rules: &[(String, Rules)]) -> Option<u64> {
    rules.iter().map(|(_, rules)| rules.longest_ms()).try_fold(0, |longest, keep| Some(longest.max(keep?)))
}

fn keep_of(policy: &Policy, dead: Option<Status>) -> Option<u64> {
    match dead {
        Some(Status::Expired) => policy.keep_expired_ms,
        Some(_) => policy.keep_failed_ms,
        // Whatever its last attempt says: a dead letter that is none any more was purged.
        None => policy.keep_completed_ms,
    }
}

/// Instants are given out before the commit: what is younger than this may still be on its way.
const LATE: Duration = Duration::from_secs(10);

/// What ended before this is over, and has been committed.
pub(crate) fn over_before(now: Timestamp, keep_ms: u64) -> Timestamp {
    before(now, Duration::from_millis(keep_ms) + LATE)
}

fn before(at: Timestamp, span: Duration) -> Timestamp {
    at - chrono::TimeDelta::microseconds(micros(span.min(SPAN_MAX)))
}

/// When a leftover is over; `None`: never.
pub(crate) fn over_at(since: Timestamp, keep_ms: Option<u64>) -> Option<Timestamp> {
    keep_ms.map(|ms| crate::clock::after(since, Duration::from_millis(ms)))
}

const DAY_MS: u64 = 24 * 3_600_000;

/// What is kept for a month at least, and as long as anything in the database, goes with its month. Row by row goes what
/// is left of it when every month should be gone.
const BY_MONTHS_MIN_MS: u64 = 31 * DAY_MS;
const AFTER_MONTHS_MS: u64 = 33 * DAY_MS;

/// How long what a walk comes by is left alone, where whole months are dropped after `longest_ms`.
pub(crate) fn row_wise_after_ms(walk: Walk, keep_ms: u64, longest_ms: Option<u64>) -> u64 {
    match (walk, longest_ms) {
        (Walk::Attempts, Some(longest)) if keep_ms >= longest && keep_ms >= BY_MONTHS_MIN_MS => {
            keep_ms + AFTER_MONTHS_MS
        }
        _ => keep_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = DAY_MS;

    fn overrides(completed: Option<Option<u64>>, failed: Option<Option<u64>>) -> PolicyOverrides {
        PolicyOverrides { keep_completed_ms: completed, keep_failed_ms: failed, ..Default::default() }
    }

    fn rules(types: &[(&str, PolicyOverrides)], subscriptions: &[(&str, PolicyOverrides)]) -> Rules {
        let named = |list: &[(&str, PolicyOverrides)]| {
            list.iter().map(|(name, overrides)| (name.to_string(), overrides.clone())).collect::<BTreeMap<_, _>>()
        };
        let base = Policy { keep_completed_ms: Some(9 * DAY), keep_expired_ms: Some(5 * DAY), ..Policy::default() };
        Rules::new(NamespacePolicy { base, types: named(types) }, named(subscriptions))
    }

    #[test]
    fn type_status_and_subscription_say_how_long() {
        let rules = rules(
            &[("audit.*", overrides(Some(None), None)), ("noise", overrides(Some(Some(DAY)), Some(Some(2 * DAY))))],
            &[("copy", overrides(Some(Some(3 * DAY)), None))],
        );
        let cases = [
            (None, "main", "order", Some(9)),
            (None, "main", "audit.login", None),
            (None, "main", "noise", Some(1)),
            (None, "copy", "audit.login", Some(3)),
            (Some(Status::Failed), "main", "order", None),
            (Some(Status::Failed), "main", "noise", Some(2)),
            (Some(Status::Failed), "copy", "noise", Some(2)),
            (Some(Status::Expired), "main", "noise", Some(5)),
        ];
        for (status, subscription, event_type, days) in cases {
            let keep = rules.keep_ms(status, subscription, event_type);
            assert_eq!(keep, days.map(|days| days * DAY), "{status:?} {subscription} {event_type}");
        }
        assert_eq!(rules.keeps(Walk::Attempts).into_iter().collect::<Vec<_>>(), [DAY, 3 * DAY, 9 * DAY]);
        assert_eq!(rules.keeps(Walk::DeadLetters).into_iter().collect::<Vec<_>>(), [2 * DAY, 5 * DAY]);
    }

    #[test]
    fn the_longest_is_forever_where_anything_is() {
        assert_eq!(rules(&[], &[]).longest_ms(), Some(9 * DAY));
        assert_eq!(rules(&[("a", overrides(Some(Some(DAY)), None))], &[]).longest_ms(), Some(9 * DAY));
        assert_eq!(rules(&[], &[("s", overrides(Some(Some(99 * DAY)), None))]).longest_ms(), Some(99 * DAY));
        assert_eq!(rules(&[("a", overrides(Some(None), None))], &[]).longest_ms(), None);
        // Unless the exception has exceptions itself.
        let all = rules(&[("a", overrides(Some(None), None))], &[("s", overrides(Some(Some(DAY)), None))]);
        assert_eq!(all.longest_ms(), None);
    }

    #[test]
    fn the_hash_tells_rules_apart_and_nothing_else() {
        let plain = rules(&[], &[]);
        assert_eq!(plain.hash(), rules(&[], &[("s", PolicyOverrides::default())]).hash());
        let lease = PolicyOverrides { lease_ms: Some(7), ..Default::default() };
        assert_eq!(plain.hash(), rules(&[], &[("s", lease)]).hash());
        let others = [
            rules(&[("a", overrides(Some(Some(DAY)), None))], &[]),
            rules(&[("a", overrides(Some(None), None))], &[]),
            rules(&[("a", overrides(None, Some(Some(DAY))))], &[]),
            rules(&[("b", overrides(Some(Some(DAY)), None))], &[]),
            rules(&[], &[("a", overrides(Some(Some(DAY)), None))]),
        ];
        let hashes: BTreeSet<i64> = others.iter().chain([&plain]).map(Rules::hash).collect();
        assert_eq!(hashes.len(), 6);
        assert!(!hashes.contains(&0));
    }

    #[test]
    fn only_what_is_kept_longest_waits_for_its_month() {
        let cases = [
            (Walk::Attempts, 60, Some(60), 93),
            (Walk::Attempts, 59, Some(60), 59),
            (Walk::Attempts, 60, None, 60),
            (Walk::Attempts, 30, Some(30), 30),
            (Walk::DeadLetters, 60, Some(60), 60),
        ];
        for (walk, keep, longest, after) in cases {
            let found = row_wise_after_ms(walk, keep * DAY, longest.map(|days| days * DAY));
            assert_eq!(found, after * DAY, "{walk:?} {keep} {longest:?}");
        }
    }

    #[test]
    fn what_may_still_be_on_its_way_is_left_alone() {
        let now: Timestamp = "2026-01-01T00:02:00Z".parse().unwrap();
        assert_eq!(over_before(now, 60_000).to_rfc3339(), "2026-01-01T00:00:50+00:00");
        assert_eq!(over_at(now, Some(60_000)).unwrap().to_rfc3339(), "2026-01-01T00:03:00+00:00");
        assert_eq!(over_at(now, None), None);
    }
}
