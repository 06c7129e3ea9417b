//! `/doctor`: diagnose the whole installation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::{Finding, FindingLevel};

/// The diagnosis of an installation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DoctorBody {
    /// The worst level of all findings.
    pub level: FindingLevel,
    /// One finding for each check, also for checks without problems.
    pub findings: Vec<Finding>,
}
