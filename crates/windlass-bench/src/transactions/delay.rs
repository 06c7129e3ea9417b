//! Latency from the commit of a transaction that publishes by SQL to the start of the handler, and the number of
//! notifications.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sqlx::postgres::PgListener;
use sqlx::{Connection, PgConnection};
use tokio::time::{Duration, Instant, MissedTickBehavior, interval, sleep};
use windlass::{Node, Queue};

use super::Options;
use crate::AnyError;
use crate::latency::Latencies;
use crate::store::Backend;

const PUBLISHERS: usize = 5;

pub async fn run(options: &Options) -> Result<(), AnyError> {
    println!(
        "| events/s | events | p50 / p95 / p99 / max ms | notifications of publishers |\n| ---: | ---: | --- | ---: |"
    );
    for rate in [1, 500] {
        let seconds = if rate == 1 { options.seconds.max(30) } else { options.seconds };
        measure(rate, seconds).await?;
    }
    Ok(())
}

async fn measure(rate: usize, seconds: u64) -> Result<(), AnyError> {
    let database = Backend::Postgres.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let started: Arc<Mutex<HashMap<i64, Instant>>> = Arc::default();
    let seen = started.clone();
    let node = Node::new(&queue, "bench").concurrency(50).on("t", move |event, _| {
        seen.lock().expect("no handler panics").insert(event.id, Instant::now());
        async { Ok(()) }
    });
    let node = node.start().await?;
    sleep(Duration::from_secs(1)).await;
    let notifications = Arc::new(Mutex::new(0));
    let mut listener = PgListener::connect(&database.url).await?;
    listener.listen("windlass").await?;
    let counted = notifications.clone();
    let counting = tokio::spawn(async move {
        // Notifications of publishers end with a plus.
        while let Ok(notification) = listener.recv().await {
            *counted.lock().expect("nothing panics") += usize::from(notification.payload().ends_with('+'));
        }
    });
    let publishers = if rate == 1 { 1 } else { PUBLISHERS };
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..publishers {
        let url = database.url.clone();
        tasks.spawn(async move {
            let mut connection = PgConnection::connect(&url).await?;
            let mut ticks = interval(Duration::from_secs_f64(publishers as f64 / rate as f64));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            let (end, mut committed) = (Instant::now() + Duration::from_secs(seconds), Vec::new());
            while Instant::now() < end {
                ticks.tick().await;
                let mut tx = connection.begin().await?;
                let publish = sqlx::query_scalar("SELECT windlass.publish('t', '{}')");
                let id: i64 = publish.fetch_one(&mut *tx).await?;
                tx.commit().await?;
                committed.push((id, Instant::now()));
            }
            Ok::<_, AnyError>(committed)
        });
    }
    let (mut latencies, mut events) = (Latencies::new("commit to handler"), 0);
    let mut committed = Vec::new();
    while let Some(done) = tasks.join_next().await {
        committed.extend(done??);
    }
    while started.lock().expect("no handler panics").len() < committed.len() {
        sleep(Duration::from_millis(10)).await;
    }
    for (id, at) in committed {
        let started = started.lock().expect("no handler panics")[&id];
        latencies.add(started.saturating_duration_since(at));
        events += 1;
    }
    node.stop().await;
    counting.abort();
    let sent = *notifications.lock().expect("nothing panics");
    if let Some(found) = latencies.percentiles() {
        let crate::latency::Percentiles { p50_ms, p95_ms, p99_ms, max_ms, .. } = found;
        println!("| {rate} | {events} | {p50_ms:.1} / {p95_ms:.1} / {p99_ms:.1} / {max_ms:.1} | {sent} |");
    }
    queue.close().await;
    Ok(())
}
