//! The list of checks. Each reads facts from the store and passes them to its assessment.

use super::{CheckFailure, Findings, maintenance, schema as schema_checks, work};
use crate::clock::Timestamp;
use crate::queue::Queue;

/// How long the integrity check reads an SQLite file. The dashboard page waits for it.
#[cfg(feature = "sqlite")]
const INTEGRITY_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(200);

/// The checks of an SQLite file.
#[cfg(feature = "sqlite")]
pub(super) async fn file(findings: &mut Findings, store: &crate::store::sqlite::SqliteStore) {
    use super::file;
    use crate::error::Error;

    let settings = findings.run_check("writable", async {
        match store.write_settings().await {
            Ok((settings, after)) => Ok((Some(settings), file::writable(after))),
            Err(CheckFailure::Failed(Error::DatabaseLocked { detail })) => Ok((None, file::locked(&detail))),
            Err(CheckFailure::Failed(Error::DatabaseReadOnly { detail })) => Ok((None, file::read_only(&detail))),
            Err(failure) => Err(failure),
        }
    });
    if let Some(settings) = settings.await.flatten() {
        findings.check("durability", async { Ok(file::settings(&settings)) }).await;
    }
    let bytes = store.file_bytes();
    let (wal_bytes, limit_bytes) = store.wal_bytes();
    findings.check("wal", async { Ok(file::wal(wal_bytes, limit_bytes)) }).await;
    let time_limit = Some(INTEGRITY_TIMEOUT);
    findings.check("integrity", async { Ok(file::integrity(&store.integrity(time_limit).await?, bytes)) }).await;
    findings.check("file_system", async { Ok(file::file_system(store.file_system().as_deref())) }).await;
    findings.check("disk_space", async { Ok(file::disk_space(store.free_bytes(), bytes)) }).await;
    findings.check("free_pages", async { Ok(file::free_pages(&store.pages().await?)) }).await;
    let holders = store.processes();
    findings.check("processes", async { Ok(file::processes(holders.as_deref(), std::process::id())) }).await;
}

/// The checks of a PostgreSQL server.
#[cfg(feature = "postgres")]
pub(super) async fn server(
    findings: &mut Findings,
    queue: &Queue,
    store: &crate::store::postgres::PgStore,
    now: Timestamp,
) {
    use super::server;

    findings.check("server_version", async { Ok(server::server_version(&store.server_version().await?)) }).await;
    findings.check("durability", async { Ok(server::durability(&store.durability().await?)) }).await;
    findings.check("pinned_xmin", async { Ok(server::pinned_xmin(&store.xmin_holders().await?, now)) }).await;
    findings.check("dead_rows", async { Ok(server::dead_rows(&store.dead_rows().await?)) }).await;
    findings.check("bloat", async { Ok(server::bloat(&store.queue_sizes().await?)) }).await;
    findings.check("wraparound", async { Ok(server::wraparound(&store.wraparound_age().await?)) }).await;
    findings.check("connections", async { Ok(server::connections(&store.connection_counts().await?)) }).await;
    findings.check("clock_skew", async { Ok(server::clock_skew(&store.clock_skew(queue.clock()).await?)) }).await;
    findings.check("notify_queue", async { Ok(server::notify_queue(store.notify_queue().await?)) }).await;
    findings.check("notifications", async { Ok(server::notifications(store.notified_after().await?)) }).await;
    findings.check("partitions", async { Ok(server::partitions(&store.parts().await?, now)) }).await;
}

/// The checks of the schema.
pub(super) async fn schema(findings: &mut Findings, queue: &Queue) {
    let store = queue.store();
    findings
        .check("schema_version", async {
            let (found, known) = store.schema_versions().await?;
            Ok(schema_checks::version(found, known))
        })
        .await;
    findings.check("indexes", async { Ok(schema_checks::indexes(&store.indexes().await?)) }).await;
}

/// The checks of the work in all namespaces.
pub(super) async fn work(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    leases(findings, queue, now).await;
    pending(findings, queue, now).await;
    recurring_work(findings, queue, now).await;
}

