//! The database clock as retention last saw it. Retention compares it to detect a clock that jumped ahead.

use async_trait::async_trait;

use crate::error::Result;
use crate::maintenance::clock_check::ClockCheck;

#[async_trait]
pub(crate) trait ClockCheckStore {
    /// `None`: no clock check was recorded yet.
    async fn clock_check(&self) -> Result<Option<ClockCheck>>;

    /// Replaces the recorded clock check.
    async fn record_clock_check(&self, check: ClockCheck) -> Result<()>;
}
