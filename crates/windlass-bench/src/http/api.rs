//! The requests of the HTTP API that are measured.

use std::fmt::Write;
use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::connection::{Answer, Connection};
use crate::AnyError;

/// What is published with this tag is ours, also on a server that has other events.
pub const TAG: &str = "bench";

/// One event, or a batch, ready to be sent many times.
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

/// An event that the worker holds.
#[derive(Deserialize)]
pub struct Taken {
    pub id: i64,
    /// Sent back as it came.
    lease: Option<Box<RawValue>>,
}

/// A connection, and the worker that it works for.
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
        let answer = self.connection.post(publication.path, &publication.body).await?;
        expect(201, publication.path, &answer)
    }

    /// Takes up to `max` of ours: by the request for one, if it is one.
    pub async fn claim(&mut self, max: usize) -> Result<Vec<Taken>, AnyError> {
        if max == 1 {
            let path = format!("/events/subscribe?tags={TAG}&worker_id={}", self.worker);
            return Ok(self.subscribe(&path).await?.into_iter().collect());
        }
        #[derive(Deserialize)]
        struct Claimed {
            events: Vec<Taken>,
        }
        self.body.clear();
        write!(self.body, r#"{{"worker_id":"{}","max":{max},"wait_ms":0,"tags":"{TAG}"}}"#, self.worker)?;
        let answer = self.connection.post("/events/claim", self.body.as_bytes()).await?;
        expect(200, "/events/claim", &answer)?;
        Ok(serde_json::from_slice::<Claimed>(answer.body)?.events)
    }

    /// Waits up to `wait_ms` for an event with the tag.
    pub async fn wait(&mut self, tag: &str, wait_ms: u64) -> Result<Option<Taken>, AnyError> {
        let path = format!("/events/subscribe?tags={tag}&worker_id={}&wait_ms={wait_ms}", self.worker);
        self.subscribe(&path).await
    }

    async fn subscribe(&mut self, path: &str) -> Result<Option<Taken>, AnyError> {
        let answer = self.connection.get(path).await?;
        if answer.status == 204 {
            return Ok(None);
        }
        expect(200, path, &answer)?;
        Ok(Some(serde_json::from_slice(answer.body)?))
    }

    /// Completes what was claimed together.
    pub async fn finish(&mut self, taken: &[Taken]) -> Result<(), AnyError> {
        match taken {
            [one] => self.complete(one).await,
            many => self.finish_many(many).await,
        }
    }

    async fn complete(&mut self, taken: &Taken) -> Result<(), AnyError> {
        self.body.clear();
        write!(self.body, r#"{{"worker_id":"{}""#, self.worker)?;
        if let Some(lease) = &taken.lease {
            write!(self.body, r#","lease":{lease}"#)?;
        }
        self.body.push('}');
        let path = format!("/events/{}/complete", taken.id);
        let answer = self.connection.post(&path, self.body.as_bytes()).await?;
        expect(200, &path, &answer)
    }

    async fn finish_many(&mut self, taken: &[Taken]) -> Result<(), AnyError> {
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
        for (at, Taken { id, lease }) in taken.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let lease = lease.as_ref().ok_or("a claimed event has no lease")?;
            write!(self.body, r#"{comma}{{"event_id":{id},"lease":{lease},"outcome":"complete"}}"#)?;
        }
        self.body.push_str("]}");
        let answer = self.connection.post("/events/finish", self.body.as_bytes()).await?;
        expect(200, "/events/finish", &answer)?;
        let results = serde_json::from_slice::<Finished>(answer.body)?.results;
        match results.len() == taken.len() && results.iter().all(|result| result.status == 200) {
            true => Ok(()),
            false => Err(format!("not all were completed: {}", String::from_utf8_lossy(answer.body)).into()),
        }
    }
}

fn expect(status: u16, path: &str, answer: &Answer<'_>) -> Result<(), AnyError> {
    if answer.status == status {
        return Ok(());
    }
    Err(format!("{path}: {} instead of {status}: {}", answer.status, String::from_utf8_lossy(answer.body)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_is_what_the_api_expects() {
        let one: serde_json::Value = serde_json::from_slice(&Publication::new(1, "a").body).unwrap();
        assert_eq!((one["tags"].as_str(), one["type"].as_str()), (Some("a"), Some("order.paid")));
        let many = Publication::new(3, "a");
        assert_eq!(many.path, "/events/batch");
        let many: serde_json::Value = serde_json::from_slice(&many.body).unwrap();
        assert_eq!(many["events"], serde_json::json!([one, one, one]));
    }

    #[test]
    fn a_lease_is_kept_as_it_came_or_absent() {
        let lease = |text| serde_json::from_str::<Taken>(text).unwrap().lease.map(|lease| lease.to_string());
        assert_eq!(lease(r#"{"id":7,"title":"a"}"#), None);
        assert_eq!(lease(r#"{"id":7,"lease":12}"#).as_deref(), Some("12"));
        assert_eq!(lease(r#"{"id":7,"lease":"1-2"}"#).as_deref(), Some("\"1-2\""));
    }
}
