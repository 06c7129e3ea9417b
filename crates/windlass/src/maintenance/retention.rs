//! The rules of retention: how long history is kept, and when it may be deleted. No I/O.
//!
//! `retain` and `partitions` apply them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::clock::{DURATION_MAX, Timestamp, micros};
use crate::event::delivery::Status;
use crate::policy::{NamespacePolicy, Policy, PolicyOverrides};
use crate::topology::Topology;

/// A pass over finished deliveries in the order in which they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetentionWalk {
    /// Over attempts, by the time they ended.
    Attempts,
    /// Over dead letters, by the time they were dead-lettered.
    DeadLetters,
}

impl RetentionWalk {
    pub fn as_str(self) -> &'static str {
        match self {
            RetentionWalk::Attempts => "attempts",
            RetentionWalk::DeadLetters => "dead_letters",
        }
    }
}

/// The position of a walk: a timestamp in microseconds, and the ids that order rows with the same timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct WalkPosition {
    pub at: i64,
    pub id: i64,
    pub subscription_id: i64,
}

/// The stored progress of a walk for one retention duration, and the hash of the rules it applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetentionMark {
    pub keep_ms: u64,
    pub rules: i64,
    pub position: WalkPosition,
}

/// An ended delivery or dead letter found by a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedDelivery {
    pub event_id: i64,
    pub subscription_id: i64,
    pub subscription: String,
    /// Empty if unknown.
    pub event_type: String,
    /// Set for dead letters.
    pub status: Option<Status>,
    pub at: Timestamp,
}

/// An ended delivery that the walks have already passed. Retention deletes it separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RetentionLeftover {
    pub event_id: i64,
    pub subscription: String,
    /// When the delivery ended.
    pub since: Timestamp,
}

/// The retention settings of a namespace and its subscriptions.
pub(crate) struct RetentionRules {
    policy: NamespacePolicy,
    subscriptions: BTreeMap<String, PolicyOverrides>,
}

