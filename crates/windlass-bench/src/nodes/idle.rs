//! The cost of an idle node.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::time::sleep;
use windlass::{Node, Queue};

use super::Options;
use super::report::Idle;
use crate::AnyError;
use crate::event::PAID;
use crate::postgres;
use crate::store::Backend;
use crate::usage::Usage;

/// Time for the startup, and for PostgreSQL to report it: an idle backend reports its statistics after up to 10 s.
const SETTLE: Duration = Duration::from_secs(12);

pub async fn run(options: &Options, store: Backend) -> Result<Idle, AnyError> {
    eprintln!("{}: idle, {} s", store.name(), options.seconds);
    let database = store.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let node = Node::new(&queue, "bench").on(PAID, |_, _| async { Ok(()) }).on("order.sent", |_, _| async { Ok(()) });
    let node = node.start().await?;
    sleep(SETTLE).await;

    let seconds = options.time().as_secs_f64();
    let before = (Usage::of(std::process::id()), transactions(store, &database.url).await?);
    sleep(options.time()).await;
    let after = (Usage::of(std::process::id()), transactions(store, &database.url).await?);
    node.stop().await;
    queue.close().await;

    let used = before.0.zip(after.0).map(|(before, after)| after.cpu - before.cpu);
    let transactions = before.1.zip(after.1).map(|(before, after)| after - before);
    Ok(Idle {
        store: store.name(),
        seconds,
        cpu_percent: used.map(|used| 100.0 * used.as_secs_f64() / seconds),
        transactions_per_second: transactions.map(|n| n as f64 / seconds),
    })
}

/// Transactions in a database so far. Queried from another database, so that the query is not counted.
async fn transactions(store: Backend, url: &str) -> Result<Option<i64>, AnyError> {
    let (Backend::Postgres, Some(server)) = (store, postgres::url()) else { return Ok(None) };
    let name = url.rsplit('/').next().unwrap_or_default();
    let count = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
    let mut connection = PgConnection::connect(&server).await?;
    Ok(Some(sqlx::query_scalar(count).bind(name).fetch_one(&mut connection).await?))
}
