//! `POST /events/{id}/start` and `heartbeat`: signals from a worker that holds an event.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::Action;

/// The holder of a lease.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742" }))]
pub struct LeaseHolderRequest {
    /// The worker that holds the lease. Required unless `lease` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The lease token of the claim. Identifies exactly one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Default: `main`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
}

/// The recorded start.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StartedBody {
    /// The event.
    pub event_id: i64,
    /// The worker that reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Always STARTED.
    pub action: Action,
    /// When it was recorded.
    pub created_at: DateTime<Utc>,
}

/// A request to renew a lease.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "worker_id": "worker-02:8742", "lease_ms": 60000 }))]
pub struct HeartbeatRequest {
    /// The worker that holds the lease. Required unless `lease` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The lease token of the claim. Identifies exactly one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Default: `main`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// New lease duration, from now. Default: the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// The renewed lease.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LeaseBody {
    /// The event.
    pub event_id: i64,
    /// When other workers may claim the event, unless another heartbeat arrives before.
    pub lease_expires_at: DateTime<Utc>,
}
