//! The rate at which arrivals become deliveries.

use sqlx::{Connection, PgConnection};
use tokio::time::{Duration, Instant, sleep};
use windlass::{ClaimRequest, Queue};

use super::{Options, median};
use crate::AnyError;
use crate::event::{PAID, order};
use crate::store::Backend;

const BATCHES: usize = 100;
const BATCH: usize = 1_000;

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let (mut published, mut routed) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let (publish, route) = measure().await?;
        published.push(publish);
        routed.push(route);
    }
    println!("| batches of {BATCH} | events/s |\n| --- | ---: |");
    println!("| publish_all_in, nothing routed | {:.0} |", median(published));
    println!("| routing what has arrived | {:.0} |", median(routed));
    Ok(())
}

async fn measure() -> Result<(f64, f64), AnyError> {
    let database = Backend::Postgres.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let mut connection = PgConnection::connect(&database.url).await?;
    let events = vec![order(PAID, 12_345)?; BATCH];
    let started = Instant::now();
    for _ in 0..BATCHES {
        let mut tx = connection.begin().await?;
        queue.publish_all_in(&mut *tx, events.clone()).await?;
        tx.commit().await?;
    }
    let publish = (BATCHES * BATCH) as f64 / started.elapsed().as_secs_f64();
    let waiting = {
        let queue = queue.clone();
        // A claim that waits for another type keeps a router running.
        tokio::spawn(async move {
            queue.claim(ClaimRequest::new("bench").types(["another"]).wait(Duration::from_secs(60))).await
        })
    };
    let started = Instant::now();
    let any = "SELECT count(*) FROM (SELECT FROM windlass.arrivals LIMIT 1) AS a";
    while sqlx::query_scalar::<_, i64>(any).fetch_one(&mut connection).await? > 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let route = (BATCHES * BATCH) as f64 / started.elapsed().as_secs_f64();
    waiting.abort();
    queue.close().await;
    Ok((publish, route))
}
