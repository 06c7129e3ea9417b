//! As much as the server can take: each connection sends its next request once it has an answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::api::{Api, Publication, TAG};
use crate::AnyError;
use crate::latency::Latencies;

/// How long a worker that got nothing waits, if there is something left.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
pub struct Load {
    pub server: SocketAddr,
    pub connections: usize,
    pub batch: usize,
    pub time: Duration,
}

/// What came of it.
pub struct Outcome {
    pub events: usize,
    pub took: Duration,
    /// One for each kind of request.
    pub latencies: Vec<Latencies>,
}

/// What one connection did.
struct Share {
    events: usize,
    latencies: Vec<Latencies>,
}

impl Load {
    /// Publishes until the time is over.
    pub async fn publish(self) -> Result<Outcome, AnyError> {
        let publication = Arc::new(Publication::new(self.batch, TAG));
        self.on_each_connection(|api, until| publish(api, until, publication.clone())).await
    }

    /// Takes and completes until the time is over, or nothing is left of what was published.
    pub async fn work(self, published: usize) -> Result<Outcome, AnyError> {
        let left = Arc::new(AtomicI64::new(published as i64));
        self.on_each_connection(|api, until| work(api, until, self.batch, left.clone())).await
    }

    async fn on_each_connection<F>(self, body: impl Fn(Api, Instant) -> F) -> Result<Outcome, AnyError>
    where
        F: Future<Output = Result<Share, AnyError>> + Send + 'static,
    {
        let mut apis = Vec::new();
        for n in 0..self.connections {
            apis.push(Api::open(self.server, format!("bench:{n}")).await?);
        }
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for api in apis {
            tasks.spawn(body(api, begun + self.time));
        }
        let mut shares = Vec::new();
        while let Some(share) = tasks.join_next().await {
            shares.push(share??);
        }
        Ok(outcome(begun.elapsed(), shares))
    }
}

async fn publish(mut api: Api, until: Instant, publication: Arc<Publication>) -> Result<Share, AnyError> {
    let (mut events, mut publishing) = (0, Latencies::new("publish"));
    while Instant::now() < until {
        publishing.time(api.publish(&publication)).await?;
        events += publication.events;
    }
    Ok(Share { events, latencies: vec![publishing] })
}

async fn work(mut api: Api, until: Instant, batch: usize, left: Arc<AtomicI64>) -> Result<Share, AnyError> {
    let (mut events, mut claiming, mut completing) = (0, Latencies::new("claim"), Latencies::new("complete"));
    while Instant::now() < until && left.load(Ordering::Relaxed) > 0 {
        let begun = Instant::now();
        let taken = api.claim(batch).await?;
        if taken.is_empty() {
            sleep(RETRY).await;
            continue;
        }
        claiming.add(begun.elapsed());
        left.fetch_sub(taken.len() as i64, Ordering::Relaxed);
        completing.time(api.finish(&taken)).await?;
        events += taken.len();
    }
    Ok(Share { events, latencies: vec![claiming, completing] })
}

fn outcome(took: Duration, shares: Vec<Share>) -> Outcome {
    let mut outcome = Outcome { events: 0, took, latencies: Vec::new() };
    for share in shares {
        outcome.events += share.events;
        if outcome.latencies.is_empty() {
            outcome.latencies = share.latencies;
        } else {
            outcome.latencies.iter_mut().zip(share.latencies).for_each(|(all, own)| all.join(own));
        }
    }
    outcome
}
