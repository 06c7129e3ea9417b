//! Registers this process as a node and sends its heartbeats, so that `windlass node list` shows it.

use std::sync::Arc;
use std::time::Duration;

use windlass_api::RegisterNodeRequest;

use super::Worker;
use crate::Result;
use crate::api::{ApiError, encode_segment};

/// Interval between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(30);
/// The shutdown does not wait longer than this for the deregistration.
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer host names are truncated.
const HOST_CHARS_MAX: usize = 40;

/// Returns a worker id that no other running process has.
pub fn host_and_pid() -> String {
    let system = rustix::system::uname();
    let host: String = system.nodename().to_string_lossy().chars().take(HOST_CHARS_MAX).collect();
    format!("{}:{}", if host.is_empty() { "worker" } else { &host }, std::process::id())
}

impl Worker {
    /// Registers the node. This also checks, before the first claim, that the queue is reachable and the token valid.
    pub async fn register(&self) -> Result {
        let command = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let body = RegisterNodeRequest {
            display_name: Some("windlass work".to_owned()),
            description: Some(format!("runs {command}, up to {} at once", self.options.concurrency)),
            metadata: None,
            event_types: Some(self.options.types.clone().into()),
        };
        self.api.put(&self.api.namespace_path(&self.node_path("")), &[], &body).await?;
        Ok(())
    }

    /// Sends heartbeats until the future is dropped. Failures are ignored, because leases do not depend on heartbeats.
    pub async fn send_heartbeats(self: Arc<Worker>) {
        loop {
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
            let heartbeat = self.api.post(&self.api.namespace_path(&self.node_path("/heartbeat")), &[], &()).await;
            let is_unregistered = |api_error: &ApiError| api_error.code == "node_not_found";
            if heartbeat.is_err_and(|error| error.downcast_ref().is_some_and(is_unregistered)) {
                let _ = self.register().await;
            }
        }
    }

    pub async fn unregister(&self) {
        let path = self.api.namespace_path(&self.node_path(""));
        let _ = tokio::time::timeout(UNREGISTER_TIMEOUT, self.api.delete(&path, &[])).await;
    }

    fn node_path(&self, suffix: &str) -> String {
        format!("/nodes/{}{suffix}", encode_segment(&self.worker_id))
    }
}
