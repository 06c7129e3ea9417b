//! Policies of namespaces: leases, retries, deadlines, groups and retention; named presets; overrides by type and
//! subscription.
//!
//! This folder only defines the settings. `queue::decide` applies them to deliveries, `maintenance` applies the
//! retention.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::clock::DURATION_MAX;
use crate::error::{Error, Result};
use crate::event::names;
use crate::event::{MAX_RETRIES_MAX, check_expires_in};
use crate::policy::backoff::Backoff;

pub(crate) mod backoff;
pub(crate) mod limits;

/// The settings of a namespace for its deliveries. Set it with [`Queue::put_namespace`](crate::Queue::put_namespace).
///
/// A [`NamespacePolicy`] adds overrides by event type, and a [`Subscription`](crate::Subscription) has its own.
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
    /// The lease duration, in milliseconds. When the lease expires, the delivery can be claimed again.
    pub lease_ms: u64,
    /// A delivery is not retried when its `retry_count` reaches this number; `None`: only `max_attempts` limits it.
    pub max_retries: Option<u32>,
    /// The delay before a failed delivery is retried.
    pub backoff: Backoff,
    /// How a delivery ends that is not retried any more.
    pub exhausted: ExhaustedPolicy,
    /// Whether an unrecoverable error of one handler ends the delivery although other handlers are to be retried.
    #[serde(default)]
    pub unrecoverable: UnrecoverablePolicy,
    /// What happens to an event that the worker has no handler for.
    pub unhandled: UnhandledPolicy,
    /// How many times a delivery may be claimed, including attempts that ended in a crash.
    pub max_attempts: u32,
    /// Whether completed events are kept.
    pub history: History,
    /// Whether a group waits while its first event waits for a retry.
    pub group_failure: GroupFailurePolicy,
    /// Whether all transactional handlers of an event on a node share one transaction, so that all their writes are
    /// committed together with the completion. Otherwise each handler has its own transaction.
    #[serde(default)]
    pub share_transaction: bool,
    /// When the results of single handlers are stored, if a delivery has several.
    #[serde(default)]
    pub handler_results: HandlerResultStorage,
    /// Deliveries that expire within this many milliseconds are claimed before all others, earliest deadline first.
    /// `None`: all deliveries with a deadline; but only those of the next minute if
    /// [`expires_after_ms`](Self::expires_after_ms) gives every event a deadline, because priorities would have no
    /// effect otherwise.
    #[serde(default)]
    pub deadline_horizon_ms: Option<u64>,
    /// How long a published key prevents duplicates, in milliseconds.
    pub key_window_ms: u64,
    /// The default deadline of events without one, in milliseconds after an event can first be delivered; `None`: no
    /// deadline.
    #[serde(default)]
    pub expires_after_ms: Option<u64>,
    /// How long the history of a COMPLETED, COMPLETED_WITH_ERRORS or CANCELLED delivery is kept after its end, in
    /// milliseconds; `None`: forever. The history of a purged dead letter is kept equally long after its failure.
    #[serde(default = "half_a_year")]
    pub keep_completed_ms: Option<u64>,
    /// How long a FAILED dead letter is kept, in milliseconds; `None`: until it is redriven or purged.
    #[serde(default)]
    pub keep_failed_ms: Option<u64>,
    /// How long an EXPIRED dead letter is kept, in milliseconds; `None`: until it is redriven or purged.
    #[serde(default)]
    pub keep_expired_ms: Option<u64>,
    /// Whether history is archived in files before it is deleted. A process without an archive folder
    /// ([`OpenOptions::archive_to`](crate::OpenOptions::archive_to)) then deletes no history.
    #[serde(default)]
    pub archive: bool,
}

/// 183 days.
fn half_a_year() -> Option<u64> {
    Some(183 * 24 * 3_600_000)
}

/// How a delivery ends after an unrecoverable error, or when its retries are exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExhaustedPolicy {
    /// As FAILED, with a dead letter.
    DeadLetter,
    /// As COMPLETED_WITH_ERRORS, without a dead letter.
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

/// What happens to an event that the worker has no handler for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnhandledPolicy {
    /// It is delivered again after the duration of the lease, because another node may have a handler.
    Retry,
    /// It becomes a dead letter immediately.
    DeadLetter,
}

/// Whether completed events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// Completed events are kept for the time in the policy.
    Keep,
    /// An event is deleted as soon as all its deliveries are completed.
    None,
}

