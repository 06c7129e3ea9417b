//! `GET /samples`: counts and latencies over time, for charts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::Sample;

/// The samples.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SamplesBody {
    /// Oldest first. Steps without activity are omitted.
    pub samples: Vec<Sample>,
}
