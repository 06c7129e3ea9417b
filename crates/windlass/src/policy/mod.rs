//! How a namespace treats its deliveries: leases, retries, history; with named presets.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::clock::SPAN_MAX;
use crate::error::{Error, Result};
use crate::event::names;
use crate::event::{MAX_RETRIES_MAX, check_expires_in};
use crate::policy::backoff::Backoff;

pub(crate) mod backoff;
pub(crate) mod limits;

/// What happens to a delivery, from claim to end. [`Queue::put_namespace`](crate::Queue::put_namespace) sets it.
///
/// ```
/// use windlass::{Backoff, Policy};
///
/// let backoff = Backoff::Exponential { initial_ms: 1_000, max_ms: 600_000, jitter: 0.2 };
/// let policy = Policy { max_retries: Some(8), backoff, ..Policy::default() };
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How long a claim lasts before the delivery may be claimed again, in milliseconds.
    pub lease_ms: u64,
    /// The failure that brings `retry_count` to this is the last; `None`: only `max_attempts` bounds it.
    pub max_retries: Option<u32>,
    /// How long a failed delivery waits before it is tried again.
    pub backoff: Backoff,
    /// What becomes of a delivery that failed for good.
    pub exhausted: ExhaustedPolicy,
    /// Whether an unrecoverable error of one handler ends the delivery although other handlers want to be retried.
    #[serde(default)]
    pub unrecoverable: UnrecoverablePolicy,
    /// What becomes of an event that no handler knows.
    pub unhandled: UnhandledPolicy,
    /// How many times a delivery may be acquired, crashes included.
    pub max_attempts: u32,
    /// Whether completed events are kept.
    pub history: History,
    /// Whether a group waits while its first event is being retried.
    pub group_failure: GroupFailurePolicy,
    /// Whether all handlers of an event on a node that run in a transaction run in the same one: all that they write is
    /// committed together with the completion, or nothing is. Else each has its own.
    #[serde(default)]
    pub share_transaction: bool,
    /// When the results of a delivery's handlers are stored, if it has several.
    #[serde(default)]
    pub handler_results: HandlerResultStorage,
    /// Deliveries that expire within this many milliseconds are claimed before all others, earliest deadline first. `None`:
    /// all deliveries with a deadline; but only those of the next minute if [`expires_after_ms`](Self::expires_after_ms)
    /// gives every event a deadline, because priorities would have no effect otherwise.
    #[serde(default)]
    pub deadline_horizon_ms: Option<u64>,
    /// For how many milliseconds a published key is remembered.
    pub key_window_ms: u64,
    /// Events that say nothing about it expire when they have not been started so many milliseconds after they could
    /// have been; `None`: never.
    #[serde(default)]
    pub expires_after_ms: Option<u64>,
    /// For how many milliseconds the history of a delivery that is COMPLETED, COMPLETED_WITH_ERRORS or CANCELLED is
    /// kept, from its end; `None`: forever. A dead letter that was purged is kept as long, from when it was given up.
    #[serde(default = "half_a_year")]
    pub keep_completed_ms: Option<u64>,
    /// For how many milliseconds a dead letter that FAILED is kept; `None`: until somebody redrives or purges it.
    #[serde(default)]
    pub keep_failed_ms: Option<u64>,
    /// For how many milliseconds a dead letter that EXPIRED is kept; `None`: until somebody redrives or purges it.
    #[serde(default)]
    pub keep_expired_ms: Option<u64>,
    /// Whether history is written to files before it is deleted. It is not deleted by a process that was not told where
    /// to: see [`OpenOptions::archive_to`](crate::OpenOptions::archive_to).
    #[serde(default)]
    pub archive: bool,
}

/// 183 days.
fn half_a_year() -> Option<u64> {
    Some(183 * 24 * 3_600_000)
}

/// What becomes of a delivery after an unrecoverable error, or when its retries are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExhaustedPolicy {
    /// FAILED, and kept as a dead letter.
    DeadLetter,
    /// COMPLETED_WITH_ERRORS, in the history only.
    CompleteWithErrors,
}

/// What an unrecoverable error of one handler means for a delivery that has several handlers.
///
/// A delivery with a single handler ends at an unrecoverable error in either case. How it ends is decided by
/// [`ExhaustedPolicy`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnrecoverablePolicy {
    /// Handlers with a transient error are retried, and snoozed ones run later. The delivery ends when no handler is
    /// left to run.
    #[default]
    RetryOthers,
    /// The delivery ends after the attempt in which the error occurred. Handlers with a transient error are not
    /// retried.
    Finish,
}

