//! `/subscriptions`: create and list subscriptions.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::{PolicyOverrides, Subscription};

use crate::NameList;

/// The subscriptions.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionsBody {
    /// By name.
    pub subscriptions: Vec<Subscription>,
}

/// A subscription to create.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "subscription": "audit", "types": "order.*" }))]
pub struct AddSubscriptionRequest {
    /// Name: 1 to 63 ASCII letters, digits, `-`, `_` and `.`.
    pub subscription: String,
    /// Only these types, each exact or a prefix ending in `*`. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<NameList>,
    /// Only events with any of these tags. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<NameList>,
    /// Overrides of the namespace's policy.
    #[serde(default)]
    pub policy: PolicyOverrides,
    /// Also deliver events published since this time that are still in the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
}
