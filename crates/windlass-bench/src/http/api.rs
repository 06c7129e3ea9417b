//! The measured requests of the HTTP API.

use std::fmt::Write;
use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::connection::{Connection, Response};
use crate::AnyError;

/// The tag of the benchmark's events, to tell them apart on a server with other events.
pub const TAG: &str = "bench";

/// A request body with one event or a batch, prepared to be sent many times.
pub struct Publication {
    pub events: usize,
    path: &'static str,
    body: Vec<u8>,
}

impl Publication {
    /// Events of about 200 bytes.
    pub fn new(events: usize, tag: &str) -> Publication {
        let event = serde_json::json!({
            "title": "Order paid",
            "tags": tag,
            "type": "order.paid",
            "payload": { "order_id": 12_345, "amount": "99.90", "note": "x".repeat(150) },
        });
        let (path, body) = match events {
            1 => ("/events", event.to_string()),
            _ => ("/events/batch", serde_json::json!({ "events": vec![event; events] }).to_string()),
        };
        Publication { events, path, body: body.into_bytes() }
    }
}

/// An event leased by the worker.
#[derive(Deserialize)]
pub struct ClaimedEvent {
    pub id: i64,
    /// Sent back unchanged.
    lease: Option<Box<RawValue>>,
}

/// A connection used by one worker.
pub struct Api {
    connection: Connection,
    worker: String,
    body: String,
}

impl Api {
    pub async fn open(server: SocketAddr, worker: String) -> Result<Api, AnyError> {
        Ok(Api { connection: Connection::open(server).await?, worker, body: String::new() })
    }

    pub async fn publish(&mut self, publication: &Publication) -> Result<(), AnyError> {
        let response = self.connection.post(publication.path, &publication.body).await?;
        expect(201, publication.path, &response)
    }

    /// Claims up to `max` events of the benchmark. One event is claimed with the request for a single event.
    pub async fn claim(&mut self, max: usize) -> Result<Vec<ClaimedEvent>, AnyError> {
        if max == 1 {
            let path = format!("/events/subscribe?tags={TAG}&worker_id={}", self.worker);
            return Ok(self.subscribe(&path).await?.into_iter().collect());
        }
        #[derive(Deserialize)]
        struct Claimed {
            events: Vec<ClaimedEvent>,
        }
        self.body.clear();
        write!(self.body, r#"{{"worker_id":"{}","max":{max},"wait_ms":0,"tags":"{TAG}"}}"#, self.worker)?;
        let response = self.connection.post("/events/claim", self.body.as_bytes()).await?;
        expect(200, "/events/claim", &response)?;
        Ok(serde_json::from_slice::<Claimed>(response.body)?.events)
    }

    /// Waits up to `wait_ms` for an event with the tag.
    pub async fn wait(&mut self, tag: &str, wait_ms: u64) -> Result<Option<ClaimedEvent>, AnyError> {
        let path = format!("/events/subscribe?tags={tag}&worker_id={}&wait_ms={wait_ms}", self.worker);
        self.subscribe(&path).await
    }

    async fn subscribe(&mut self, path: &str) -> Result<Option<ClaimedEvent>, AnyError> {
        let response = self.connection.get(path).await?;
        if response.status == 204 {
            return Ok(None);
        }
        expect(200, path, &response)?;
        Ok(Some(serde_json::from_slice(response.body)?))
    }

    /// Completes events that were claimed together.
    pub async fn finish(&mut self, claimed: &[ClaimedEvent]) -> Result<(), AnyError> {
        match claimed {
            [one] => self.complete(one).await,
            many => self.finish_many(many).await,
        }
    }

    async fn complete(&mut self, claimed: &ClaimedEvent) -> Result<(), AnyError> {
        self.body.clear();
        write!(self.body, r#"{{"worker_id":"{}""#, self.worker)?;
        if let Some(lease) = &claimed.lease {
            write!(self.body, r#","lease":{lease}"#)?;
        }
        self.body.push('}');
        let path = format!("/events/{}/complete", claimed.id);
        let response = self.connection.post(&path, self.body.as_bytes()).await?;
        expect(200, &path, &response)
    }

    async fn finish_many(&mut self, claimed: &[ClaimedEvent]) -> Result<(), AnyError> {
        #[derive(Deserialize)]
        struct Finished {
            results: Vec<Outcome>,
        }
        #[derive(Deserialize)]
        struct Outcome {
            status: u16,
        }
        self.body.clear();
        write!(self.body, r#"{{"worker_id":"{}","items":["#, self.worker)?;
        for (at, ClaimedEvent { id, lease }) in claimed.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let lease = lease.as_ref().ok_or("a claimed event has no lease")?;
            write!(self.body, r#"{comma}{{"event_id":{id},"lease":{lease},"outcome":"complete"}}"#)?;
        }
        self.body.push_str("]}");
        let response = self.connection.post("/events/finish", self.body.as_bytes()).await?;
        expect(200, "/events/finish", &response)?;
        let results = serde_json::from_slice::<Finished>(response.body)?.results;
        match results.len() == claimed.len() && results.iter().all(|result| result.status == 200) {
            true => Ok(()),
            false => Err(format!("not all were completed: {}", String::from_utf8_lossy(response.body)).into()),
        }
    }
}

fn expect(status: u16, path: &str, response: &Response<'_>) -> Result<(), AnyError> {
    if response.status == status {
        return Ok(());
    }
    Err(format!("{path}: {} instead of {status}: {}", response.status, String::from_utf8_lossy(response.body)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publication_has_the_format_of_the_api() {
        let one: serde_json::Value = serde_json::from_slice(&Publication::new(1, "a").body).unwrap();
        assert_eq!((one["tags"].as_str(), one["type"].as_str()), (Some("a"), Some("order.paid")));
        let many = Publication::new(3, "a");
        assert_eq!(many.path, "/events/batch");
        let many: serde_json::Value = serde_json::from_slice(&many.body).unwrap();
        assert_eq!(many["events"], serde_json::json!([one, one, one]));
    }

    #[test]
    fn lease_is_kept_unchanged_or_absent() {
        let lease = |text| serde_json::from_str::<ClaimedEvent>(text).unwrap().lease.map(|lease| lease.to_string());
        assert_eq!(lease(r#"{"id":7,"title":"a"}"#), None);
        assert_eq!(lease(r#"{"id":7,"lease":12}"#).as_deref(), Some("12"));
        assert_eq!(lease(r#"{"id":7,"lease":"1-2"}"#).as_deref(), Some("\"1-2\""));
    }
}