/// When a node stores the results of a delivery's handlers, if the delivery has several.
///
/// A stored result keeps a finished handler from running again in the next attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HandlerResultStorage {
    /// With the outcome of the attempt, in the same write. If the process is killed during the attempt, all handlers
    /// of the delivery run again.
    #[default]
    WithOutcome,
    /// As soon as each handler finishes. If the process is killed during the attempt, only handlers that had not
    /// finished run again. This costs one more write for each handler but the last, and a delete at the end.
    Immediately,
}

/// What becomes of an event that no handler knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnhandledPolicy {
    /// Tried again after the lease: another node may know it.
    Retry,
    /// A dead letter at once.
    DeadLetter,
}

/// Whether completed events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// Kept.
    Keep,
    /// Deleted as soon as every delivery is completed.
    None,
}

/// What a group does while its first event waits for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GroupFailurePolicy {
    /// It waits: strict order.
    Block,
    /// It goes on with the next; still one at a time.
    Continue,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            lease_ms: 60_000,
            max_retries: Some(3),
            backoff: Backoff::Fixed { delay_ms: 300_000 },
            exhausted: ExhaustedPolicy::DeadLetter,
            unrecoverable: UnrecoverablePolicy::RetryOthers,
            unhandled: UnhandledPolicy::Retry,
            max_attempts: 20,
            history: History::Keep,
            group_failure: GroupFailurePolicy::Block,
            share_transaction: false,
            handler_results: HandlerResultStorage::WithOutcome,
            deadline_horizon_ms: None,
            key_window_ms: 24 * 3_600_000,
            expires_after_ms: None,
            keep_completed_ms: half_a_year(),
            keep_failed_ms: None,
            keep_expired_ms: None,
            archive: false,
        }
    }
}

/// The names of the presets.
pub const PRESETS: [&str; 6] = ["default", "queue", "bus", "tags", "core", "outbox"];

impl Policy {
    /// A named policy: `default`, `queue`, `bus`, `tags`, `core` or `outbox`.
    pub fn preset(name: &str) -> Result<Policy> {
        let default = Policy::default();
        Ok(match name {
            "default" => default,
            "queue" => Policy {
                max_retries: None,
                backoff: Backoff::Lease,
                exhausted: ExhaustedPolicy::CompleteWithErrors,
                unrecoverable: UnrecoverablePolicy::Finish,
                handler_results: HandlerResultStorage::Immediately,
                ..default
            },
            "bus" => Policy { lease_ms: 300_000, max_retries: Some(0), backoff: Backoff::None, ..default },
            "tags" => Policy { lease_ms: 30_000, ..default },
            "core" => Policy {
                lease_ms: 30_000,
                max_retries: Some(0),
                backoff: Backoff::None,
                unhandled: UnhandledPolicy::DeadLetter,
                share_transaction: true,
                ..default
            },
            "outbox" => Policy {
                backoff: Backoff::None,
                unhandled: UnhandledPolicy::DeadLetter,
                history: History::None,
                group_failure: GroupFailurePolicy::Continue,
                ..default
            },
            other => {
                return Err(Error::invalid(
                    "preset",
                    format!("'{other}' is not a preset; choose one of {}", PRESETS.join(", ")),
                ));
            }
        })
    }

    /// The lease as a duration.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Deliveries that expire this soon are claimed before all others; `None`: all with a deadline.
    pub(crate) fn deadline_horizon(&self) -> Option<Duration> {
        let unless_set = self.expires_after_ms.map(|_| HORIZON_IF_ALL_EXPIRE_MS);
        self.deadline_horizon_ms.or(unless_set).map(Duration::from_millis)
    }

    pub(crate) fn key_window(&self) -> Duration {
        Duration::from_millis(self.key_window_ms)
    }

    fn check(&self) -> Result<()> {
        check_span("lease_ms", self.lease_ms, LEASE_MAX)?;
        check_span("deadline_horizon_ms", self.deadline_horizon_ms.unwrap_or(0), SPAN_MAX)?;
        check_span("key_window_ms", self.key_window_ms, SPAN_MAX)?;
        check_expires_in("expires_after_ms", self.expires_after_ms.map(Duration::from_millis))?;
        check_keep("keep_completed_ms", self.keep_completed_ms)?;
        check_keep("keep_failed_ms", self.keep_failed_ms)?;
        check_keep("keep_expired_ms", self.keep_expired_ms)?;
        if self.lease_ms == 0 {
            return Err(Error::invalid("lease_ms", "must be at least 1"));
        }
        if self.max_retries.is_some_and(|n| n > MAX_RETRIES_MAX) {
            return Err(Error::invalid("max_retries", format!("must be at most {MAX_RETRIES_MAX}")));
        }
        if self.max_attempts == 0 || self.max_attempts > MAX_RETRIES_MAX {
            return Err(Error::invalid("max_attempts", format!("must be from 1 to {MAX_RETRIES_MAX}")));
        }
        self.backoff.check()
    }
}