/// What a group does while its first event waits for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GroupFailurePolicy {
    /// The group waits: strict order.
    Block,
    /// The group continues with its next event; still one at a time.
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
    /// A preset: `default`, `queue`, `bus`, `tags`, `core` or `outbox`.
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

    /// Deliveries that expire within this time are claimed before all others; `None`: all deliveries with a deadline.
    pub(crate) fn deadline_horizon(&self) -> Option<Duration> {
        let default = self.expires_after_ms.map(|_| DEFAULT_HORIZON_MS);
        self.deadline_horizon_ms.or(default).map(Duration::from_millis)
    }

    pub(crate) fn key_window(&self) -> Duration {
        Duration::from_millis(self.key_window_ms)
    }

    fn check(&self) -> Result<()> {
        check_duration_ms("lease_ms", self.lease_ms, LEASE_MAX)?;
        check_duration_ms("deadline_horizon_ms", self.deadline_horizon_ms.unwrap_or(0), DURATION_MAX)?;
        check_duration_ms("key_window_ms", self.key_window_ms, DURATION_MAX)?;
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

/// The deadline horizon if `expires_after_ms` gives every event a deadline and the policy does not set a horizon.
const DEFAULT_HORIZON_MS: u64 = 60_000;

/// The maximum lease duration: a week.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) fn check_duration_ms(field: &'static str, ms: u64, max: Duration) -> Result<()> {
    if u128::from(ms) > max.as_millis() {
        return Err(Error::invalid(field, format!("must be at most {} ms", max.as_millis())));
    }
    Ok(())
}

/// The minimum retention: a minute, so that transactions which were open when the delivery ended have committed.
pub(crate) const KEEP_MS_MIN: u64 = 60_000;

fn check_keep(field: &'static str, ms: Option<u64>) -> Result<()> {
    match ms {
        Some(ms) if ms < KEEP_MS_MIN => Err(Error::invalid(field, format!("must be at least {KEEP_MS_MIN}, or null"))),
        Some(ms) => check_duration_ms(field, ms, DURATION_MAX),
        None => Ok(()),
    }
}

/// Settings that override those of a [`Policy`]. Absent settings are not overridden.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PolicyOverrides {
    /// See [`Policy::lease_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// See [`Policy::max_retries`]; `Some(None)`, in JSON `null`, removes the limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_if_present")]
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
    /// See [`Policy::deadline_horizon_ms`]; `Some(None)`, in JSON `null`, removes the limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_if_present")]
    pub deadline_horizon_ms: Option<Option<u64>>,
    /// See [`Policy::expires_after_ms`]; `Some(None)`, in JSON `null`, removes the deadline. Not for subscriptions.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_if_present")]
    pub expires_after_ms: Option<Option<u64>>,
    /// See [`Policy::keep_completed_ms`]; `Some(None)`, in JSON `null`, keeps forever.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_if_present")]
    pub keep_completed_ms: Option<Option<u64>>,
    /// See [`Policy::keep_failed_ms`]; `Some(None)`, in JSON `null`, keeps them until they are redriven or purged.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_if_present")]
    pub keep_failed_ms: Option<Option<u64>>,
    /// See [`Policy::keep_expired_ms`]; `Some(None)`, in JSON `null`, keeps them until they are redriven or purged.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_if_present")]
    pub keep_expired_ms: Option<Option<u64>>,
}

/// Deserializes `null` as `Some(None)`, to distinguish it from an absent field.
fn some_if_present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl PolicyOverrides {
    /// Returns `policy` with these settings.
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

/// The policy of a namespace, with overrides by event type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespacePolicy {
    /// The policy for all types.
    pub base: Policy,
    /// Overrides by type pattern: an exact type, or a prefix ending in `*`. The longest matching pattern applies.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, PolicyOverrides>,
}

impl From<Policy> for NamespacePolicy {
    fn from(base: Policy) -> NamespacePolicy {
        NamespacePolicy { base, types: BTreeMap::new() }
    }
}

impl NamespacePolicy {
    /// The policy for a type, with the overrides of a subscription applied last.
    pub(crate) fn resolve(&self, event_type: &str, subscription: &PolicyOverrides) -> Policy {
        let matching = self.types.iter().filter(|(pattern, _)| names::type_matches(pattern, event_type));
        let longest = matching.max_by_key(|(pattern, _)| pattern.len()).map(|(_, overrides)| overrides);
        let of_type = longest.map_or_else(|| self.base.clone(), |overrides| overrides.apply(&self.base));
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
    fn presets_have_their_documented_settings() {
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
    fn longest_pattern_wins_and_subscription_overrides_it() {
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
    fn absent_and_null_overrides_differ_in_json() {
        let absent: PolicyOverrides = serde_json::from_str("{}").unwrap();
        let null: PolicyOverrides = serde_json::from_str(r#"{"max_retries":null}"#).unwrap();
        assert_eq!(absent.apply(&Policy::default()).max_retries, Some(3));
        assert_eq!(null.apply(&Policy::default()).max_retries, None);
    }

    #[test]
    fn missing_settings_of_a_stored_policy_have_defaults() {
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
    fn retention_is_at_least_one_minute() {
        let check = |ms| PolicyOverrides { keep_failed_ms: Some(ms), ..Default::default() }.check();
        assert_eq!((check(None), check(Some(60_000))), (Ok(()), Ok(())));
        let error = check(Some(59_999)).unwrap_err();
        assert_eq!(error.to_string(), "keep_failed_ms: must be at least 60000, or null");
        assert!(check(Some(u64::MAX)).is_err());
    }

    #[test]
    fn policy_round_trips_through_json() {
        let policy = NamespacePolicy::from(Policy::preset("outbox").unwrap());
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<NamespacePolicy>(&json).unwrap(), policy);
    }
}