/// The input of [`RetentionRules::hash`].
#[derive(Serialize)]
struct HashInput<'a> {
    base: [Option<u64>; 3],
    types: Vec<(&'a str, KeepOverrides)>,
    subscriptions: Vec<(&'a str, KeepOverrides)>,
}

/// The overrides of the retention durations: completed, failed, expired.
type KeepOverrides = [Option<Option<u64>>; 3];

fn keep_overrides(overrides: &PolicyOverrides) -> KeepOverrides {
    [overrides.keep_completed_ms, overrides.keep_failed_ms, overrides.keep_expired_ms]
}

fn keep_durations(policy: &Policy) -> [Option<u64>; 3] {
    [policy.keep_completed_ms, policy.keep_failed_ms, policy.keep_expired_ms]
}

impl RetentionRules {
    pub fn of(topology: &Topology) -> RetentionRules {
        let overrides = topology.subscriptions.iter().map(|found| (found.subscription.clone(), found.policy.clone()));
        RetentionRules::new(topology.namespace.policy.clone(), overrides.collect())
    }

    pub fn new(policy: NamespacePolicy, mut subscriptions: BTreeMap<String, PolicyOverrides>) -> RetentionRules {
        // Adding or removing a subscription without retention overrides does not change the rules.
        subscriptions.retain(|_, overrides| keep_overrides(overrides) != KeepOverrides::default());
        RetentionRules { policy, subscriptions }
    }

    /// A hash that identifies the rules. Never 0, which means "not checked yet".
    pub fn hash(&self) -> i64 {
        let input = HashInput {
            base: keep_durations(&self.policy.base),
            types: self
                .policy
                .types
                .iter()
                .map(|(pattern, overrides)| (pattern.as_str(), keep_overrides(overrides)))
                .collect(),
            subscriptions: self
                .subscriptions
                .iter()
                .map(|(name, overrides)| (name.as_str(), keep_overrides(overrides)))
                .collect(),
        };
        // Serializing numbers and text cannot fail.
        let digest = Sha256::digest(serde_json::to_vec(&input).unwrap_or_default());
        let first: [u8; 8] = std::array::from_fn(|index| digest[index]);
        match i64::from_le_bytes(first) {
            0 => 1,
            hash => hash,
        }
    }

    /// How long a delivery is kept: completed or canceled (`status` is `None`), or dead-lettered with this status.
    /// `None` means forever.
    pub fn keep_ms(&self, status: Option<Status>, subscription: &str, event_type: &str) -> Option<u64> {
        let none = PolicyOverrides::default();
        let overrides = self.subscriptions.get(subscription).unwrap_or(&none);
        keep_ms_of(&self.policy.resolve(event_type, overrides), status)
    }

    /// Every policy that may apply to a delivery of the namespace.
    fn policies(&self) -> Vec<Policy> {
        let base = &self.policy.base;
        let type_policies = self.policy.types.values().map(|overrides| overrides.apply(base));
        let mut policies: Vec<Policy> = std::iter::once(base.clone()).chain(type_policies).collect();
        let namespace_policies = policies.clone();
        for overrides in self.subscriptions.values() {
            policies.extend(namespace_policies.iter().map(|policy| overrides.apply(policy)));
        }
        policies
    }

    /// The distinct finite retention durations that apply to the rows of a walk.
    pub fn keep_durations_ms(&self, walk: RetentionWalk) -> BTreeSet<u64> {
        let durations = |policy: &Policy| match walk {
            RetentionWalk::Attempts => vec![policy.keep_completed_ms],
            RetentionWalk::DeadLetters => vec![policy.keep_failed_ms, policy.keep_expired_ms],
        };
        self.policies().iter().flat_map(durations).flatten().collect()
    }

    /// Whether history is archived before it is deleted.
    pub fn archives(&self) -> bool {
        self.policy.base.archive
    }

    /// The longest retention of completed deliveries; `None` means forever.
    pub fn longest_keep_ms(&self) -> Option<u64> {
        self.policies()
            .iter()
            .map(|policy| policy.keep_completed_ms)
            .try_fold(0, |longest, keep| Some(longest.max(keep?)))
    }
}

/// The longest retention of completed deliveries in the whole database; `None` means forever.
pub(crate) fn longest_keep_ms(rules: &[(String, RetentionRules)]) -> Option<u64> {
    rules.iter().map(|(_, rules)| rules.longest_keep_ms()).try_fold(0, |longest, keep| Some(longest.max(keep?)))
}

fn keep_ms_of(policy: &Policy, status: Option<Status>) -> Option<u64> {
    match status {
        Some(Status::Expired) => policy.keep_expired_ms,
        Some(_) => policy.keep_failed_ms,
        // Regardless of its last attempt: a failed delivery that is no dead letter any more was purged.
        None => policy.keep_completed_ms,
    }
}

/// Timestamps are assigned before the commit, so rows younger than this may not be committed yet.
const COMMIT_DELAY_MAX: Duration = Duration::from_secs(10);

/// Rows that ended before this time have exceeded the retention, and are committed.
pub(crate) fn delete_before(now: Timestamp, keep_ms: u64) -> Timestamp {
    before(now, Duration::from_millis(keep_ms) + COMMIT_DELAY_MAX)
}

fn before(at: Timestamp, duration: Duration) -> Timestamp {
    at - chrono::TimeDelta::microseconds(micros(duration.min(DURATION_MAX)))
}

/// When a leftover may be deleted; `None` means never.
pub(crate) fn delete_at(since: Timestamp, keep_ms: Option<u64>) -> Option<Timestamp> {
    keep_ms.map(|ms| crate::clock::after(since, Duration::from_millis(ms)))
}

const DAY_MS: u64 = 24 * 3_600_000;

/// History with the longest retention in the database is deleted by dropping whole months, if it is kept for at least
/// this long.
const MONTH_DROP_KEEP_MIN_MS: u64 = 31 * DAY_MS;
/// Rows of such history are deleted one by one only this long after their retention, when their month should be gone.
const MONTH_DROP_GRACE_MS: u64 = 33 * DAY_MS;

/// The age at which a walk deletes rows. `longest_keep_ms` is the age at which whole months are dropped, if they are.
pub(crate) fn delete_rows_after_ms(walk: RetentionWalk, keep_ms: u64, longest_keep_ms: Option<u64>) -> u64 {
    match (walk, longest_keep_ms) {
        (RetentionWalk::Attempts, Some(longest)) if keep_ms >= longest && keep_ms >= MONTH_DROP_KEEP_MIN_MS => {
            keep_ms + MONTH_DROP_GRACE_MS
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

    fn rules(types: &[(&str, PolicyOverrides)], subscriptions: &[(&str, PolicyOverrides)]) -> RetentionRules {
        let named = |list: &[(&str, PolicyOverrides)]| {
            list.iter().map(|(name, overrides)| (name.to_string(), overrides.clone())).collect::<BTreeMap<_, _>>()
        };
        let base = Policy { keep_completed_ms: Some(9 * DAY), keep_expired_ms: Some(5 * DAY), ..Policy::default() };
        RetentionRules::new(NamespacePolicy { base, types: named(types) }, named(subscriptions))
    }

    #[test]
    fn retention_depends_on_type_status_and_subscription() {
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
        assert_eq!(
            rules.keep_durations_ms(RetentionWalk::Attempts).into_iter().collect::<Vec<_>>(),
            [DAY, 3 * DAY, 9 * DAY]
        );
        assert_eq!(
            rules.keep_durations_ms(RetentionWalk::DeadLetters).into_iter().collect::<Vec<_>>(),
            [2 * DAY, 5 * DAY]
        );
    }

    #[test]
    fn longest_retention_is_forever_if_any_is() {
        assert_eq!(rules(&[], &[]).longest_keep_ms(), Some(9 * DAY));
        assert_eq!(rules(&[("a", overrides(Some(Some(DAY)), None))], &[]).longest_keep_ms(), Some(9 * DAY));
        assert_eq!(rules(&[], &[("s", overrides(Some(Some(99 * DAY)), None))]).longest_keep_ms(), Some(99 * DAY));
        assert_eq!(rules(&[("a", overrides(Some(None), None))], &[]).longest_keep_ms(), None);
        // A subscription override does not shorten a type that `main` keeps forever.
        let all = rules(&[("a", overrides(Some(None), None))], &[("s", overrides(Some(Some(DAY)), None))]);
        assert_eq!(all.longest_keep_ms(), None);
    }

    #[test]
    fn hash_depends_only_on_retention_settings() {
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
        let hashes: BTreeSet<i64> = others.iter().chain([&plain]).map(RetentionRules::hash).collect();
        assert_eq!(hashes.len(), 6);
        assert!(!hashes.contains(&0));
    }

    #[test]
    fn only_history_with_the_longest_retention_waits_for_its_month() {
        let cases = [
            (RetentionWalk::Attempts, 60, Some(60), 93),
            (RetentionWalk::Attempts, 59, Some(60), 59),
            (RetentionWalk::Attempts, 60, None, 60),
            (RetentionWalk::Attempts, 30, Some(30), 30),
            (RetentionWalk::DeadLetters, 60, Some(60), 60),
        ];
        for (walk, keep, longest, after) in cases {
            let found = delete_rows_after_ms(walk, keep * DAY, longest.map(|days| days * DAY));
            assert_eq!(found, after * DAY, "{walk:?} {keep} {longest:?}");
        }
    }

    #[test]
    fn rows_that_may_be_uncommitted_are_not_deleted() {
        let now: Timestamp = "2026-01-01T00:02:00Z".parse().unwrap();
        assert_eq!(delete_before(now, 60_000).to_rfc3339(), "2026-01-01T00:00:50+00:00");
        assert_eq!(delete_at(now, Some(60_000)).unwrap().to_rfc3339(), "2026-01-01T00:03:00+00:00");
        assert_eq!(delete_at(now, None), None);
    }
}
