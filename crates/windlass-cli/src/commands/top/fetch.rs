//! Asking for what is shown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use windlass::Timestamp;

use super::view::{self, DeadLetter, MINUTES, Node, Samples, Stats, View, Worker};
use crate::Result;
use crate::api::{Api, segment};
use crate::when::{exact, now};

/// What changes seldom, or costs more, is asked for so often.
const SELDOM: Duration = Duration::from_secs(5);
/// So many dead letters are shown at most.
const SHOWN_MAX: usize = 5;
/// Nothing has ended since then: how much ended is told by the samples, which cost less.
const NEVER: &str = "9999-01-01T00:00:00Z";

pub struct Fetch {
    api: Arc<Api>,
    namespace: String,
    /// What was asked for the last time, and when all of it was.
    last: View,
    all_at: Option<Instant>,
}

impl Fetch {
    pub fn new(api: Arc<Api>, namespace: String) -> Fetch {
        Fetch { api, namespace, last: View::default(), all_at: None }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn look_at(&mut self, namespace: &str) {
        if self.namespace != namespace {
            (self.namespace, self.all_at) = (namespace.to_owned(), None);
        }
    }

    /// All of it, or what may have changed.
    pub async fn next(&mut self) -> Result<View> {
        if self.all_at.is_none_or(|at| at.elapsed() >= SELDOM) {
            return self.all().await;
        }
        self.often().await
    }

    pub async fn all(&mut self) -> Result<View> {
        #[derive(Deserialize)]
        struct Nodes {
            nodes: Vec<Node>,
        }
        #[derive(Deserialize)]
        struct Workers {
            workers: Vec<Worker>,
        }
        #[derive(Deserialize)]
        struct DeadLetters {
            dead_letters: Vec<DeadLetter>,
        }
        #[derive(Deserialize)]
        struct Namespaces {
            namespaces: Vec<Namespace>,
        }
        #[derive(Deserialize)]
        struct Namespace {
            namespace: String,
        }
        let Nodes { nodes } = self.ask("/nodes", &[]).await?;
        let Workers { workers } = self.ask("/workers", &[]).await?;
        let limit = [("limit", SHOWN_MAX.to_string())];
        let DeadLetters { dead_letters } = self.ask("/dead-letters", &limit).await?;
        let Namespaces { namespaces } = self.api.get("/namespaces", &[]).await?.read()?;
        self.last.working = view::working(nodes, workers);
        self.last.dead_letters = dead_letters;
        self.last.namespaces = namespaces.into_iter().map(|found| found.namespace).collect();
        let view = self.often().await?;
        self.all_at = Some(Instant::now());
        Ok(view)
    }

    async fn often(&mut self) -> Result<View> {
        let now = now();
        let stats: Stats = self.ask("/stats", &[("since", NEVER.to_owned())]).await?;
        let hour = self.samples(now - TimeDelta::minutes(MINUTES as i64 - 1), false).await?;
        let recent = self.samples(view::minute_before(now), true).await?;
        let view = View {
            namespace: self.namespace.clone(),
            paused: stats.paused,
            rows: view::rows(&stats.stats, &view::rates_by_type(&recent.samples, now)),
            rates: view::rates(&hour.samples.iter().collect::<Vec<_>>(), now),
            chart: view::chart(&hour.samples, now),
            at: Some(now),
            away: None,
            ..self.last.clone()
        };
        self.last = view.clone();
        Ok(view)
    }

    async fn samples(&self, from: Timestamp, by_type: bool) -> Result<Samples> {
        self.ask("/samples", &[("from", exact(from)), ("by_type", by_type.to_string())]).await
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T> {
        let path = format!("/namespaces/{}{path}", segment(&self.namespace));
        self.api.get(&path, query).await?.read()
    }
}
