//! The rates of a process while another transaction stays open: one that has published to two groups, and one that
//! only has a transaction id. Both keep vacuum from removing dead rows.

use sqlx::{Connection, Executor, PgConnection};
use tokio::time::{Duration, Instant};
use windlass::{ClaimRequest, NewEvent, Queue, Report};

use super::Options;
use crate::AnyError;
use crate::store::Backend;

const OPEN_TRANSACTIONS: [(&str, &str); 3] = [
    ("none", ""),
    ("one that has written nothing", "BEGIN; SELECT pg_current_xact_id()"),
    (
        "one that published to g1 and g2",
        "BEGIN; SELECT windlass.publish('t', '{}', group_id => 'g1'); SELECT windlass.publish('t', '{}', group_id => 'g2')",
    ),
];

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let database = Backend::Postgres.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let mut connection = PgConnection::connect(&database.url).await?;
    let time = Duration::from_secs(options.seconds);
    let mut rates: Vec<Vec<[f64; 2]>> = OPEN_TRANSACTIONS.iter().map(|_| Vec::new()).collect();
    work(&queue, time).await?;
    for _ in 0..options.rounds {
        for ((_, open), rates) in OPEN_TRANSACTIONS.iter().zip(&mut rates) {
            connection.execute(*open).await?;
            rates.push(work(&queue, time).await?);
            connection.execute("ROLLBACK").await?;
            connection.execute("VACUUM").await?;
        }
    }
    println!("| open transaction | published, claimed and completed /s | ratio | of them in g1 and g2 | ratio |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let median_of = |rates: &[[f64; 2]], at: usize| super::median(rates.iter().map(|rates| rates[at]).collect());
    let none = [median_of(&rates[0], 0), median_of(&rates[0], 1)];
    for ((name, _), rates) in OPEN_TRANSACTIONS.iter().zip(&rates) {
        let (all, grouped) = (median_of(rates, 0), median_of(rates, 1));
        println!("| {name} | {all:.0} | {:.2} | {grouped:.0} | {:.2} |", all / none[0], grouped / none[1]);
    }
    queue.close().await;
    Ok(())
}

/// Sixteen callers publish, claim and complete events. Returns the rates of all events and of those in `g1` and `g2`,
/// which two of the callers use.
async fn work(queue: &Queue, time: Duration) -> Result<[f64; 2], AnyError> {
    let (started, mut tasks) = (Instant::now(), tokio::task::JoinSet::new());
    for caller in 0..16 {
        let queue = queue.clone();
        tasks.spawn(async move {
            let (mut all, mut grouped) = (0, 0);
            while started.elapsed() < time {
                let event = NewEvent::new("t");
                let event = match caller {
                    0 => event.group("g1"),
                    1 => event.group("g2"),
                    _ => event,
                };
                queue.publish(event).await?;
                let request = ClaimRequest::new(format!("w{caller}")).wait(Duration::from_millis(200));
                for delivery in queue.claim(request).await? {
                    grouped += usize::from(delivery.event.group_id.is_some());
                    let _ = queue.finish(&delivery, Report::done()).await?;
                    all += 1;
                }
            }
            Ok::<_, AnyError>((all, grouped))
        });
    }
    let (mut all, mut grouped) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        let (more, more_grouped) = done??;
        (all, grouped) = (all + more, grouped + more_grouped);
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok([all as f64 / seconds, grouped as f64 / seconds])
}