/// The deadline horizon where every event has a deadline and the policy does not set another.
const HORIZON_IF_ALL_EXPIRE_MS: u64 = 60_000;

/// The longest lease: a week.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) fn check_span(field: &'static str, ms: u64, max: Duration) -> Result<()> {
    if u128::from(ms) > max.as_millis() {
        return Err(Error::invalid(field, format!("must be at most {} ms", max.as_millis())));
    }
    Ok(())
}

/// What is kept at all is kept for a minute: transactions that began before it ended have committed by then.
pub(crate) const KEEP_MS_MIN: u64 = 60_000;

fn check_keep(field: &'static str, ms: Option<u64>) -> Result<()> {
    match ms {
        Some(ms) if ms < KEEP_MS_MIN => Err(Error::invalid(field, format!("must be at least {KEEP_MS_MIN}, or null"))),
        Some(ms) => check_span(field, ms, SPAN_MAX),
        None => Ok(()),
    }
}

/// Settings that replace those of a [`Policy`]; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PolicyOverrides {
    /// See [`Policy::lease_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// See [`Policy::max_retries`]; `Some(None)`, in JSON `null`, lifts the bound.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub max_retries: Option<Option<u32>>,
    /// See [`Policy::backoff`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// See [`Policy::exhausted`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted: Option<ExhaustedPolicy>,
    /// See [`Policy::unrecoverable`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrecoverable: Option<UnrecoverablePolicy>,
    /// See [`Policy::unhandled`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhandled: Option<UnhandledPolicy>,
    /// See [`Policy::max_attempts`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// See [`Policy::history`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// See [`Policy::group_failure`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_failure: Option<GroupFailurePolicy>,
    /// See [`Policy::share_transaction`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_transaction: Option<bool>,
    /// See [`Policy::handler_results`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler_results: Option<HandlerResultStorage>,
    /// See [`Policy::deadline_horizon_ms`]; `Some(None)`, in JSON `null`, removes the bound.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub deadline_horizon_ms: Option<Option<u64>>,
    /// See [`Policy::expires_after_ms`]; `Some(None)`, in JSON `null`, lifts the bound. Not for subscriptions.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub expires_after_ms: Option<Option<u64>>,
    /// See [`Policy::keep_completed_ms`]; `Some(None)`, in JSON `null`, keeps forever.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub keep_completed_ms: Option<Option<u64>>,
    /// See [`Policy::keep_failed_ms`]; `Some(None)`, in JSON `null`, keeps until somebody acts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub keep_failed_ms: Option<Option<u64>>,
    /// See [`Policy::keep_expired_ms`]; `Some(None)`, in JSON `null`, keeps until somebody acts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub keep_expired_ms: Option<Option<u64>>,
}

/// Tells a field that is `null` from one that is absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl PolicyOverrides {
    /// `policy` with these settings in place of its own.
    pub fn apply(&self, policy: &Policy) -> Policy {
        Policy {
            lease_ms: self.lease_ms.unwrap_or(policy.lease_ms),
            max_retries: self.max_retries.unwrap_or(policy.max_retries),
            backoff: self.backoff.clone().unwrap_or_else(|| policy.backoff.clone()),
            exhausted: self.exhausted.unwrap_or(policy.exhausted),
            unrecoverable: self.unrecoverable.unwrap_or(policy.unrecoverable),
            unhandled: self.unhandled.unwrap_or(policy.unhandled),
            max_attempts: self.max_attempts.unwrap_or(policy.max_attempts),
            history: self.history.unwrap_or(policy.history),
            group_failure: self.group_failure.unwrap_or(policy.group_failure),
            share_transaction: self.share_transaction.unwrap_or(policy.share_transaction),
            handler_results: self.handler_results.unwrap_or(policy.handler_results),
            deadline_horizon_ms: self.deadline_horizon_ms.unwrap_or(policy.deadline_horizon_ms),
            key_window_ms: policy.key_window_ms,
            expires_after_ms: self.expires_after_ms.unwrap_or(policy.expires_after_ms),
            keep_completed_ms: self.keep_completed_ms.unwrap_or(policy.keep_completed_ms),
            keep_failed_ms: self.keep_failed_ms.unwrap_or(policy.keep_failed_ms),
            keep_expired_ms: self.keep_expired_ms.unwrap_or(policy.keep_expired_ms),
            archive: policy.archive,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.apply(&Policy::default()).check()
    }
}

/// A namespace's policy, with its exceptions by event type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespacePolicy {
    /// What holds for every type.
    pub base: Policy,
    /// Exceptions: by exact type, or by prefix ending in `*`. The longest match wins.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, PolicyOverrides>,
}

