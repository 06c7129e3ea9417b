//! Subscriptions: who else must be told.

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::names;
use crate::observe::inspect::check_filter;
use crate::policy::PolicyOverrides;
use crate::queue::Queue;
use crate::queue::publish::{ROUNDS_MAX, keeps_changing};
use crate::queue::route;
use crate::store::{AddedSubscription, NewSubscription, RoutePosition};
use crate::topology::{MAIN, Subscription};

/// A subscription to create.
///
/// ```
/// use windlass::{PolicyOverrides, SubscriptionSpec};
///
/// let patient = PolicyOverrides { max_retries: Some(None), ..PolicyOverrides::default() };
/// let audit = SubscriptionSpec::new("audit").types(["order.*", "refund.*"]).policy(patient);
/// ```
#[derive(Debug, Clone)]
pub struct SubscriptionSpec(NewSubscription);

impl SubscriptionSpec {
    /// Everything that is published from now on.
    pub fn new(subscription: impl Into<String>) -> SubscriptionSpec {
        SubscriptionSpec(NewSubscription {
            subscription: subscription.into(),
            types: Vec::new(),
            tags: Vec::new(),
            policy: PolicyOverrides::default(),
            starts_at: None,
        })
    }

    /// Only these types, by exact name or by prefix ending in `*`.
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> SubscriptionSpec {
        self.0.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Only events with any of these tags.
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> SubscriptionSpec {
        self.0.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// What it does differently from its namespace.
    pub fn policy(mut self, policy: PolicyOverrides) -> SubscriptionSpec {
        self.0.policy = policy;
        self
    }

    /// Also what was published since then and is still in the history.
    pub fn since(mut self, since: Timestamp) -> SubscriptionSpec {
        self.0.starts_at = Some(since);
        self
    }
}

impl Queue {
    /// Creates a subscription. When this returns, every event published from now on, and every past one
    /// that was asked for, has its delivery.
    pub async fn add_subscription(&self, spec: SubscriptionSpec) -> Result<Subscription> {
        let SubscriptionSpec(new) = spec;
        names::check_identifier("subscription", &new.subscription)?;
        check_filter(&new.types, &new.tags, self.limits())?;
        new.policy.check()?;
        if new.policy.expires_after_ms.is_some() {
            // An event has one deadline, whoever waits for it.
            return Err(Error::invalid("expires_after_ms", "belongs to the namespace's policy or one of its types"));
        }
        let max = self.limits().subscriptions_max;
        if self.reload().await?.subscriptions.len() >= max {
            return Err(Error::invalid("subscription", format!("a namespace has at most {max} subscriptions")));
        }
        let added = self.add_checked(&new).await?;
        self.changed().await?;
        self.backfill(&added).await?;
        Ok(added)
    }

    /// What was committed before belongs to the subscriptions of before, so it is routed first.
    async fn add_checked(&self, new: &NewSubscription) -> Result<Subscription> {
        for _ in 0..ROUNDS_MAX {
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

    /// The subscriptions of this namespace, by name.
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        Ok(self.reload().await?.subscriptions.clone())
    }

    /// Hands out nothing more to this subscription. Its deliveries still gather.
    pub async fn pause_subscription(&self, subscription: &str) -> Result<()> {
        self.set_subscription_paused(subscription, true).await
    }

    /// Hands out again.
    pub async fn resume_subscription(&self, subscription: &str) -> Result<()> {
        self.set_subscription_paused(subscription, false).await
    }

    async fn set_subscription_paused(&self, subscription: &str, paused: bool) -> Result<()> {
        self.topology_with(subscription).await?;
        self.store().pause_subscription(self.namespace(), subscription, paused).await?;
        self.changed().await
    }

    /// Removes a subscription with its waiting deliveries and dead letters. `main` stays.
    pub async fn remove_subscription(&self, subscription: &str) -> Result<()> {
        if subscription == MAIN {
            return Err(Error::invalid("subscription", "'main' belongs to every namespace and cannot be removed"));
        }
        self.topology_with(subscription).await?;
        self.store().remove_subscription(self.namespace(), subscription).await?;
        self.changed().await
    }
}
