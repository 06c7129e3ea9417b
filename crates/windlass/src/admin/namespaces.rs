//! Namespaces: creating them, setting their policy, pausing them.

use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::event::names;
use crate::policy::NamespacePolicy;
use crate::queue::Queue;
use crate::topology::Namespace;

impl Queue {
    /// Creates the namespace, or replaces the parts that are given, and returns a handle on it.
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
        queue.changed().await?;
        Ok(queue)
    }

    /// This namespace's registry entry.
    pub async fn describe(&self) -> Result<Namespace> {
        Ok(self.reload().await?.namespace.clone())
    }

    /// All namespaces, by name.
    pub async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.store().namespaces().await
    }

    /// Hands out nothing more from this namespace. Publishing goes on.
    pub async fn pause(&self) -> Result<()> {
        self.set_paused(true).await
    }

    /// Hands out again.
    pub async fn resume(&self) -> Result<()> {
        self.set_paused(false).await
    }

    async fn set_paused(&self, paused: bool) -> Result<()> {
        self.reload().await?;
        self.store().pause_namespace(self.namespace(), paused).await?;
        self.changed().await
    }

    /// Hands out nothing more of this type (by exact name, or by prefix ending in `*`).
    pub async fn pause_type(&self, event_type: &str) -> Result<()> {
        names::check_type_pattern("type", event_type)?;
        let max = self.limits().tags_max;
        if self.reload().await?.namespace.paused_types.len() >= max {
            return Err(Error::invalid("type", format!("at most {max} types can be paused at once")));
        }
        self.store().pause_type(self.namespace(), event_type, true).await?;
        self.changed().await
    }

    /// Hands out this type again.
    pub async fn resume_type(&self, event_type: &str) -> Result<()> {
        self.reload().await?;
        self.store().pause_type(self.namespace(), event_type, false).await?;
        self.changed().await
    }

    /// After a change of the topology: everyone here sees it, and who waits looks again.
    pub(crate) async fn changed(&self) -> Result<()> {
        self.reload().await?;
        self.core().wakes.notify_anywhere(self.namespace());
        Ok(())
    }
}
