//! Windlass over HTTP: `windlass serve` in its own process, with a keep-alive connection per caller and worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::payload::{EventShape, NumberedPayload, TYPE};
use super::tally::Tally;
use crate::AnyError;
use crate::compare::protocol::{Open, Variant};
use crate::http::connection::Connection;
use crate::http::server::Server;

/// How long a claim waits for an event.
const WAIT_MS: u64 = 100;

pub struct OverHttp {
    server: Server,
    variant: Variant,
}

pub struct Caller(Connection);

pub struct Workers {
    stopping: Arc<AtomicBool>,
    tasks: JoinSet<Result<(), AnyError>>,
}

#[derive(Deserialize)]
struct Claimed {
    events: Vec<ClaimedEvent>,
}

#[derive(Deserialize)]
struct ClaimedEvent {
    id: i64,
    lease: String,
    retry_count: u32,
    payload: NumberedPayload,
}

#[derive(Deserialize)]
struct Finished {
    results: Vec<ItemResult>,
}

#[derive(Deserialize)]
struct ItemResult {
    status: u16,
}

impl OverHttp {
    pub fn start(open: &Open) -> Result<OverHttp, AnyError> {
        match (open.variant, open.subscriptions) {
            (Variant::Recommended | Variant::Tuned, 0 | 1) => {
                Ok(OverHttp { server: Server::on(&open.url)?, variant: open.variant })
            }
            _ => Err("over HTTP only one subscription and no library loops are supported".into()),
        }
    }

    pub fn about(&self) -> String {
        let (workers, max) = self.workers();
        format!(
            "`windlass serve`, {workers} workers with a connection each that claim and finish up to {max} at once; \
             every event and every attempt stays in the history"
        )
    }

    /// The number of workers, and the most events per claim.
    fn workers(&self) -> (usize, usize) {
        match self.variant {
            Variant::Recommended => (10, 10),
            Variant::Tuned | Variant::Loops => (4, 500),
        }
    }

    pub async fn caller(&self) -> Result<Caller, AnyError> {
        Ok(Caller(Connection::open(self.server.address).await?))
    }

    pub async fn start_workers(&self, tally: Arc<Tally>) -> Result<Workers, AnyError> {
        let (workers, max) = self.workers();
        let (stopping, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for n in 0..workers {
            let worker = Worker::open(self.server.address, n, max).await?;
            tasks.spawn(worker.run(tally.clone(), stopping.clone()));
        }
        Ok(Workers { stopping, tasks })
    }

    pub fn stop(self) -> Result<(), AnyError> {
        self.server.stop()
    }
}

impl Workers {
    pub async fn stop(mut self) -> Result<(), AnyError> {
        self.stopping.store(true, Ordering::Relaxed);
        while let Some(done) = self.tasks.join_next().await {
            done??;
        }
        Ok(())
    }
}

impl Caller {
    pub async fn publish(&mut self, events: &[NumberedPayload], shape: EventShape) -> Result<(), AnyError> {
        let bodies: Vec<_> = events.iter().map(|event| body(event, shape)).collect();
        let (path, body) = match &bodies[..] {
            [one] => ("/events", one.to_string()),
            many => ("/events/batch", json!({ "events": many }).to_string()),
        };
        post(&mut self.0, path, &body, 201).await.map(drop)
    }
}

fn body(event: &NumberedPayload, shape: EventShape) -> serde_json::Value {
    let mut body = json!({ "type": TYPE, "payload": event });
    if let Some(tag) = shape.tag(event.n) {
        body["tags"] = tag.into();
    }
    if let Some(group) = shape.group(event.n) {
        body["group_id"] = group.into();
    }
    body
}

struct Worker {
    connection: Connection,
    worker_id: String,
    max: usize,
}

impl Worker {
    async fn open(server: SocketAddr, n: usize, max: usize) -> Result<Worker, AnyError> {
        Ok(Worker { connection: Connection::open(server).await?, worker_id: format!("bench:{n}"), max })
    }

    async fn run(mut self, tally: Arc<Tally>, stopping: Arc<AtomicBool>) -> Result<(), AnyError> {
        while !stopping.load(Ordering::Relaxed) {
            let claim = json!({ "worker_id": self.worker_id, "max": self.max, "wait_ms": WAIT_MS }).to_string();
            let answer = post(&mut self.connection, "/events/claim", &claim, 200).await?;
            let claimed = serde_json::from_slice::<Claimed>(answer)?.events;
            if !claimed.is_empty() {
                self.finish(&claimed, &tally).await?;
            }
        }
        Ok(())
    }

    async fn finish(&mut self, claimed: &[ClaimedEvent], tally: &Tally) -> Result<(), AnyError> {
        let items: Vec<_> = claimed.iter().map(|claimed| report(claimed, tally)).collect();
        let reports = json!({ "worker_id": self.worker_id, "items": items }).to_string();
        let answer = post(&mut self.connection, "/events/finish", &reports, 200).await?;
        let results = serde_json::from_slice::<Finished>(answer)?.results;
        match results.len() == claimed.len() && results.iter().all(|result| result.status == 200) {
            true => Ok(()),
            false => Err(format!("not all were finished: {}", String::from_utf8_lossy(answer)).into()),
        }
    }
}

fn report(claimed: &ClaimedEvent, tally: &Tally) -> serde_json::Value {
    let ClaimedEvent { id, lease, retry_count, payload } = claimed;
    match tally.handle(payload, retry_count + 1) {
        true => json!({ "event_id": id, "lease": lease, "outcome": "complete" }),
        false => json!({ "event_id": id, "lease": lease, "outcome": "fail", "retry_after_ms": 0 }),
    }
}

async fn post<'a>(connection: &'a mut Connection, path: &str, body: &str, expected: u16) -> Result<&'a [u8], AnyError> {
    let answer = connection.post(path, body.as_bytes()).await?;
    match answer.status == expected {
        true => Ok(answer.body),
        false => Err(format!("{path}: {}: {}", answer.status, String::from_utf8_lossy(answer.body)).into()),
    }
}
