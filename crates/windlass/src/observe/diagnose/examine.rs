//! Which checks there are: each asks the store for facts, and has them judged.

use super::{CheckFailure, Findings, schema as of_schema, upkeep, work};
use crate::clock::Timestamp;
use crate::queue::Queue;

/// How long an SQLite file is read through each time that its health is asked for: a page waits for it.
#[cfg(feature = "sqlite")]
const READ_THROUGH_MAX: std::time::Duration = std::time::Duration::from_millis(200);

/// The checks of an SQLite file.
#[cfg(feature = "sqlite")]
pub(super) async fn file(findings: &mut Findings, store: &crate::store::sqlite::SqliteStore) {
    use super::file;
    use crate::error::Error;

    let settings = findings.answer("writable", async {
        match store.write_settings().await {
            Ok((settings, after)) => Ok((Some(settings), file::writable(after))),
            Err(CheckFailure::Failed(Error::DatabaseLocked { detail })) => Ok((None, file::locked(&detail))),
            Err(CheckFailure::Failed(Error::DatabaseReadOnly { detail })) => Ok((None, file::read_only(&detail))),
            Err(unseen) => Err(unseen),
        }
    });
    if let Some(settings) = settings.await.flatten() {
        findings.check("durability", async { Ok(file::settings(&settings)) }).await;
    }
    let bytes = store.file_bytes();
    let (wal, limit) = store.wal_bytes();
    findings.check("wal", async { Ok(file::wal(wal, limit)) }).await;
    let within = Some(READ_THROUGH_MAX);
    findings.check("integrity", async { Ok(file::integrity(&store.integrity(within).await?, bytes)) }).await;
    findings.check("file_system", async { Ok(file::file_system(store.file_system().as_deref())) }).await;
    findings.check("disk_space", async { Ok(file::space(store.free_bytes(), bytes)) }).await;
    findings.check("free_pages", async { Ok(file::pages(&store.pages().await?)) }).await;
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

    findings.check("server_version", async { Ok(server::release(&store.release().await?)) }).await;
    findings.check("durability", async { Ok(server::durability(&store.durability().await?)) }).await;
    findings.check("pinned_xmin", async { Ok(server::pinned(&store.pins().await?, now)) }).await;
    findings.check("dead_rows", async { Ok(server::dead_rows(&store.dirt().await?)) }).await;
    findings.check("bloat", async { Ok(server::bloat(&store.sizes().await?)) }).await;
    findings.check("wraparound", async { Ok(server::wraparound(&store.freeze().await?)) }).await;
    findings.check("connections", async { Ok(server::connections(&store.connected().await?)) }).await;
    findings.check("clock_skew", async { Ok(server::clock(&store.skew(queue.clock()).await?)) }).await;
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
            Ok(of_schema::version(found, known))
        })
        .await;
    findings.check("indexes", async { Ok(of_schema::indexes(&store.indexes().await?)) }).await;
}

/// The checks of the work in all namespaces.
pub(super) async fn work(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    held(findings, queue, now).await;
    waiting(findings, queue, now).await;
    kept_up(findings, queue, now).await;
}

/// Of what is held, and by whom.
async fn held(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    let store = queue.store();
    let held = store.held_silently(now - work::RUN_OUT_MAX, now - work::SILENT_MAX, work::FOUND_MAX);
    let held = findings.answer("expired_leases", async {
        let held = held.await?;
        let verdict = work::run_out(&held, now);
        Ok((held, verdict))
    });
    let held = held.await;
    findings
        .check("stuck_events", async {
            let held = held.ok_or_else(|| CheckFailure::from(unread("expired_leases")))?;
            Ok(work::stuck(&held, now))
        })
        .await;
    findings
        .check("stale_workers", async {
            let silent = store.silent_workers(now - work::WORKER_SILENT_MAX, work::FOUND_MAX).await?;
            Ok(work::workers(&silent, now))
        })
        .await;
    findings
        .check("stale_nodes", async {
            let silent = store.silent_nodes(now - work::NODE_SILENT_MAX, work::FOUND_MAX).await?;
            Ok(work::nodes(&silent, now))
        })
        .await;
}

fn unread(check: &str) -> crate::Error {
    crate::Error::Database { detail: format!("it needs what `{check}` reads") }
}

/// Of what waits, and for what.
async fn waiting(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    let store = queue.store();
    let pauses = findings.answer("paused", async {
        let namespaces = store.namespaces().await?;
        let pauses = work::Pauses::new(&namespaces, store.paused_subscriptions().await?);
        let verdict = work::paused(&pauses);
        Ok((pauses, verdict))
    });
    let pauses = pauses.await.unwrap_or_default();
    findings
        .check("oldest_waiting", async {
            let waiting = store.waiting_since(now - work::WAITING_MAX, work::FOUND_MAX).await?;
            Ok(work::waiting(&waiting, &pauses, now))
        })
        .await;
    findings
        .check("arrivals", async {
            let waiting = store.arrived_before(now - work::ARRIVED_MAX, work::FOUND_MAX).await?;
            Ok(work::arrivals(&waiting, now))
        })
        .await;
    let hour = now - chrono::TimeDelta::hours(1);
    findings.check("backlog", async { Ok(work::backlog(&store.minutes(hour).await?)) }).await;
    findings
        .check("blocked_groups", async { Ok(work::groups(&store.blocked_groups(now, work::FOUND_MAX).await?, now)) })
        .await;
    findings
        .check("dead_letters", async {
            Ok(upkeep::dead_letters(&store.dead_since(now - upkeep::LATELY, work::FOUND_MAX).await?))
        })
        .await;
}

/// Of what has to be done all the time.
async fn kept_up(findings: &mut Findings, queue: &Queue, now: Timestamp) {
    let store = queue.store();
    let lanes = findings.answer("lanes", async {
        let lanes = store.lane_counts().await?;
        let verdict = upkeep::lanes(&lanes);
        Ok((lanes, verdict))
    });
    let lanes = lanes.await.unwrap_or_default();
    findings
        .check("upkeep", async {
            let namespaces = store.namespaces().await?.into_iter();
            let in_use = namespaces.filter(|namespace| lanes.iter().any(|(of, _)| *of == namespace.namespace));
            let in_use = in_use
                .map(|namespace| upkeep::InUse { namespace: namespace.namespace, created_at: namespace.created_at });
            Ok(upkeep::upkeep(&store.all_maintenance_tasks().await?, &in_use.collect::<Vec<_>>(), now))
        })
        .await;
    findings
        .check("schedules", async {
            let late = store.late_schedules(now - upkeep::TICK_LATE_MAX, work::FOUND_MAX).await?;
            let failed = store.failed_ticks(now - upkeep::LATELY, work::FOUND_MAX).await?;
            Ok(upkeep::schedules(&late, &failed, now))
        })
        .await;
    findings.check("tokens", async { Ok(upkeep::tokens(&store.tokens().await?, now)) }).await;
}
