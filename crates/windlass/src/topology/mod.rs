//! What a namespace consists of: its policy and subscriptions.

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

/// The subscription that every namespace has and that matches everything.
pub const MAIN: &str = "main";

/// The namespace that always exists.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A unit of isolation: its own events, subscriptions, dead letters and policy.
#[derive(Debug, Clone, Serialize)]
pub struct Namespace {
    /// Its name.
    pub namespace: String,
    /// Anything people want to keep with it: a JSON object.
    pub metadata: Box<RawValue>,
    /// How it treats its deliveries.
    pub policy: NamespacePolicy,
    /// Nothing is handed out while it is paused.
    pub paused: bool,
    /// Event types that are not handed out.
    pub paused_types: Vec<String>,
    /// When it was created.
    pub created_at: Timestamp,
}

/// Who must be told: a named filter on types and tags.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Subscription {
    /// Its name, unique in the namespace.
    pub subscription: String,
    /// Unique in the database. Deliveries are stored and claimed by it.
    #[serde(skip)]
    pub(crate) subscription_id: i64,
    /// Types it wants, by exact name or by prefix ending in `*`; all if empty.
    pub types: Vec<String>,
    /// It wants events with any of these tags; all if empty.
    pub tags: Vec<String>,
    /// What it does differently from its namespace.
    pub policy: PolicyOverrides,
    /// Nothing is handed out while it is paused.
    pub paused: bool,
    /// Events published from this instant on are delivered to it.
    pub starts_at: DateTime<Utc>,
    /// While past events are still being added: the id to go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backfill_from: Option<i64>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
}

impl Subscription {
    pub(crate) fn wants(&self, event_type: &str, tags: &[String]) -> bool {
        wants(&self.types, &self.tags, event_type, tags)
    }
}

/// Any of the types, and any of the tags; an empty list asks for nothing in particular.
pub(crate) fn wants(types: &[String], any_tags: &[String], event_type: &str, tags: &[String]) -> bool {
    (types.is_empty() || types.iter().any(|pattern| names::type_matches(pattern, event_type)))
        && (any_tags.is_empty() || any_tags.iter().any(|tag| tags.contains(tag)))
}

/// The policy and subscriptions of a namespace, as of one version.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub namespace: Namespace,
    /// Incremented by every change of the namespace and its subscriptions, and when lanes are removed. Publish and claim
    /// refuse to work with an old version.
    pub version: i64,
    pub subscriptions: Vec<Subscription>,
}

impl Topology {
    pub fn subscription(&self, name: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|subscription| subscription.subscription == name)
    }

    /// How long events of this type may wait that say nothing about it themselves.
    pub fn expires_after(&self, event_type: &str) -> Option<Duration> {
        let policy = self.namespace.policy.resolve(event_type, &PolicyOverrides::default());
        policy.expires_after_ms.map(Duration::from_millis)
    }

    /// The policy for a type as one subscription sees it.
    pub fn policy(&self, subscription: &str, event_type: &str) -> Policy {
        let none = PolicyOverrides::default();
        let overrides = self.subscription(subscription).map_or(&none, |found| &found.policy);
        self.namespace.policy.resolve(event_type, overrides)
    }

    /// How long leases of a subscription last, by type.
    pub fn lease_times(&self, subscription: &str) -> LeaseTimes {
        let default = self.policy(subscription, "").lease();
        let patterns = self.namespace.policy.types.keys();
        let by_type = patterns.map(|pattern| {
            // The type that is the pattern without its `*` is matched by no longer pattern than this one.
            (pattern.clone(), self.policy(subscription, pattern.trim_end_matches('*')).lease())
        });
        let by_type: Vec<_> = by_type.collect();
        let same = by_type.iter().all(|(_, lease)| *lease == default);
        LeaseTimes { default, by_type: if same { Vec::new() } else { by_type } }
    }

    /// Deliveries of the subscription that expire this soon are claimed before all others.
    pub fn deadline_horizon(&self, subscription: &str) -> Option<Duration> {
        self.policy(subscription, "").deadline_horizon()
    }

    /// The policy that applies to a live delivery.
    pub fn policy_of(&self, live: &LiveDelivery) -> Policy {
        self.policy(&live.subscription, &live.event_type)
    }

    /// The types that are paused, as patterns; `None` if the namespace or the subscription is paused as a whole.
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
    fn a_filter_asks_for_any_type_and_any_tag() {
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
