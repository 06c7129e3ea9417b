//! Which process runs which maintenance task, and when each is due again.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::task::{MaintenanceRun, MaintenanceTask, MaintenanceTaskView};

#[async_trait]
pub(crate) trait MaintenanceTaskStore {
    /// The tasks that are due and not acquired by a worker, of one namespace or of all. A task of the whole database is
    /// due in `default`.
    async fn due_maintenance_tasks(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
        now: Option<Timestamp>,
    ) -> Result<Vec<(String, MaintenanceTask)>>;

    /// Acquires the tasks that are still due. Returns which ones.
    async fn acquire_maintenance_tasks(
        &self,
        namespace: &str,
        tasks: &[MaintenanceTask],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<MaintenanceTask>>;

    /// Keeps a task for longer, unless another worker has acquired it.
    async fn extend_maintenance_task(
        &self,
        namespace: &str,
        task: MaintenanceTask,
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// Records the results of tasks and when they are due again, unless another worker has acquired them.
    async fn record_maintenance_runs(
        &self,
        namespace: &str,
        runs: &[MaintenanceRun],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// All tasks that were ever acquired, ordered by name.
    async fn maintenance_tasks(&self, namespace: &str) -> Result<Vec<MaintenanceTaskView>>;
}
