//! Many connections that each wait for an event: memory and CPU time per connection, and the latency of an event.

use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::Options;
use super::poller_pool::PollerPool;
use super::server::{Server, ServerTarget};
use crate::AnyError;
use crate::usage::Usage;

/// Open files besides the pollers' connections.
const OTHER_FILES: u64 = 200;
const SETTLE_TIME: Duration = Duration::from_secs(3);
const EVENTS: u32 = 20;

#[derive(Serialize)]
struct Pollers {
    store: &'static str,
    pollers: u32,
    distinct_tags: bool,
    opened_in_seconds: f64,
    idle: Option<Idle>,
    /// From sending the publish request to its receipt by a poller.
    reached_after: Spread,
    /// The number of published events, each of which reached exactly one poller.
    events: u32,
}

/// The cost of the idle server.
#[derive(Serialize)]
struct Idle {
    seconds: f64,
    rss_mb: f64,
    /// The growth since before the pollers connected.
    rss_kb_per_poller: f64,
    /// In percent of one core.
    cpu_percent: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Spread {
    min_ms: f64,
    median_ms: f64,
    max_ms: f64,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    // Raise the limit before the server starts: it inherits the limit.
    raise_file_limit(u64::from(options.pollers) + OTHER_FILES)?;
    let mut measured = Vec::new();
    for target in options.targets() {
        measured.push(measure(options, &target).await?);
    }
    if options.json {
        println!("{:#}", serde_json::json!({ "pollers": measured }));
        return Ok(());
    }
    println!(
        "| store | pollers | tags | server RSS, idle | per poller | CPU, idle | reached after min / median / max |"
    );
    println!("| --- | ---: | --- | ---: | ---: | ---: | ---: |");
    for Pollers { store, pollers, distinct_tags, idle, reached_after, .. } in &measured {
        let Spread { min_ms, median_ms, max_ms } = reached_after;
        let tags = if *distinct_tags { "distinct" } else { "one" };
        let idle = idle.as_ref().map_or(
            "– | – | –".to_owned(),
            |Idle { rss_mb, rss_kb_per_poller, cpu_percent, .. }| {
                format!("{rss_mb:.1} MB | {rss_kb_per_poller:.1} kB | {cpu_percent:.1} %")
            },
        );
        println!("| {store} | {pollers} | {tags} | {idle} | {min_ms:.1} / {median_ms:.1} / {max_ms:.1} ms |");
    }
    println!("\nEach of {EVENTS} events, published one at a time, reached exactly one poller.");
    Ok(())
}

fn raise_file_limit(needed: u64) -> Result<(), AnyError> {
    check_file_limit(needed, rlimit::increase_nofile_limit(needed)?)
}

fn check_file_limit(needed: u64, raised: u64) -> Result<(), AnyError> {
    if raised >= needed {
        return Ok(());
    }
    Err(format!(
        "this many pollers need {needed} open files, but the limit cannot be raised above {raised}: \
         raise the hard limit (`ulimit -Hn`), or use fewer with --pollers"
    )
    .into())
}

async fn measure(options: &Options, target: &ServerTarget) -> Result<Pollers, AnyError> {
    let (store, pollers) = (target.name(), options.pollers);
    let server = target.server().await?;
    let fresh = server.usage();
    let started = Instant::now();
    let mut pool = PollerPool::open(server.address, pollers, options.distinct_tags).await?;
    let opened_in_seconds = started.elapsed().as_secs_f64();
    eprintln!("{store}: {pollers} pollers after {opened_in_seconds:.1} s");
    sleep(SETTLE_TIME).await;
    let idle = pool.while_running(idle(&server, fresh, pollers, options.time(20))).await?;
    eprintln!("{store}: publishing {EVENTS} events");
    let reached_after = spread(pool.publish(EVENTS).await?);
    drop(pool);
    server.stop()?;
    let distinct_tags = options.distinct_tags;
    Ok(Pollers { store, pollers, distinct_tags, opened_in_seconds, idle, reached_after, events: EVENTS })
}

async fn idle(server: &Server, fresh: Option<Usage>, pollers: u32, time: Duration) -> Option<Idle> {
    let before = server.usage();
    sleep(time).await;
    let (fresh, before, after) = (fresh?, before?, server.usage()?);
    let cpu = after.cpu.saturating_sub(before.cpu);
    Some(Idle {
        seconds: time.as_secs_f64(),
        rss_mb: after.rss_mb(),
        rss_kb_per_poller: after.rss_kb.saturating_sub(fresh.rss_kb) as f64 / f64::from(pollers),
        cpu_percent: 100.0 * cpu.as_secs_f64() / time.as_secs_f64(),
    })
}

fn spread(mut took: Vec<Duration>) -> Spread {
    took.sort_unstable();
    let ms = |at: usize| took.get(at).map_or(0.0, |took| took.as_secs_f64() * 1000.0);
    Spread { min_ms: ms(0), median_ms: ms(took.len() / 2), max_ms: ms(took.len().saturating_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_ordered() {
        let took = [3, 1, 2].map(Duration::from_millis).to_vec();
        assert_eq!(spread(took), Spread { min_ms: 1.0, median_ms: 2.0, max_ms: 3.0 });
    }

    #[test]
    fn too_low_file_limit_is_an_error() {
        assert!(check_file_limit(10_200, 10_200).is_ok());
        let error = check_file_limit(10_200, 4096).unwrap_err().to_string();
        assert!(error.contains("10200") && error.contains("4096"), "{error}");
    }
}
