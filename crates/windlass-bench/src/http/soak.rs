//! Publish and work at once, with a steady backlog, for a long time.

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
use super::server::{Place, Server};
use crate::AnyError;

const LOOK_EVERY: Duration = Duration::from_secs(10);
const MINUTE: f64 = 60.0;
/// How long a worker that got nothing waits.
const RETRY: Duration = Duration::from_millis(2);

/// The server at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
struct Look {
    at_seconds: f64,
    /// Completed since the look before.
    events_per_second: f64,
    rss_mb: Option<f64>,
}

#[derive(Serialize)]
struct Soak {
    store: &'static str,
    completed: usize,
    first_minute: Minute,
    last_minute: Minute,
    looks: Vec<Look>,
}

/// The mean of the looks in it.
#[derive(Debug, PartialEq, Serialize)]
struct Minute {
    events_per_second: f64,
    rss_mb: Option<f64>,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut soaks = Vec::new();
    for place in options.places() {
        soaks.push(soak(options, &place).await?);
    }
    if options.json {
        println!("{:#}", serde_json::json!({ "soak": soaks }));
        return Ok(());
    }
    println!("| store | completed | first minute | last minute | RSS first minute | RSS last minute |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for Soak { store, completed, first_minute: first, last_minute: last, .. } in soaks {
        let (rate, last_rate) = (first.events_per_second, last.events_per_second);
        let (rss, last_rss) = (shown(first.rss_mb), shown(last.rss_mb));
        println!("| {store} | {completed} | {rate:.0} /s | {last_rate:.0} /s | {rss} | {last_rss} |");
    }
    Ok(())
}

async fn soak(options: &Options, place: &Place) -> Result<Soak, AnyError> {
    let server = place.server().await?;
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
    let looks = look(place.name(), &server, &traffic.completed, tasks).await?;
    server.stop()?;
    let end = looks.last().map_or(0.0, |look| look.at_seconds);
    Ok(Soak {
        store: place.name(),
        completed: traffic.completed.load(Ordering::Relaxed),
        first_minute: minute(&looks, 0.0),
        last_minute: minute(&looks, end - MINUTE),
        looks,
    })
}

#[derive(Clone)]
struct Traffic {
    server: SocketAddr,
    until: Instant,
    completed: Arc<AtomicUsize>,
    /// One permit for each event that may still join the backlog.
    room: Arc<Semaphore>,
}

impl Traffic {
    fn new(server: SocketAddr, until: Instant, backlog: usize) -> Traffic {
        Traffic { server, until, completed: Arc::default(), room: Arc::new(Semaphore::new(backlog)) }
    }
}

async fn publish(traffic: Traffic) -> Result<(), AnyError> {
    let mut api = Api::open(traffic.server, String::new()).await?;
    let publication = Publication::new(1, TAG);
    while Instant::now() < traffic.until {
        // At the end nobody makes room any more.
        if let Ok(room) = timeout_at(traffic.until, traffic.room.acquire()).await {
            room?.forget();
            api.publish(&publication).await?;
        }
    }
    Ok(())
}

async fn work(traffic: Traffic, worker: String) -> Result<(), AnyError> {
    let mut api = Api::open(traffic.server, worker).await?;
    while Instant::now() < traffic.until {
        let taken = api.claim(1).await?;
        if taken.is_empty() {
            sleep(RETRY).await;
            continue;
        }
        api.finish(&taken).await?;
        traffic.completed.fetch_add(1, Ordering::Relaxed);
        traffic.room.add_permits(1);
    }
    Ok(())
}

/// Looks at the server again and again until the traffic has ended.
async fn look(
    store: &str,
    server: &Server,
    completed: &AtomicUsize,
    mut tasks: JoinSet<Result<(), AnyError>>,
) -> Result<Vec<Look>, AnyError> {
    let (begun, mut since, mut before) = (Instant::now(), Instant::now(), 0);
    let mut looks = Vec::new();
    loop {
        let ended = tokio::select! {
            () = sleep(LOOK_EVERY.saturating_sub(since.elapsed())) => false,
            done = tasks.join_next() => match done {
                Some(done) => { done??; continue }
                None => true,
            },
        };
        let (now, count) = (Instant::now(), completed.load(Ordering::Relaxed));
        let (took, events) = ((now - since).as_secs_f64(), count - before);
        // What little may be left after the last look would say nothing about a rate.
        if now - since > LOOK_EVERY / 2 || looks.is_empty() {
            let rss_mb = server.usage().map(|usage| usage.rss_mb());
            let at_seconds = (now - begun).as_secs_f64();
            let events_per_second = events as f64 / took;
            eprintln!("{store}: {at_seconds:4.0} s, {events_per_second:6.0} events/s, RSS {}", shown(rss_mb));
            looks.push(Look { at_seconds, events_per_second, rss_mb });
        }
        if ended {
            return Ok(looks);
        }
        (since, before) = (now, count);
    }
}

fn minute(looks: &[Look], from: f64) -> Minute {
    let looks: Vec<&Look> =
        looks.iter().filter(|look| look.at_seconds > from && look.at_seconds <= from + MINUTE + 1.0).collect();
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let rss: Option<Vec<f64>> = looks.iter().map(|look| look.rss_mb).collect();
    Minute { events_per_second: mean(looks.iter().map(|look| look.events_per_second).collect()), rss_mb: rss.map(mean) }
}

fn shown(rss_mb: Option<f64>) -> String {
    rss_mb.map_or("–".to_owned(), |mb| format!("{mb:.1} MB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_seconds: f64, rate: f64, rss_mb: Option<f64>) -> Look {
        Look { at_seconds, events_per_second: rate, rss_mb }
    }

    #[test]
    fn a_minute_is_the_mean_of_its_looks() {
        let looks: Vec<Look> = (1..=18).map(|n| look(f64::from(n) * 10.0, f64::from(n), Some(f64::from(n)))).collect();
        assert_eq!(minute(&looks, 0.0), Minute { events_per_second: 3.5, rss_mb: Some(3.5) });
        assert_eq!(minute(&looks, 120.0), Minute { events_per_second: 15.5, rss_mb: Some(15.5) });
    }

    #[test]
    fn memory_that_is_not_known_has_no_mean() {
        let looks = [look(10.0, 1.0, Some(1.0)), look(20.0, 3.0, None)];
        assert_eq!(minute(&looks, 0.0), Minute { events_per_second: 2.0, rss_mb: None });
    }
}
