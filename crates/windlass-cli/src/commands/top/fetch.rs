//! Fetches the data of a view from the API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use serde::de::DeserializeOwned;
use windlass::Timestamp;
use windlass_api::{SamplesBody, WorkersBody};

use super::view::{self, CHART_MINUTES, View};
use crate::Result;
use crate::api::responses::{DeadLetters, NamespaceNames, Nodes, Stats};
use crate::api::{Api, encode_segment};
use crate::time::{now, to_rfc3339};

/// How often data is fetched that changes rarely or is expensive.
const SLOW_INTERVAL: Duration = Duration::from_secs(5);
/// The most dead letters shown.
const DEAD_LETTERS_MAX: usize = 5;
/// A time in the future, so that `/stats` counts no finished deliveries. The samples have these counts at less cost.
const FUTURE: &str = "9999-01-01T00:00:00Z";

/// Fetches views of one namespace.
pub struct ViewFetcher {
    api: Arc<Api>,
    namespace: String,
    last_view: View,
    /// When all data was last fetched.
    all_fetched_at: Option<Instant>,
}

impl ViewFetcher {
    pub fn new(api: Arc<Api>, namespace: String) -> ViewFetcher {
        ViewFetcher { api, namespace, last_view: View::default(), all_fetched_at: None }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn set_namespace(&mut self, namespace: &str) {
        if self.namespace != namespace {
            (self.namespace, self.all_fetched_at) = (namespace.to_owned(), None);
        }
    }

    /// Fetches all data if the slow interval has passed, otherwise only the data that changes often.
    pub async fn fetch(&mut self) -> Result<View> {
        if self.all_fetched_at.is_none_or(|at| at.elapsed() >= SLOW_INTERVAL) {
            return self.fetch_all().await;
        }
        self.fetch_frequent().await
    }

    pub async fn fetch_all(&mut self) -> Result<View> {
        let Nodes { nodes } = self.get("/nodes", &[]).await?;
        let WorkersBody { workers, .. } = self.get("/workers", &[]).await?;
        let limit = [("limit", DEAD_LETTERS_MAX.to_string())];
        let DeadLetters { dead_letters, .. } = self.get("/dead-letters", &limit).await?;
        let NamespaceNames { namespaces } = self.api.get("/namespaces", &[]).await?.json()?;
        self.last_view.working = view::merge_nodes_and_workers(nodes, workers);
        self.last_view.dead_letters = dead_letters;
        self.last_view.namespaces = namespaces.into_iter().map(|entry| entry.namespace).collect();
        let view = self.fetch_frequent().await?;
        self.all_fetched_at = Some(Instant::now());
        Ok(view)
    }

    async fn fetch_frequent(&mut self) -> Result<View> {
        let now = now();
        let stats: Stats = self.get("/stats", &[("since", FUTURE.to_owned())]).await?;
        let hour = self.samples(now - TimeDelta::minutes(CHART_MINUTES as i64 - 1), false).await?;
        let recent = self.samples(view::previous_minute(now), true).await?;
        let view = View {
            namespace: self.namespace.clone(),
            paused: stats.paused,
            rows: view::build_rows(&stats.stats, &view::rates_by_type(&recent.samples, now)),
            rates: view::compute_rates(&hour.samples.iter().collect::<Vec<_>>(), now),
            chart: view::build_chart(&hour.samples, now),
            fetched_at: Some(now),
            error: None,
            ..self.last_view.clone()
        };
        self.last_view = view.clone();
        Ok(view)
    }

    async fn samples(&self, from: Timestamp, by_type: bool) -> Result<SamplesBody> {
        self.get("/samples", &[("from", to_rfc3339(from)), ("by_type", by_type.to_string())]).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T> {
        let path = format!("/namespaces/{}{path}", encode_segment(&self.namespace));
        self.api.get(&path, query).await?.json()
    }
}