/// Checks of leases and of the workers and nodes that hold them.
async fn leases(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    let store = queue.store();
    let silent =
        store.silent_deliveries(now - work::LEASE_EXPIRED_WARNING, now - work::SILENT_DELIVERY_WARNING, work::ROWS_MAX);
    let silent_check = findings.run_check("expired_leases", async {
        let silent = silent.await?;
        let assessment = work::expired_leases(&silent, now);
        Ok((silent, assessment))
    });
    let silent = silent_check.await;
    findings
        .check("stuck_events", async {
            let silent = silent.ok_or_else(|| CheckFailure::from(depends_on("expired_leases")))?;
            Ok(work::stuck_events(&silent, now))
        })
        .await;
    findings
        .check("stale_workers", async {
            let silent = store.silent_workers(now - work::SILENT_WORKER_WARNING, work::ROWS_MAX).await?;
            Ok(work::stale_workers(&silent, now))
        })
        .await;
    findings
        .check("stale_nodes", async {
            let silent = store.silent_nodes(now - work::SILENT_NODE_WARNING, work::ROWS_MAX).await?;
            Ok(work::stale_nodes(&silent, now))
        })
        .await;
}

fn depends_on(check: &str) -> crate::Error {
    crate::Error::Database { detail: format!("it needs the rows that the check `{check}` reads") }
}

/// Checks of pending deliveries and of what they wait for.
async fn pending(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    let store = queue.store();
    let pauses = findings.run_check("paused", async {
        let namespaces = store.namespaces().await?;
        let pauses = work::PausedScopes::new(&namespaces, store.paused_subscriptions().await?);
        let assessment = work::paused(&pauses);
        Ok((pauses, assessment))
    });
    let pauses = pauses.await.unwrap_or_default();
    findings
        .check("oldest_waiting", async {
            let ready = store.waiting_since(now - work::READY_WARNING, work::ROWS_MAX).await?;
            Ok(work::oldest_waiting(&ready, &pauses, now))
        })
        .await;
    findings
        .check("arrivals", async {
            let unrouted = store.arrived_before(now - work::ARRIVAL_WARNING, work::ROWS_MAX).await?;
            Ok(work::arrivals(&unrouted, now))
        })
        .await;
    let hour_ago = now - chrono::TimeDelta::hours(1);
    findings.check("backlog", async { Ok(work::backlog(&store.minutes(hour_ago).await?)) }).await;
    findings
        .check("blocked_groups", async {
            Ok(work::blocked_groups(&store.blocked_groups(now, work::ROWS_MAX).await?, now))
        })
        .await;
    findings
        .check("dead_letters", async {
            Ok(maintenance::dead_letters(&store.dead_since(now - maintenance::RECENT, work::ROWS_MAX).await?))
        })
        .await;
}

/// Checks of maintenance tasks, schedules, lanes and tokens.
async fn recurring_work(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    let store = queue.store();
    let lanes = findings.run_check("lanes", async {
        let lanes = store.lane_counts().await?;
        let assessment = maintenance::lanes(&lanes);
        Ok((lanes, assessment))
    });
    let lanes = lanes.await.unwrap_or_default();
    findings
        .check("maintenance", async {
            let namespaces = store.namespaces().await?.into_iter();
            let in_use = namespaces.filter(|namespace| lanes.iter().any(|(of, _)| *of == namespace.namespace));
            let in_use = in_use.map(|namespace| maintenance::NamespaceInUse {
                namespace: namespace.namespace,
                created_at: namespace.created_at,
            });
            Ok(maintenance::maintenance(&store.all_maintenance_tasks().await?, &in_use.collect::<Vec<_>>(), now))
        })
        .await;
    findings
        .check("schedules", async {
            let late = store.late_schedules(now - maintenance::TICK_LATE_WARNING, work::ROWS_MAX).await?;
            let failed = store.failed_ticks(now - maintenance::RECENT, work::ROWS_MAX).await?;
            Ok(maintenance::schedules(&late, &failed, now))
        })
        .await;
    findings.check("tokens", async { Ok(maintenance::tokens(&store.tokens().await?, now)) }).await;
}
