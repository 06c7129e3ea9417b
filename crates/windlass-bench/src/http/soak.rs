//! Publishes and works concurrently with a steady backlog for a long time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::Options;
use super::api::{Api, Publication, TAG};
use super::server::{Server, ServerTarget};
use crate::AnyError;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
const MINUTE: f64 = 60.0;
/// How long a worker waits after an empty claim.
const RETRY: Duration = Duration::from_millis(2);

/// The state of the server at one time.
#[derive(Clone, Copy, Debug, Serialize)]
struct SoakSample {
    at_seconds: f64,
    /// Completed since the previous sample.
    events_per_second: f64,
    rss_mb: Option<f64>,
}

#[derive(Serialize)]
struct Soak {
    store: &'static str,
    completed: usize,
    first_minute: Minute,
    last_minute: Minute,
    #[serde(rename = "looks")]
    samples: Vec<SoakSample>,
}

/// The mean of the samples of a minute.
#[derive(Debug, PartialEq, Serialize)]
struct Minute {
    events_per_second: f64,
    rss_mb: Option<f64>,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut soaks = Vec::new();
    for target in options.targets() {
        soaks.push(soak(options, &target).await?);
    }
    if options.json {
        println!("{:#}", serde_json::json!({ "soak": soaks }));
        return Ok(());
    }
    println!("| store | completed | first minute | last minute | RSS first minute | RSS last minute |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for Soak { store, completed, first_minute: first, last_minute: last, .. } in soaks {
        let (rate, last_rate) = (first.events_per_second, last.events_per_second);
        let (rss, last_rss) = (format_rss(first.rss_mb), format_rss(last.rss_mb));
        println!("| {store} | {completed} | {rate:.0} /s | {last_rate:.0} /s | {rss} | {last_rss} |");
    }
    Ok(())
}

async fn soak(options: &Options, target: &ServerTarget) -> Result<Soak, AnyError> {
    let server = target.server().await?;
    let until = Instant::now() + options.time(300);
    let traffic = Traffic::new(server.address, until, options.backlog);
    let mut tasks = JoinSet::new();
    for n in 0..options.connections {
        if n % 2 == 0 {
            tasks.spawn(publish(traffic.clone()));
        } else {
            tasks.spawn(work(traffic.clone(), format!("bench:{n}")));
        }
    }
    let samples = sample_until_done(target.name(), &server, &traffic.completed, tasks).await?;
    server.stop()?;
    let end = samples.last().map_or(0.0, |sample| sample.at_seconds);
    Ok(Soak {
        store: target.name(),
        completed: traffic.completed.load(Ordering::Relaxed),
        first_minute: minute(&samples, 0.0),
        last_minute: minute(&samples, end - MINUTE),
        samples,
    })
}

#[derive(Clone)]
struct Traffic {
    server: SocketAddr,
    until: Instant,
    completed: Arc<AtomicUsize>,
    /// One permit per event that may be added to the backlog.
    backlog_permits: Arc<Semaphore>,
}

impl Traffic {
    fn new(server: SocketAddr, until: Instant, backlog: usize) -> Traffic {
        Traffic { server, until, completed: Arc::default(), backlog_permits: Arc::new(Semaphore::new(backlog)) }
    }
}

async fn publish(traffic: Traffic) -> Result<(), AnyError> {
    let mut api = Api::open(traffic.server, String::new()).await?;
    let publication = Publication::new(1, TAG);
    while Instant::now() < traffic.until {
        // At the end no worker adds permits any more.
        if let Ok(permit) = timeout_at(traffic.until, traffic.backlog_permits.acquire()).await {
            permit?.forget();
            api.publish(&publication).await?;
        }
    }
    Ok(())
}

async fn work(traffic: Traffic, worker: String) -> Result<(), AnyError> {
    let mut api = Api::open(traffic.server, worker).await?;
    while Instant::now() < traffic.until {
        let claimed = api.claim(1).await?;
        if claimed.is_empty() {
            sleep(RETRY).await;
            continue;
        }
        api.finish(&claimed).await?;
        traffic.completed.fetch_add(1, Ordering::Relaxed);
        traffic.backlog_permits.add_permits(1);
    }
    Ok(())
}

/// Samples the server periodically until the traffic has ended.
async fn sample_until_done(
    store: &str,
    server: &Server,
    completed: &AtomicUsize,
    mut tasks: JoinSet<Result<(), AnyError>>,
) -> Result<Vec<SoakSample>, AnyError> {
    let (started, mut sampled_at, mut completed_before) = (Instant::now(), Instant::now(), 0);
    let mut samples = Vec::new();
    loop {
        let ended = tokio::select! {
            () = sleep(SAMPLE_INTERVAL.saturating_sub(sampled_at.elapsed())) => false,
            done = tasks.join_next() => match done {
                Some(done) => { done??; continue }
                None => true,
            },
        };
        let (now, count) = (Instant::now(), completed.load(Ordering::Relaxed));
        let (took, events) = ((now - sampled_at).as_secs_f64(), count - completed_before);
        // A short rest after the last sample is too short for a rate.
        if now - sampled_at > SAMPLE_INTERVAL / 2 || samples.is_empty() {
            let rss_mb = server.usage().map(|usage| usage.rss_mb());
            let at_seconds = (now - started).as_secs_f64();
            let events_per_second = events as f64 / took;
            eprintln!("{store}: {at_seconds:4.0} s, {events_per_second:6.0} events/s, RSS {}", format_rss(rss_mb));
            samples.push(SoakSample { at_seconds, events_per_second, rss_mb });
        }
        if ended {
            return Ok(samples);
        }
        (sampled_at, completed_before) = (now, count);
    }
}

fn minute(samples: &[SoakSample], from: f64) -> Minute {
    let samples: Vec<&SoakSample> =
        samples.iter().filter(|sample| sample.at_seconds > from && sample.at_seconds <= from + MINUTE + 1.0).collect();
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let rss: Option<Vec<f64>> = samples.iter().map(|sample| sample.rss_mb).collect();
    Minute {
        events_per_second: mean(samples.iter().map(|sample| sample.events_per_second).collect()),
        rss_mb: rss.map(mean),
    }
}

fn format_rss(rss_mb: Option<f64>) -> String {
    rss_mb.map_or("–".to_owned(), |mb| format!("{mb:.1} MB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_seconds: f64, rate: f64, rss_mb: Option<f64>) -> SoakSample {
        SoakSample { at_seconds, events_per_second: rate, rss_mb }
    }

    #[test]
    fn minute_is_the_mean_of_its_samples() {
        let samples: Vec<SoakSample> =
            (1..=18).map(|n| sample(f64::from(n) * 10.0, f64::from(n), Some(f64::from(n)))).collect();
        assert_eq!(minute(&samples, 0.0), Minute { events_per_second: 3.5, rss_mb: Some(3.5) });
        assert_eq!(minute(&samples, 120.0), Minute { events_per_second: 15.5, rss_mb: Some(15.5) });
    }

    #[test]
    fn unknown_memory_has_no_mean() {
        let samples = [sample(10.0, 1.0, Some(1.0)), sample(20.0, 3.0, None)];
        assert_eq!(minute(&samples, 0.0), Minute { events_per_second: 2.0, rss_mb: None });
    }
}
