//! Storing namespaces and subscriptions.

use async_trait::async_trait;
use serde_json::value::RawValue;

use super::{RouteRequest, Routed};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::policy::{NamespacePolicy, PolicyOverrides};
use crate::topology::{Namespace, Subscription, Topology};

/// A new subscription.
#[derive(Debug, Clone)]
pub(crate) struct NewSubscription {
    pub subscription: String,
    pub types: Vec<String>,
    pub tags: Vec<String>,
    pub policy: PolicyOverrides,
    /// The subscription gets deliveries of events published from this time on. `None`: from its creation on.
    pub starts_at: Option<Timestamp>,
}

/// The result of creating a subscription.
pub(crate) enum AddedSubscription {
    /// Created, after these batches of arrivals were routed.
    Added(Box<Subscription>, Vec<Routed>),
    /// A subscription of that name exists.
    Exists,
    /// The namespace has another version. Nothing was done.
    Outdated,
}

/// Every change increments the namespace's version, by which publishers and claimers notice it.
#[async_trait]
pub(crate) trait TopologyStore {
    /// The namespace with its subscriptions, or `None` if there is no such namespace.
    async fn topology(&self, namespace: &str) -> Result<Option<Topology>>;

    async fn namespaces(&self) -> Result<Vec<Namespace>>;

    /// Creates the namespace with its `main` subscription, or replaces the fields that are `Some`.
    async fn put_namespace(
        &self,
        namespace: &str,
        metadata: Option<&RawValue>,
        policy: Option<&NamespacePolicy>,
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// The caller has checked that the namespace exists.
    async fn pause_namespace(&self, namespace: &str, paused: bool) -> Result<()>;

    /// Adds the pattern to the paused types, or removes it from them.
    async fn pause_type(&self, namespace: &str, pattern: &str, paused: bool) -> Result<()>;

    /// Routes all arrivals, then creates the subscription, in one transaction. A subscription that starts in the past
    /// begins with `backfill_from` 0.
    async fn add_subscription(
        &self,
        request: &RouteRequest,
        new: &NewSubscription,
        now: Option<Timestamp>,
    ) -> Result<AddedSubscription>;

    /// Returns whether the subscription exists.
    async fn pause_subscription(&self, namespace: &str, name: &str, paused: bool) -> Result<bool>;

    /// Removes the subscription with its lanes, pending and processing deliveries, groups, dead letters and handler
    /// results. Returns whether it existed.
    async fn remove_subscription(&self, namespace: &str, name: &str) -> Result<bool>;
}
