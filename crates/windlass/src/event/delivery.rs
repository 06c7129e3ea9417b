//! Deliveries: one event to be processed for one subscription. Their status and lease.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::event::Event;
use crate::queue::wake::ReadyLane;

/// The status of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Ready to be claimed, or waiting for its due time or its group.
    Pending,
    /// Leased to a worker.
    Processing,
    /// Completed successfully.
    Completed,
    /// Completed, with errors that are kept in the history.
    CompletedWithErrors,
    /// Not retried any more; a dead letter.
    Failed,
    /// Not started before its deadline; a dead letter.
    Expired,
    /// Canceled while pending.
    Cancelled,
}

impl Status {
    /// All statuses, in the order of a delivery's life.
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Processing,
        Status::Completed,
        Status::CompletedWithErrors,
        Status::Failed,
        Status::Expired,
        Status::Cancelled,
    ];

    /// The name in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "PENDING",
            Status::Processing => "PROCESSING",
            Status::Completed => "COMPLETED",
            Status::CompletedWithErrors => "COMPLETED_WITH_ERRORS",
            Status::Failed => "FAILED",
            Status::Expired => "EXPIRED",
            Status::Cancelled => "CANCELLED",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Status {
    type Err = Error;

    fn from_str(name: &str) -> Result<Status, Error> {
        Status::ALL.into_iter().find(|status| status.as_str() == name).ok_or_else(|| {
            let all = Status::ALL.map(Status::as_str).join(", ");
            Error::invalid("status", format!("'{}' is not one of {all}", name.escape_debug()))
        })
    }
}

/// The token of a lease. A delivery can be finished only with its current token.
///
/// In JSON it is a string of 16 hexadecimal digits, because JavaScript rounds large numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease(pub(crate) i64);

impl Lease {
    pub(crate) fn random() -> Lease {
        Lease(fastrand::i64(1..))
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Lease {
    type Err = Error;

    fn from_str(text: &str) -> Result<Lease, Error> {
        let well_formed = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match i64::from_str_radix(text, 16) {
            Ok(token) if well_formed => Ok(Lease(token)),
            _ => Err(Error::invalid("lease", "must be the 16 hexadecimal digits that the claim returned")),
        }
    }
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lease, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A claimed delivery: the event, and the lease that allows its worker to finish it.
#[derive(Debug, Clone, Serialize)]
pub struct Delivery {
    /// The event.
    pub event: Event,
    /// The subscription that the delivery is for.
    pub subscription: String,
    /// The worker that claimed it.
    pub worker_id: String,
    /// The token of the worker's lease.
    pub lease: Lease,
    /// How many times the delivery has been claimed, including this time.
    pub attempts: u32,
    /// The number of failures so far.
    pub retry_count: u32,
    /// The delivery is not retried when `retry_count` reaches this number; `None`: no limit.
    pub max_retries: Option<u32>,
    /// When it was claimed.
    pub picked_at: Timestamp,
    /// When the lease expires, unless it is renewed.
    pub lease_expires_at: Timestamp,
    #[serde(skip)]
    pub(crate) subscription_id: i64,
    #[serde(skip)]
    pub(crate) lane_id: i64,
    #[serde(skip)]
    pub(crate) attempts_limit: u32,
}

impl Delivery {
    /// How many times this delivery has been claimed, including this time: 1 on the first delivery.
    ///
    /// The same as [`Delivery::attempts`], under the name that the event envelope uses.
    pub fn redelivery_count(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn live(&self) -> LiveDelivery {
        LiveDelivery {
            event_id: self.event.id,
            subscription_id: self.subscription_id,
            lane_id: self.lane_id,
            event_type: self.event.event_type.clone(),
            lease: Some(self.lease),
            attempts: self.attempts,
            attempts_limit: self.attempts_limit,
            retry_count: self.retry_count,
            max_retries: self.max_retries,
            subscription: self.subscription.clone(),
            group_id: self.event.group_id.clone(),
            picked_at: Some(self.picked_at),
        }
    }
}

/// The state of a pending or processing delivery that decisions need. Only the holder of its lease can change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveDelivery {
    pub event_id: i64,
    pub subscription_id: i64,
    pub lane_id: i64,
    pub event_type: String,
    /// `None` while the delivery is pending.
    pub lease: Option<Lease>,
    pub attempts: u32,
    /// After this many attempts, the delivery becomes a dead letter.
    pub attempts_limit: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    pub subscription: String,
    pub group_id: Option<String>,
    /// When it was claimed, if the query asked for it.
    pub picked_at: Option<Timestamp>,
}

impl LiveDelivery {
    /// The delivery's lane, for a notification. `rewind`: see [`ReadyLane`].
    pub fn ready_lane(&self, rewind: bool) -> ReadyLane {
        ReadyLane { subscription_id: self.subscription_id, lane_id: self.lane_id, rewind }
    }

    /// Whether an earlier attempt has ended.
    pub fn was_tried(&self) -> bool {
        self.attempts > u32::from(self.lease.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse::<Status>().unwrap(), status);
        }
        assert!("pending".parse::<Status>().is_err());
        let lease = Lease::random();
        assert_eq!(lease.to_string().parse::<Lease>().unwrap(), lease);
        assert!("12".parse::<Lease>().is_err());
    }
}
