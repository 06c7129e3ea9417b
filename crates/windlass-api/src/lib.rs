//! The request and response bodies of Windlass's HTTP API.
//!
//! Requests are shared by the server and the command line, so that a change of one without the other does not compile.
//! They are strict: the server refuses unknown fields. Responses are the reference for clients that match the server's
//! version: these types need not parse the responses of another version, which may have other statuses or settings. The
//! command line works with servers of other versions and therefore reads such responses with lenient types of its own.
//!
//! Each file has the bodies of one verb, under the same name as the routes of the server. All types can be serialized
//! and deserialized. Payloads and metadata stay JSON text.
//!
//! What does not live here: paths and query parameters, which `/openapi.json` and `docs/http.md` describe; the
//! conversions from and to the types of the library, which the server does; and a client.
//!
//! Some bodies consist of types of the library, which are exported again, such as [`NodeView`]. The bodies of
//! `GET /events/search` and `GET /events/{id}/explain` are [`SearchPage`] and [`Explanation`].
//!
//! ```
//! use windlass_api::{EventBody, PublishRequest};
//!
//! # fn main() -> serde_json::Result<()> {
//! let request = PublishRequest {
//!     event_type: Some("order.paid".into()),
//!     payload: Some(serde_json::value::to_raw_value(&17)?),
//!     ..PublishRequest::default()
//! };
//! assert_eq!(serde_json::to_string(&request)?, r#"{"payload":17,"type":"order.paid"}"#);
//!
//! let response = r#"{
//!     "id": 1001, "type": "order.paid", "title": null, "description": null, "tags": "", "status": "PENDING",
//!     "payload": 17, "attempts": 0, "retry_count": 0, "max_retries": 3, "next_retry_at": null,
//!     "created_at": "2026-01-31T12:00:00Z", "updated_at": "2026-01-31T12:00:00Z", "group_id": "order-17"
//! }"#;
//! let event: EventBody = serde_json::from_str(response)?;
//! assert_eq!((event.id, event.options.group_id.as_deref()), (1001, Some("order-17")));
//! # Ok(())
//! # }
//! ```

mod bounded_list;
mod cancel;
mod claim;
mod dead_letters;
mod doctor;
mod error;
mod event;
mod finish;
mod health;
mod heartbeat;
mod inspect;
mod name_list;
mod namespaces;
mod nodes;
mod publish;
mod samples;
mod schedules;
mod stream;
mod subscriptions;

pub use windlass::{
    Action, Activity, ConsumerView, DeliveryView, Explanation, Finding, FindingLevel, MaintenanceTaskView, NodeStatus,
    NodeView, PolicyOverrides, Quantiles, Sample, ScheduleFire, ScheduleView, SearchPage, SearchResult, StatRow,
    Status, StuckDelivery, Subscription, WorkerView,
};

pub use self::bounded_list::BoundedList;
pub use self::cancel::{CancelRequest, CancelledBody, CancelledManyBody};
pub use self::claim::{ClaimRequest, ClaimedBody, ClaimedEventBody};
pub use self::dead_letters::{DeadLetterBody, DeadLetterFilterRequest, DeadLettersBody, PurgedBody, RedrivenBody};
pub use self::doctor::DoctorBody;
pub use self::error::ErrorBody;
pub use self::event::{EventBody, EventOptions, LogEntryBody};
pub use self::finish::{
    CompleteRequest, FailRequest, FinishItem, FinishOutcome, FinishRequest, FinishedBody, ItemResult, ReportBody,
    SnoozeRequest,
};
pub use self::health::HealthBody;
pub use self::heartbeat::{HeartbeatRequest, LeaseBody, LeaseHolderRequest, StartedBody};
pub use self::inspect::{EventSummaryBody, EventsBody, MaintenanceBody, StatsBody, StuckBody, WorkersBody};
pub use self::name_list::NameList;
pub use self::namespaces::{NamespaceBody, NamespacesBody, PolicyBody, PolicyRequest, PutNamespaceRequest};
pub use self::nodes::{NodeHeartbeatBody, NodesBody, RegisterNodeRequest};
pub use self::publish::{PublishBatchRequest, PublishRequest, PublishedBatchBody, PublishedBody};
pub use self::samples::SamplesBody;
pub use self::schedules::{FiresBody, PreviewBody, RunnerRequest, ScheduleRequest, SchedulesBody};
pub use self::stream::{ByeMessage, MissedMessage};
pub use self::subscriptions::{AddSubscriptionRequest, SubscriptionsBody};
