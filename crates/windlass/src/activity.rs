//! temporary
use crate::*;
/// t
#[derive(serde::Serialize, Debug, Clone)]
pub struct Activity {
    /// t
    pub event_id: i64,
    /// t
    pub event_type: String,
    /// t
    pub title: Option<String>,
    /// t
    pub tags: String,
    /// t
    pub subscription: String,
    /// t
    pub action: Action,
    /// t
    pub status: Status,
    /// t
    pub attempt: u32,
    /// t
    pub worker_id: Option<String>,
    /// t
    pub error_message: Option<String>,
    /// t
    pub created_at: Timestamp,
}
/// t
#[derive(Clone)]
pub struct ActivityCursor;
/// t
pub struct ActivityPage {
    /// t
    pub entries: Vec<Activity>,
    /// t
    pub missed: u64,
}
impl Queue {
    /// t
    pub async fn activity_now(&self) -> Result<ActivityCursor> {
        Ok(ActivityCursor)
    }
    /// t
    pub async fn activity(&self, _: &mut ActivityCursor, _: usize) -> Result<ActivityPage> {
        Ok(ActivityPage { entries: vec![], missed: 0 })
    }
}
