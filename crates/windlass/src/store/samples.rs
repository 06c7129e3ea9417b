//! Samples: counts per minute, and per longer spans once they are older.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::samples::thin::ThinningLevel;
use crate::observe::samples::{SampleRow, SampleSeries};

#[async_trait]
pub(crate) trait SampleStore {
    /// Merges these rows into the stored rows of the same span, time and type: counts are added, of depth and age the
    /// maximum is kept.
    async fn add_samples(&self, namespace: &str, rows: &[SampleRow]) -> Result<()>;

    /// The types with pending or processing deliveries, or with counts, in this minute or the last.
    async fn sampled_lately(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<String>>;

    /// Merges up to `limit` samples of the level from before this time, the earliest first, into samples of the next
    /// longer span, or deletes them if there is none. Returns how many.
    async fn thin_samples(
        &self,
        namespace: &str,
        level: &ThinningLevel,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize>;

    /// Adds the stored samples to the points, from one snapshot; those of each span in the order of time.
    async fn samples(&self, namespace: &str, points: SampleSeries) -> Result<SampleSeries>;
}
