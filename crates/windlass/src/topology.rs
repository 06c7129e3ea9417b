//! What a namespace consists of: its policy, subscriptions and lanes; and who matches what.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::delivery::Live;
use crate::names;
use crate::policy::{NamespacePolicy, Policy, PolicyOverrides};

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

/// What the deliveries of one lane share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey {
    pub subscription: String,
    pub event_type: String,
    /// A set: sorted, without repeats.
    pub tags: Vec<String>,
    pub priority: i16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lane {
    pub lane_id: i64,
    pub key: LaneKey,
}

/// A namespace with all that routes its events, as loaded at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub namespace: Namespace,
    /// Grows with every change but new lanes. Publish and claim refuse to work with an old one.
    pub version: i64,
    pub subscriptions: Vec<Subscription>,
    pub lanes: Vec<Lane>,
    lane_ids: HashMap<LaneKey, i64>,
    places: HashMap<i64, usize>,
    /// The places of the lanes with each tag.
    by_tag: HashMap<String, Vec<usize>>,
}

/// Version and number of lanes: topologies that have these in common have the same lanes.
pub(crate) type Edition = (i64, usize);

impl Topology {
    pub fn new(namespace: Namespace, version: i64, subscriptions: Vec<Subscription>, lanes: Vec<Lane>) -> Topology {
        let lane_ids = lanes.iter().map(|lane| (lane.key.clone(), lane.lane_id)).collect();
        let places = lanes.iter().enumerate().map(|(place, lane)| (lane.lane_id, place)).collect();
        let mut by_tag: HashMap<String, Vec<usize>> = HashMap::new();
        for (place, lane) in lanes.iter().enumerate() {
            lane.key.tags.iter().for_each(|tag| by_tag.entry(tag.clone()).or_default().push(place));
        }
        Topology { namespace, version, subscriptions, lanes, lane_ids, places, by_tag }
    }

    /// Lanes are only ever removed together with their subscription, which grows the version.
    pub fn edition(&self) -> Edition {
        (self.version, self.lanes.len())
    }

    pub fn subscription(&self, name: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|subscription| subscription.subscription == name)
    }

    pub fn lane_id(&self, key: &LaneKey) -> Option<i64> {
        self.lane_ids.get(key).copied()
    }

    pub fn lane(&self, lane_id: i64) -> Option<&Lane> {
        self.places.get(&lane_id).map(|place| &self.lanes[*place])
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

    /// The policy that a live delivery is under; the default where its lane is gone.
    pub fn policy_of(&self, live: &Live) -> Policy {
        let event_type = self.lane(live.lane_id).map_or("", |lane| &lane.key.event_type);
        self.policy(&live.subscription, event_type)
    }

    /// The lanes with any of these tags; all if none is named. There may be many lanes, and as many claims
    /// that want a few of them each.
    fn with_any(&self, tags: &[String]) -> Vec<&Lane> {
        if tags.is_empty() {
            return self.lanes.iter().collect();
        }
        let places: BTreeSet<usize> = tags.iter().filter_map(|tag| self.by_tag.get(tag)).flatten().copied().collect();
        places.into_iter().map(|place| &self.lanes[place]).collect()
    }

    /// The lanes a claim may take from: of the subscription, wanted, and not paused.
    pub fn claimable(&self, subscription: &str, types: &[String], tags: &[String]) -> Vec<&Lane> {
        let paused = self.namespace.paused || self.subscription(subscription).is_none_or(|found| found.paused);
        if paused {
            return Vec::new();
        }
        let paused_type = |lane: &Lane| {
            self.namespace.paused_types.iter().any(|pattern| names::type_matches(pattern, &lane.key.event_type))
        };
        let of_subscription = self.with_any(tags).into_iter().filter(|lane| lane.key.subscription == subscription);
        of_subscription
            .filter(|lane| wants(types, tags, &lane.key.event_type, &lane.key.tags) && !paused_type(lane))
            .collect()
    }
}

/// The tags of a lane as its table holds them.
pub(crate) fn join_tags(tags: &[String]) -> String {
    tags.join(",")
}

pub(crate) fn split_tags(tags: &str) -> Vec<String> {
    tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
