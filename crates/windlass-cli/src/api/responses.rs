//! Types for the responses that differ most between versions of the server.
//!
//! Responses are read leniently, so that the command line works with servers of other versions: these types have only
//! the fields that a command uses, and a word such as a status stays text, because a newer server may send a new one.
//! Requests use the shared types of [`windlass_api`], and so do responses without policies and such words.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use windlass::Timestamp;

/// An event of which only the id matters.
#[derive(Deserialize)]
pub struct EventId {
    pub id: i64,
}

/// An event that was reset.
#[derive(Deserialize)]
pub struct ResetEvent {
    pub id: i64,
    pub status: String,
}

/// A page of which only the number of all matches matters.
#[derive(Deserialize)]
pub struct Total {
    pub total: u64,
}

/// An event with its deliveries and its log.
#[derive(Deserialize)]
pub struct EventDetails {
    pub id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub tags: String,
    pub status: String,
    pub payload: Box<RawValue>,
    pub attempts: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    pub next_retry_at: Option<Timestamp>,
    pub run_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub worker_id: Option<String>,
    pub lease_expires_at: Option<Timestamp>,
    pub group_id: Option<String>,
    pub key: Option<String>,
    #[serde(default)]
    pub priority: i16,
    pub producer: Option<String>,
    pub scheduled_task_id: Option<String>,
    pub metadata: Option<Box<RawValue>>,
    pub error_message: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(default)]
    pub deliveries: Vec<Delivery>,
    #[serde(default)]
    pub logs: Vec<LogEntry>,
}

/// The delivery of an event to a subscription.
#[derive(Deserialize)]
pub struct Delivery {
    pub subscription: String,
    pub status: String,
    pub attempts: u32,
    pub worker_id: Option<String>,
    pub error_message: Option<String>,
    pub updated_at: Timestamp,
}

/// An entry of an event's log.
#[derive(Deserialize)]
pub struct LogEntry {
    pub worker_id: Option<String>,
    pub action: String,
    pub status_code: Option<i32>,
    pub error_message: Option<String>,
    pub execution_time_ms: Option<u64>,
    pub detail: Option<Box<RawValue>>,
    pub created_at: Timestamp,
}

/// Why an event has its status.
#[derive(Deserialize)]
pub struct Explanation {
    pub sentence: String,
    pub advice: Option<String>,
}

/// A page of found events. Each stays JSON text, because `windlass list --json` prints it unchanged.
#[derive(Default, Serialize, Deserialize)]
pub struct SearchPage {
    pub events: Vec<Box<RawValue>>,
    pub next: Option<i64>,
    pub looked_at: u64,
}

/// A found event.
#[derive(Deserialize)]
pub struct SearchResult {
    pub event_id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub tags: String,
    pub group_id: Option<String>,
    pub created_at: Timestamp,
    pub delivery: SearchDelivery,
}

/// The delivery of a found event.
#[derive(Deserialize)]
pub struct SearchDelivery {
    pub status: String,
    pub attempts: u32,
    pub error_message: Option<String>,
}

/// An activity of the event stream.
#[derive(Deserialize)]
pub struct Activity {
    pub event_id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub subscription: String,
    pub action: String,
    pub status: String,
    pub attempt: u32,
    pub worker_id: Option<String>,
    pub error_message: Option<String>,
    pub created_at: Timestamp,
}

/// Counts of deliveries.
#[derive(Deserialize)]
pub struct Stats {
    pub namespace: String,
    pub since: Timestamp,
    pub paused: bool,
    pub stats: Vec<StatRow>,
}

/// The number of deliveries with the same subscription, type and status.
#[derive(Deserialize)]
pub struct StatRow {
    pub subscription: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub status: String,
    pub count: u64,
    pub oldest_at: Option<Timestamp>,
}

/// A page of dead letters.
#[derive(Deserialize)]
pub struct DeadLetters {
    pub dead_letters: Vec<DeadLetterSummary>,
    pub total: u64,
}

/// A dead letter in a list, without its payload.
#[derive(Debug, Clone, Deserialize)]
pub struct DeadLetterSummary {
    pub event_id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub subscription: String,
    pub status: String,
    pub reason: String,
    pub error: Option<String>,
    pub attempts: u32,
    pub failed_at: Timestamp,
}

