//! Creates, pauses and removes subscriptions.

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::names;
use crate::observe::inspect::check_filter;
use crate::policy::PolicyOverrides;
use crate::queue::Queue;
use crate::queue::publish::{TOPOLOGY_RETRIES_MAX, keeps_changing};
use crate::queue::route;
use crate::store::{AddedSubscription, NewSubscription, RoutePosition};
use crate::topology::{MAIN, Subscription};

/// A subscription to create.
///
/// ```
/// use windlass::{PolicyOverrides, SubscriptionSpec};
///
/// let unlimited_retries = PolicyOverrides { max_retries: Some(None), ..PolicyOverrides::default() };
/// let audit = SubscriptionSpec::new("audit").types(["order.*", "refund.*"]).policy(unlimited_retries);
/// ```
#[derive(Debug, Clone)]
pub struct SubscriptionSpec(NewSubscription);

impl SubscriptionSpec {
    /// A subscription to all events published from now on.
    pub fn new(subscription: impl Into<String>) -> SubscriptionSpec {
        SubscriptionSpec(NewSubscription {
            subscription: subscription.into(),
            types: Vec::new(),
            tags: Vec::new(),
            policy: PolicyOverrides::default(),
            starts_at: None,
        })
    }

    /// Only events of these types: exact names, or prefixes ending in `*`.
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> SubscriptionSpec {
        self.0.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Only events with any of these tags.
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> SubscriptionSpec {
        self.0.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Overrides of the namespace's policy.
    pub fn policy(mut self, policy: PolicyOverrides) -> SubscriptionSpec {
        self.0.policy = policy;
        self
    }

    /// Also events published since this time, as far as they are still in the history.
    pub fn since(mut self, since: Timestamp) -> SubscriptionSpec {
        self.0.starts_at = Some(since);
        self
    }
}

impl Queue {
    /// Creates a subscription. When this returns, matching past events (see [`SubscriptionSpec::since`]) have
    /// deliveries, and every matching event published from now on gets one.
    pub async fn add_subscription(&self, spec: SubscriptionSpec) -> Result<Subscription> {
        let SubscriptionSpec(new) = spec;
        names::check_identifier("subscription", &new.subscription)?;
        check_filter(&new.types, &new.tags, self.limits())?;
        new.policy.check()?;
        if new.policy.expires_after_ms.is_some() {
            // An event has one deadline for all subscriptions.
            return Err(Error::invalid("expires_after_ms", "belongs to the namespace's policy or one of its types"));
        }
        let max = self.limits().subscriptions_max;
        if self.reload().await?.subscriptions.len() >= max {
            return Err(Error::invalid("subscription", format!("a namespace has at most {max} subscriptions")));
        }
        let added = self.add_checked(&new).await?;
        self.topology_changed().await?;
        self.backfill(&added).await?;
        Ok(added)
    }

    /// Routes arrivals first: events published before the subscription existed belong to the old topology.
    async fn add_checked(&self, new: &NewSubscription) -> Result<Subscription> {
        for _ in 0..TOPOLOGY_RETRIES_MAX {
            self.route_arrivals().await?;
            let topology = self.topology().await?;
            let request = route::request(self.core(), &topology, &RoutePosition::default());
            match self.store().add_subscription(&request, new, self.now()).await? {
                AddedSubscription::Added(added, routed) => {
                    routed.iter().for_each(|routed| route::after_commit(self.core(), &topology, routed));
                    return Ok(*added);
                }
                AddedSubscription::Exists => {
                    return Err(Error::Exists { what: "subscription", name: new.subscription.clone() });
                }
                AddedSubscription::Outdated => drop(self.reload().await?),
            }
        }
        Err(keeps_changing(self.namespace()))
    }

    /// The subscriptions of this namespace, ordered by name.
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        Ok(self.reload().await?.subscriptions.clone())
    }

    /// Pauses a subscription: its deliveries cannot be claimed. New deliveries are still added.
    pub async fn pause_subscription(&self, subscription: &str) -> Result<()> {
        self.set_subscription_paused(subscription, true).await
    }

    /// Resumes a subscription.
    pub async fn resume_subscription(&self, subscription: &str) -> Result<()> {
        self.set_subscription_paused(subscription, false).await
    }

    async fn set_subscription_paused(&self, subscription: &str, paused: bool) -> Result<()> {
        self.topology_with(subscription).await?;
        self.store().pause_subscription(self.namespace(), subscription, paused).await?;
        self.topology_changed().await
    }

    /// Removes a subscription with its pending deliveries and dead letters. `main` cannot be removed.
    pub async fn remove_subscription(&self, subscription: &str) -> Result<()> {
        if subscription == MAIN {
            return Err(Error::invalid("subscription", "'main' belongs to every namespace and cannot be removed"));
        }
        self.topology_with(subscription).await?;
        self.store().remove_subscription(self.namespace(), subscription).await?;
        self.topology_changed().await
    }
}
