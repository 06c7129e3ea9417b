//! The topology of a namespace: its policy and subscriptions, which each process caches by version. [`lanes`] caches
//! the lanes.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::event::delivery::LiveDelivery;
use crate::event::names;
use crate::policy::{NamespacePolicy, Policy, PolicyOverrides};
use crate::store::LeaseTimes;

pub(crate) mod lanes;

/// The subscription that every namespace has. By default it matches all events.
pub const MAIN: &str = "main";

/// The namespace that always exists.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A unit of isolation: its own events, subscriptions, dead letters and policy.
#[derive(Debug, Clone, Serialize)]
pub struct Namespace {
    /// The name.
    pub namespace: String,
    /// User-defined metadata: a JSON object.
    pub metadata: Box<RawValue>,
    /// The policy for deliveries.
    pub policy: NamespacePolicy,
    /// No deliveries of a paused namespace can be claimed.
    pub paused: bool,
    /// Patterns of event types whose deliveries cannot be claimed.
    pub paused_types: Vec<String>,
    /// When it was created.
    pub created_at: Timestamp,
}

/// A named filter on types and tags. A subscription gets its own delivery of each matching event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Subscription {
    /// The name, unique in the namespace.
    pub subscription: String,
    /// Unique in the database. Deliveries are stored and claimed by this id.
    #[serde(skip)]
    pub(crate) subscription_id: i64,
    /// Matches events of these types: exact names, or prefixes that end in `*`. Empty: all types.
    pub types: Vec<String>,
    /// Matches events with any of these tags. Empty: all events.
    pub tags: Vec<String>,
    /// Overrides of the namespace's policy.
    pub policy: PolicyOverrides,
    /// No deliveries of a paused subscription can be claimed.
    pub paused: bool,
    /// Events that are published from this time on are delivered to the subscription.
    pub starts_at: DateTime<Utc>,
    /// During the backfill with past events: the event id from which it continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backfill_from: Option<i64>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
}

impl Subscription {
    /// Whether the subscription matches such an event.
    pub(crate) fn wants(&self, event_type: &str, tags: &[String]) -> bool {
        wants(&self.types, &self.tags, event_type, tags)
    }
}

/// Whether a filter matches an event: any of the types, and any of the tags. An empty list matches everything.
pub(crate) fn wants(types: &[String], any_tags: &[String], event_type: &str, tags: &[String]) -> bool {
    (types.is_empty() || types.iter().any(|pattern| names::type_matches(pattern, event_type)))
        && (any_tags.is_empty() || any_tags.iter().any(|tag| tags.contains(tag)))
}

/// The policy and subscriptions of a namespace, as of one version.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub namespace: Namespace,
    /// Incremented by every change of the namespace and its subscriptions, and when lanes are removed. Publish and
    /// claim refuse to work with an old version.
    pub version: i64,
    pub subscriptions: Vec<Subscription>,
}

impl Topology {
    pub fn subscription(&self, name: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|subscription| subscription.subscription == name)
    }

    /// The default deadline of events of this type, after they can first be delivered.
    pub fn expires_after(&self, event_type: &str) -> Option<Duration> {
        let policy = self.namespace.policy.resolve(event_type, &PolicyOverrides::default());
        policy.expires_after_ms.map(Duration::from_millis)
    }

    /// The policy for deliveries of a type to a subscription.
    pub fn policy(&self, subscription: &str, event_type: &str) -> Policy {
        let none = PolicyOverrides::default();
        let overrides = self.subscription(subscription).map_or(&none, |found| &found.policy);
        self.namespace.policy.resolve(event_type, overrides)
    }

    /// The lease durations of a subscription, by type.
    pub fn lease_times(&self, subscription: &str) -> LeaseTimes {
        let default = self.policy(subscription, "").lease();
        let patterns = self.namespace.policy.types.keys();
        let by_type = patterns.map(|pattern| {
            // No longer pattern than this one matches the pattern without its `*`, so it resolves to this pattern.
            (pattern.clone(), self.policy(subscription, pattern.trim_end_matches('*')).lease())
        });
        let by_type: Vec<_> = by_type.collect();
        let all_default = by_type.iter().all(|(_, lease)| *lease == default);
        LeaseTimes { default, by_type: if all_default { Vec::new() } else { by_type } }
    }

    /// Deliveries of the subscription that expire within this time are claimed before all others; `None`: all with a
    /// deadline.
    pub fn deadline_horizon(&self, subscription: &str) -> Option<Duration> {
        self.policy(subscription, "").deadline_horizon()
    }

    /// The policy for a delivery.
    pub fn policy_of(&self, live: &LiveDelivery) -> Policy {
        self.policy(&live.subscription, &live.event_type)
    }

    /// The patterns of paused types; `None` if the whole namespace or subscription is paused, or there is no
    /// subscription.
    pub fn paused_types(&self, subscription: &str) -> Option<&[String]> {
        let paused = self.namespace.paused || self.subscription(subscription).is_none_or(|found| found.paused);
        (!paused).then_some(&self.namespace.paused_types[..])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn topology(namespace: &str, version: i64) -> Topology {
        let namespace = Namespace {
            namespace: namespace.to_owned(),
            metadata: RawValue::NULL.to_owned(),
            policy: Default::default(),
            paused: false,
            paused_types: Vec::new(),
            created_at: crate::clock::from_micros(0),
        };
        Topology { namespace, version, subscriptions: Vec::new() }
    }

    #[test]
    fn filter_matches_any_type_and_any_tag() {
        let list = |items: &[&str]| items.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (email, none) = (list(&["email", "high"]), list(&[]));
        assert!(wants(&none, &none, "t", &none));
        assert!(wants(&none, &list(&["sms", "email"]), "t", &email));
        assert!(!wants(&none, &list(&["sms"]), "t", &email));
        assert!(!wants(&none, &list(&["sms"]), "t", &none));
        assert!(wants(&list(&["a", "t*"]), &none, "type", &email));
        assert!(!wants(&list(&["a"]), &list(&["email"]), "t", &email));
    }
}
