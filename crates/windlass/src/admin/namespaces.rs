//! Creates, configures and pauses namespaces.

use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::event::names;
use crate::policy::NamespacePolicy;
use crate::queue::Queue;
use crate::topology::Namespace;

impl Queue {
    /// Creates a namespace, or replaces its policy and metadata where they are given. Returns a queue for the
    /// namespace.
    pub async fn put_namespace(
        &self,
        namespace: &str,
        policy: Option<NamespacePolicy>,
        metadata: Option<Box<RawValue>>,
    ) -> Result<Queue> {
        names::check_identifier("namespace", namespace)?;
        if let Some(policy) = &policy {
            policy.check()?;
        }
        if let Some(metadata) = &metadata {
            names::check_text("metadata", metadata.get(), self.limits().metadata_bytes_max)?;
            if !metadata.get().starts_with('{') {
                return Err(Error::invalid("metadata", "must be a JSON object"));
            }
        }
        self.store().put_namespace(namespace, metadata.as_deref(), policy.as_ref(), self.now()).await?;
        let queue = self.in_namespace(namespace)?;
        queue.topology_changed().await?;
        Ok(queue)
    }

    /// This namespace with its policy and metadata.
    pub async fn describe(&self) -> Result<Namespace> {
        Ok(self.reload().await?.namespace.clone())
    }

    /// All namespaces, ordered by name.
    pub async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.store().namespaces().await
    }

    /// Pauses the namespace: nothing can be claimed from it. Publishing is still possible.
    pub async fn pause(&self) -> Result<()> {
        self.set_paused(true).await
    }

    /// Resumes the namespace.
    pub async fn resume(&self) -> Result<()> {
        self.set_paused(false).await
    }

    async fn set_paused(&self, paused: bool) -> Result<()> {
        self.reload().await?;
        self.store().pause_namespace(self.namespace(), paused).await?;
        self.topology_changed().await
    }

    /// Pauses an event type, given by exact name or by prefix ending in `*`: its events cannot be claimed.
    pub async fn pause_type(&self, event_type: &str) -> Result<()> {
        names::check_type_pattern("type", event_type)?;
        let max = self.limits().tags_max;
        if self.reload().await?.namespace.paused_types.len() >= max {
            return Err(Error::invalid("type", format!("at most {max} types can be paused")));
        }
        self.store().pause_type(self.namespace(), event_type, true).await?;
        self.topology_changed().await
    }

    /// Resumes an event type.
    pub async fn resume_type(&self, event_type: &str) -> Result<()> {
        self.reload().await?;
        self.store().pause_type(self.namespace(), event_type, false).await?;
        self.topology_changed().await
    }

    /// Call after a change of the topology: reloads it in this process and wakes the namespace's waiting claims.
    pub(crate) async fn topology_changed(&self) -> Result<()> {
        self.reload().await?;
        self.core().wakes.notify_anywhere(self.namespace());
        Ok(())
    }
}
