//! The cost of publishing in a transaction that inserts a row.

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, PgConnection};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};
use windlass::{ClaimRequest, Queue};

use super::{Options, median, pgbench};
use crate::AnyError;
use crate::event::{PAID, order};
use crate::store::Backend;

const CONNECTIONS: [usize; 4] = [1, 4, 16, 70];
const TABLE: &str = "CREATE TABLE orders (id bigserial PRIMARY KEY, note text NOT NULL)";
const INSERT: &str = "INSERT INTO orders (note) VALUES ('an order');\n";
const PAYLOAD: &str =
    r#"{"order_id": 12345, "amount": "99.90", "note": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#;

struct Case {
    name: &'static str,
    /// The statement after the INSERT; `None` publishes with the library.
    publish: Option<String>,
    /// Whether a process routes meanwhile.
    routed: bool,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let case = |name, publish: &str, routed| Case { name, publish: Some(publish.to_owned()), routed };
    let function = format!("SELECT windlass.publish('order.paid', '{PAYLOAD}');");
    let outbox = format!("INSERT INTO windlass.outbox (event_type, payload) VALUES ('order.paid', '{PAYLOAD}');");
    let mut cases = vec![
        case("INSERT alone", "", false),
        case("windlass.publish, no process", &function, false),
        case("windlass.publish, routed", &function, true),
        case("windlass.outbox, routed", &outbox, true),
        Case { name: "publish_in, routed", publish: None, routed: true },
    ];
    if options.pgmq_sql.is_some() {
        cases.insert(1, case("pgmq.send", &format!("SELECT pgmq.send('bench', '{PAYLOAD}');"), false));
    }
    println!("| connections | transaction with | transactions/s | of pgmq.send |\n| ---: | --- | ---: | ---: |");
    for connections in CONNECTIONS.into_iter().filter(|n| options.connections.is_none_or(|only| only == *n)) {
        let mut rates: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.rounds {
            for (case, rates) in cases.iter().zip(&mut rates) {
                rates.push(measure(case, connections, options).await?);
            }
        }
        let rates: Vec<f64> = rates.into_iter().map(median).collect();
        let peer = cases.iter().position(|case| case.name == "pgmq.send").map(|at| rates[at]);
        for (case, rate) in cases.iter().zip(rates) {
            let ratio = peer.map_or("–".to_owned(), |peer| format!("{:.2}", rate / peer));
            println!("| {connections} | {} | {rate:.0} | {ratio} |", case.name);
        }
    }
    Ok(())
}

async fn measure(case: &Case, connections: usize, options: &Options) -> Result<f64, AnyError> {
    let database = Backend::Postgres.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let mut connection = PgConnection::connect(&database.url).await?;
    connection.execute(TABLE).await?;
    if let (Some(file), "pgmq.send") = (&options.pgmq_sql, case.name) {
        connection.execute("CREATE SCHEMA IF NOT EXISTS pgmq").await?;
        connection.execute(sqlx::AssertSqlSafe(std::fs::read_to_string(file)?)).await?;
        connection.execute("SELECT pgmq.create('bench')").await?;
    }
    let router = case.routed.then(|| tokio::spawn(keep_router(queue.clone())));
    if !case.routed {
        queue.close().await;
    }
    let rate = match &case.publish {
        Some(publish) => {
            let script = format!("BEGIN;\n{INSERT}{publish}\nCOMMIT;\n");
            pgbench::run(&database.url, &script, connections, options.seconds).await?
        }
        None => in_library(&queue, &database.url, connections, options.seconds).await?,
    };
    if let Some(router) = router {
        router.abort();
        queue.close().await;
    }
    Ok(rate)
}

/// Keeps the router of this process running with a claim that waits for another type.
pub async fn keep_router(queue: Queue) {
    let request = || ClaimRequest::new("bench").types(["another"]).wait(Duration::from_secs(30));
    while queue.claim(request()).await.is_ok() {}
}

/// The same transaction with sqlx and `publish_in`.
async fn in_library(queue: &Queue, url: &str, connections: usize, seconds: u64) -> Result<f64, AnyError> {
    let pool = PgPoolOptions::new().max_connections(connections as u32).test_before_acquire(false).connect(url).await?;
    let (mut tasks, started) = (JoinSet::new(), Instant::now());
    let end = started + Duration::from_secs(seconds);
    for _ in 0..connections {
        let (pool, queue) = (pool.clone(), queue.clone());
        tasks.spawn(async move {
            let mut count = 0;
            while Instant::now() < end {
                let mut tx = pool.begin().await?;
                tx.execute(INSERT).await?;
                queue.publish_in(&mut tx, order(PAID, 12_345)?).await?;
                tx.commit().await?;
                count += 1;
            }
            Ok::<usize, AnyError>(count)
        });
    }
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done??;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}
