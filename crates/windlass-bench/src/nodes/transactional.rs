//! A backlog is drained by a handler that inserts a row in the transaction that completes its event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{Connection, Executor, PgConnection};
use windlass::{Node, Queue};

use super::Options;
use super::counter::{Counter, drain};
use super::report::Rate;
use crate::AnyError;
use crate::order::PAID;
use crate::store::Backend;

const EVENTS: usize = 20_000;
const CONCURRENCY: usize = 10;

const CREATE: &str = "CREATE TABLE bench_orders (event_id bigint PRIMARY KEY, note text NOT NULL)";
const INSERT: &str = "INSERT INTO bench_orders (event_id, note) VALUES ($1, 'paid')";

pub async fn run(options: &Options, store: Backend) -> Result<Rate, AnyError> {
    let events = options.events.unwrap_or(EVENTS);
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("{}: transactional, {events} events, round {round}", store.name());
        rounds.push(measure(store, events).await?);
    }
    Ok(Rate::new(store, "transactional", CONCURRENCY, events, rounds))
}

async fn measure(store: Backend, events: usize) -> Result<f64, AnyError> {
    let database = store.fresh().await?;
    let queue = Queue::open(&database.url).await?;
    let node = Node::new(&queue, "bench").concurrency(CONCURRENCY);
    let rate = match store {
        Backend::Sqlite => drain(&queue, events, |counter| in_sqlite(node, counter)).await?,
        Backend::Postgres => {
            PgConnection::connect(&database.url).await?.execute(CREATE).await?;
            drain(&queue, events, |counter| in_postgres(node, counter)).await?
        }
    };
    queue.close().await;
    Ok(rate)
}

fn in_postgres(node: Node, counter: Arc<Counter>) -> Node {
    node.on_in_pg_tx(PAID, move |event, mut tx| {
        counter.count();
        async move {
            sqlx::query(INSERT).bind(event.id).execute(&mut *tx).await?;
            Ok(())
        }
    })
}

/// The table is made by the first, since nobody else has the connection.
fn in_sqlite(node: Node, counter: Arc<Counter>) -> Node {
    let created = AtomicBool::new(false);
    node.on_in_sqlite_tx(PAID, move |event, connection| {
        if !created.swap(true, Ordering::Relaxed) {
            connection.execute_batch(CREATE)?;
        }
        connection.prepare_cached(INSERT)?.execute([event.id])?;
        counter.count();
        Ok(())
    })
}
