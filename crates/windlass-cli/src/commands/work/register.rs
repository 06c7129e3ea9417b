//! Making ourselves known as a node, so that people see who works.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::Worker;
use crate::Result;
use crate::api::{Refusal, segment};

/// How often a node says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Nobody waits longer than this for a good-bye.
const GOOD_BYE_MAX: Duration = Duration::from_secs(2);
/// The longest part of a host's name that is used.
const HOST_CHARS_MAX: usize = 40;

/// Unlike any other that runs now.
pub fn host_and_pid() -> String {
    let system = rustix::system::uname();
    let host: String = system.nodename().to_string_lossy().chars().take(HOST_CHARS_MAX).collect();
    format!("{}:{}", if host.is_empty() { "worker" } else { &host }, std::process::id())
}

impl Worker {
    /// Also tells, before anything is taken, whether the queue can be reached, and may be.
    pub async fn register(&self) -> Result {
        let command = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let body = json!({
            "display_name": "windlass work",
            "description": format!("runs {command}, up to {} at once", self.options.concurrency),
            "event_types": self.options.types,
        });
        self.api.put(&self.api.within(&self.path("")), &[], &body).await?;
        Ok(())
    }

    /// For as long as it is awaited. Nothing depends on it, so a failure is not told.
    pub async fn keep_registered(self: Arc<Worker>) {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            let beat = self.api.post(&self.api.within(&self.path("/heartbeat")), &[], &json!({})).await;
            let is_forgotten = |refusal: &Refusal| refusal.code == "node_not_found";
            if beat.is_err_and(|error| error.downcast_ref().is_some_and(is_forgotten)) {
                let _ = self.register().await;
            }
        }
    }

    pub async fn say_good_bye(&self) {
        let path = self.api.within(&self.path(""));
        let _ = tokio::time::timeout(GOOD_BYE_MAX, self.api.delete(&path, &[])).await;
    }

    fn path(&self, after: &str) -> String {
        format!("/nodes/{}{after}", segment(&self.worker_id))
    }
}
