//! Drains a backlog with a handler that inserts a row in the transaction that completes its event. On PostgreSQL it
//! also measures a handler that inserts on a connection of the application, without that transaction. The rounds
//! alternate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, PgConnection, PgPool};
use windlass::{Node, Queue};

use super::Options;
use super::counter::{Counter, drain};
use super::report::Rate;
use crate::AnyError;
use crate::event::PAID;
use crate::store::Backend;

const EVENTS: usize = 20_000;
const CONCURRENCY: [usize; 2] = [10, 50];

const CREATE: &str = "CREATE TABLE bench_orders (event_id bigint PRIMARY KEY, note text NOT NULL)";
const INSERT: &str = "INSERT INTO bench_orders (event_id, note) VALUES ($1, 'paid')";

pub async fn run(options: &Options, store: Backend) -> Result<Vec<Rate>, AnyError> {
    let events = options.events.unwrap_or(EVENTS);
    let mut rates = Vec::new();
    for concurrency in CONCURRENCY.into_iter().filter(|one| options.concurrency.is_none_or(|only| only == *one)) {
        let (mut in_transaction, mut own_connection) = (Vec::new(), Vec::new());
        for round in 1..=options.rounds {
            eprintln!("{}: transactional, {events} events, {concurrency} at once, round {round}", store.name());
            in_transaction.push(measure(store, events, concurrency, true).await?);
            if store == Backend::Postgres {
                own_connection.push(measure(store, events, concurrency, false).await?);
            }
        }
        rates.push(Rate::new(store, "transactional", concurrency, events, in_transaction));
        if !own_connection.is_empty() {
            rates.push(Rate::new(store, "own connection", concurrency, events, own_connection));
        }
    }
    Ok(rates)
}

async fn measure(store: Backend, events: usize, concurrency: usize, in_transaction: bool) -> Result<f64, AnyError> {
    let database = store.create_database().await?;
    let queue = Queue::options(&database.url).handler_connections(concurrency).open().await?;
    let node = Node::new(&queue, "bench").concurrency(concurrency);
    let rate = match store {
        Backend::Sqlite => drain(&queue, events, |counter| in_sqlite(node, counter)).await?,
        Backend::Postgres => {
            PgConnection::connect(&database.url).await?.execute(CREATE).await?;
            let pool = PgPoolOptions::new().max_connections(concurrency as u32).connect_lazy(&database.url)?;
            let rate = drain(&queue, events, |counter| match in_transaction {
                true => in_postgres(node, counter),
                false => on_own_connection(node, counter, pool.clone()),
            });
            let rate = rate.await?;
            pool.close().await;
            rate
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

fn on_own_connection(node: Node, counter: Arc<Counter>, pool: PgPool) -> Node {
    node.on(PAID, move |event, _| {
        counter.count();
        let pool = pool.clone();
        async move {
            sqlx::query(INSERT).bind(event.id).execute(&pool).await?;
            Ok(())
        }
    })
}

/// The first handler creates the table: no other code has access to the connection.
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