/// A dead letter.
#[derive(Deserialize)]
pub struct DeadLetterDetails {
    pub event_id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub tags: String,
    pub payload: Box<RawValue>,
    pub subscription: String,
    pub status: String,
    pub reason: String,
    pub error: Option<String>,
    pub attempts: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    pub failed_at: Timestamp,
    pub created_at: Timestamp,
    pub group_id: Option<String>,
    pub key: Option<String>,
}

/// The registered nodes.
#[derive(Deserialize)]
pub struct Nodes {
    pub nodes: Vec<Node>,
}

/// A registered node.
#[derive(Deserialize)]
pub struct Node {
    pub node_id: String,
    pub display_name: Option<String>,
    pub description: Option<String>,
    pub event_types: Vec<String>,
    pub registered_at: Timestamp,
    pub last_heartbeat: Timestamp,
    pub status: String,
}

/// The names of all namespaces.
#[derive(Deserialize)]
pub struct NamespaceNames {
    pub namespaces: Vec<NamespaceName>,
}

#[derive(Deserialize)]
pub struct NamespaceName {
    pub namespace: String,
}

/// All namespaces.
#[derive(Deserialize)]
pub struct Namespaces {
    pub namespaces: Vec<Namespace>,
}

/// A namespace.
#[derive(Deserialize)]
pub struct Namespace {
    pub namespace: String,
    pub metadata: Box<RawValue>,
    #[serde(default)]
    pub policy: Map<String, Value>,
    pub paused: bool,
    pub paused_types: Vec<String>,
    pub created_at: Timestamp,
}

/// The names of all subscriptions.
#[derive(Deserialize)]
pub struct SubscriptionNames {
    pub subscriptions: Vec<SubscriptionName>,
}

#[derive(Deserialize)]
pub struct SubscriptionName {
    pub subscription: String,
}

/// All subscriptions.
#[derive(Deserialize)]
pub struct Subscriptions {
    pub subscriptions: Vec<Subscription>,
}

/// A subscription.
#[derive(Deserialize)]
pub struct Subscription {
    pub subscription: String,
    pub types: Vec<String>,
    pub tags: Vec<String>,
    /// The overrides of the namespace's policy.
    #[serde(default)]
    pub policy: Map<String, Value>,
    pub paused: bool,
    pub starts_at: Timestamp,
    pub backfill_from: Option<i64>,
    pub created_at: Timestamp,
}

/// A page of schedules.
#[derive(Deserialize)]
pub struct Schedules {
    pub schedules: Vec<Schedule>,
    pub total: u64,
}

/// A schedule.
#[derive(Deserialize)]
pub struct Schedule {
    pub id: String,
    pub name: String,
    pub cron: String,
    pub timezone: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub tags: String,
    pub payload: Box<RawValue>,
    pub group_id: Option<String>,
    pub priority: i16,
    pub max_retries: Option<u32>,
    pub metadata: Option<Box<RawValue>>,
    pub expires_in_ms: Option<u64>,
    pub missed: String,
    pub runner: String,
    pub active: bool,
    pub next_runs: Vec<Timestamp>,
    pub last_at: Option<Timestamp>,
    pub last_event_id: Option<i64>,
    pub created_at: Timestamp,
}

/// Claimed events.
#[derive(Deserialize)]
pub struct Claimed {
    pub events: Vec<ClaimedEvent>,
}

/// A claimed event.
#[derive(Deserialize)]
pub struct ClaimedEvent {
    pub id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub tags: String,
    pub payload: Box<RawValue>,
    pub attempt: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    pub lease: String,
    pub created_at: Timestamp,
    pub group_id: Option<String>,
    pub key: Option<String>,
    #[serde(default)]
    pub priority: i16,
    pub metadata: Option<Box<RawValue>>,
}

/// The results of reports, in the order of the request.
#[derive(Deserialize)]
pub struct Finished {
    pub results: Vec<FinishResult>,
}

/// The result of a report. It was refused if there is a failure.
#[derive(Deserialize)]
pub struct FinishResult {
    pub status: u16,
    pub failure: Option<FinishFailure>,
}

/// Why a report was refused.
#[derive(Deserialize)]
pub struct FinishFailure {
    pub code: String,
    pub error: String,
}