impl From<Policy> for NamespacePolicy {
    fn from(base: Policy) -> NamespacePolicy {
        NamespacePolicy { base, types: BTreeMap::new() }
    }
}

impl NamespacePolicy {
    /// The policy for a type and, on top of it, a subscription's overrides.
    pub(crate) fn resolve(&self, event_type: &str, subscription: &PolicyOverrides) -> Policy {
        let matching = self.types.iter().filter(|(pattern, _)| names::type_matches(pattern, event_type));
        let closest = matching.max_by_key(|(pattern, _)| pattern.len()).map(|(_, overrides)| overrides);
        let of_type = closest.map_or_else(|| self.base.clone(), |overrides| overrides.apply(&self.base));
        subscription.apply(&of_type)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.base.check()?;
        for (pattern, overrides) in &self.types {
            names::check_type_pattern("types", pattern)?;
            overrides.check()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_those_of_the_source_documents() {
        let preset = |name| Policy::preset(name).unwrap();
        let table = PRESETS.map(|name| (name, preset(name).lease_ms / 1_000, preset(name).max_retries));
        assert_eq!(
            table,
            [
                ("default", 60, Some(3)),
                ("queue", 60, None),
                ("bus", 300, Some(0)),
                ("tags", 30, Some(3)),
                ("core", 30, Some(0)),
                ("outbox", 60, Some(3)),
            ]
        );
        assert_eq!(preset("tags").backoff, Backoff::Fixed { delay_ms: 300_000 });
        assert_eq!(preset("queue").exhausted, ExhaustedPolicy::CompleteWithErrors);
        let finishing = PRESETS.into_iter().filter(|name| preset(name).unrecoverable == UnrecoverablePolicy::Finish);
        assert_eq!(finishing.collect::<Vec<_>>(), ["queue"]);
        let immediate =
            PRESETS.into_iter().filter(|name| preset(name).handler_results == HandlerResultStorage::Immediately);
        assert_eq!(immediate.collect::<Vec<_>>(), ["queue"]);
        assert_eq!(preset("core").unhandled, UnhandledPolicy::DeadLetter);
        assert!(preset("core").share_transaction && !preset("default").share_transaction);
        assert_eq!(preset("outbox").history, History::None);
        assert_eq!(preset("outbox").group_failure, GroupFailurePolicy::Continue);
        assert!(Policy::preset("nope").is_err());
    }

    #[test]
    fn the_longest_type_pattern_wins_and_the_subscription_goes_last() {
        let overrides = |lease_ms| PolicyOverrides { lease_ms: Some(lease_ms), ..Default::default() };
        let policy = NamespacePolicy {
            base: Policy::default(),
            types: [("a.*".into(), overrides(1)), ("a.b*".into(), overrides(2))].into(),
        };
        let none = PolicyOverrides::default();
        assert_eq!(policy.resolve("z", &none).lease_ms, 60_000);
        assert_eq!(policy.resolve("a.c", &none).lease_ms, 1);
        assert_eq!(policy.resolve("a.bc", &none).lease_ms, 2);
        assert_eq!(policy.resolve("a.bc", &overrides(3)).lease_ms, 3);
    }

    #[test]
    fn absent_and_null_differ_in_json() {
        let absent: PolicyOverrides = serde_json::from_str("{}").unwrap();
        let null: PolicyOverrides = serde_json::from_str(r#"{"max_retries":null}"#).unwrap();
        assert_eq!(absent.apply(&Policy::default()).max_retries, Some(3));
        assert_eq!(null.apply(&Policy::default()).max_retries, None);
    }

    #[test]
    fn settings_that_a_stored_policy_lacks_have_their_default() {
        let mut old = serde_json::to_value(Policy::default()).unwrap();
        for field in
            ["keep_completed_ms", "keep_failed_ms", "keep_expired_ms", "archive", "unrecoverable", "handler_results"]
        {
            old.as_object_mut().unwrap().remove(field).unwrap();
        }
        assert_eq!(serde_json::from_value::<Policy>(old).unwrap(), Policy::default());
        assert_eq!(Policy::default().keep_completed_ms, Some(15_811_200_000));
    }

    #[test]
    fn what_is_kept_is_kept_for_a_minute_at_least() {
        let check = |ms| PolicyOverrides { keep_failed_ms: Some(ms), ..Default::default() }.check();
        assert_eq!((check(None), check(Some(60_000))), (Ok(()), Ok(())));
        let error = check(Some(59_999)).unwrap_err();
        assert_eq!(error.to_string(), "keep_failed_ms: must be at least 60000, or null");
        assert!(check(Some(u64::MAX)).is_err());
    }

    #[test]
    fn a_policy_survives_json() {
        let policy = NamespacePolicy::from(Policy::preset("outbox").unwrap());
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<NamespacePolicy>(&json).unwrap(), policy);
    }
}
