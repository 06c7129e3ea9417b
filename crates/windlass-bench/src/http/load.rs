//! Maximum load: each connection sends its next request when it has the response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::api::{Api, Publication, TAG};
use crate::AnyError;
use crate::latency::Latencies;

/// How long a worker waits after an empty claim while events are left.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
pub struct Load {
    pub server: SocketAddr,
    pub connections: usize,
    pub batch: usize,
    pub time: Duration,
}

/// The result of a load.
pub struct Outcome {
    pub events: usize,
    pub took: Duration,
    /// One per kind of request.
    pub latencies: Vec<Latencies>,
}

/// The result of one connection.
struct ConnectionResult {
    events: usize,
    latencies: Vec<Latencies>,
}

impl Load {
    /// Publishes until the time is up.
    pub async fn publish(self) -> Result<Outcome, AnyError> {
        let publication = Arc::new(Publication::new(self.batch, TAG));
        self.on_each_connection(|api, until| publish(api, until, publication.clone())).await
    }

    /// Claims and completes until the time is up or all published events are done.
    pub async fn work(self, published: usize) -> Result<Outcome, AnyError> {
        let left = Arc::new(AtomicI64::new(published as i64));
        self.on_each_connection(|api, until| work(api, until, self.batch, left.clone())).await
    }

    async fn on_each_connection<F>(self, body: impl Fn(Api, Instant) -> F) -> Result<Outcome, AnyError>
    where
        F: Future<Output = Result<ConnectionResult, AnyError>> + Send + 'static,
    {
        let mut apis = Vec::new();
        for n in 0..self.connections {
            apis.push(Api::open(self.server, format!("bench:{n}")).await?);
        }
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for api in apis {
            tasks.spawn(body(api, started + self.time));
        }
        let mut results = Vec::new();
        while let Some(result) = tasks.join_next().await {
            results.push(result??);
        }
        Ok(outcome(started.elapsed(), results))
    }
}

async fn publish(mut api: Api, until: Instant, publication: Arc<Publication>) -> Result<ConnectionResult, AnyError> {
    let (mut events, mut publishing) = (0, Latencies::new("publish"));
    while Instant::now() < until {
        publishing.time(api.publish(&publication)).await?;
        events += publication.events;
    }
    Ok(ConnectionResult { events, latencies: vec![publishing] })
}

async fn work(mut api: Api, until: Instant, batch: usize, left: Arc<AtomicI64>) -> Result<ConnectionResult, AnyError> {
    let (mut events, mut claiming, mut completing) = (0, Latencies::new("claim"), Latencies::new("complete"));
    while Instant::now() < until && left.load(Ordering::Relaxed) > 0 {
        let started = Instant::now();
        let claimed = api.claim(batch).await?;
        if claimed.is_empty() {
            sleep(RETRY).await;
            continue;
        }
        claiming.add(started.elapsed());
        left.fetch_sub(claimed.len() as i64, Ordering::Relaxed);
        completing.time(api.finish(&claimed)).await?;
        events += claimed.len();
    }
    Ok(ConnectionResult { events, latencies: vec![claiming, completing] })
}

fn outcome(took: Duration, results: Vec<ConnectionResult>) -> Outcome {
    let mut outcome = Outcome { events: 0, took, latencies: Vec::new() };
    for result in results {
        outcome.events += result.events;
        if outcome.latencies.is_empty() {
            outcome.latencies = result.latencies;
        } else {
            outcome.latencies.iter_mut().zip(result.latencies).for_each(|(all, own)| all.merge(own));
        }
    }
    outcome
}
