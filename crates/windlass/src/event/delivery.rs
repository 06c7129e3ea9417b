//! One event to be processed for one subscription, and the lease on it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::event::Event;
use crate::queue::wake::ReadyLane;

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Waiting: to be taken, for its time, or for its group.
    Pending,
    /// LeasedEvent by a worker.
    Processing,
    /// Done.
    Completed,
    /// Done, with errors that are kept in the history.
    CompletedWithErrors,
    /// Given up; a dead letter.
    Failed,
    /// Not started before its deadline; a dead letter.
    Expired,
    /// Called off before it was taken.
    Cancelled,
}

impl Status {
    /// All of them, in the order of a delivery's life.
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Processing,
        Status::Completed,
        Status::CompletedWithErrors,
        Status::Failed,
        Status::Expired,
        Status::Cancelled,
    ];

    /// Its name in the API and in the database.
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

/// The token of a claim. Only who holds the current one can finish a delivery.
///
/// In JSON it is a string of 16 hexadecimal digits, since JavaScript rounds large numbers.
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

/// A claimed delivery: the event, and the right to finish it.
#[derive(Debug, Clone, Serialize)]
pub struct Delivery {
    /// What happened.
    pub event: Event,
    /// Who is told.
    pub subscription: String,
    /// Who holds it.
    pub worker_id: String,
    /// The proof of that.
    pub lease: Lease,
    /// How many times it was acquired, this one included.
    pub attempts: u32,
    /// How many failures were reported.
    pub retry_count: u32,
    /// The failure that brings `retry_count` to this is the last.
    pub max_retries: Option<u32>,
    /// When it was claimed.
    pub picked_at: Timestamp,
    /// When the claim runs out, unless it is extended.
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
    /// The same number as [`Delivery::attempts`], under the name that the event envelope uses.
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

/// What a decision about a live delivery needs to know. Nobody but the lease's holder changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveDelivery {
    pub event_id: i64,
    pub subscription_id: i64,
    pub lane_id: i64,
    pub event_type: String,
    /// `None` while nobody holds it.
    pub lease: Option<Lease>,
    pub attempts: u32,
    /// Past this many acquisitions it is poison.
    pub attempts_limit: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    pub subscription: String,
    pub group_id: Option<String>,
    /// When its holder took it, where that was asked for.
    pub picked_at: Option<Timestamp>,
}

impl LiveDelivery {
    /// Its lane. `rewind`: see [`ReadyLane`].
    pub fn ready_lane(&self, rewind: bool) -> ReadyLane {
        ReadyLane { subscription_id: self.subscription_id, lane_id: self.lane_id, rewind }
    }

    /// Whether an attempt has ended before the one that is under way, if one is.
    pub fn was_tried(&self) -> bool {
        self.attempts > u32::from(self.lease.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_round_trip() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse::<Status>().unwrap(), status);
        }
        assert!("pending".parse::<Status>().is_err());
        let lease = Lease::random();
        assert_eq!(lease.to_string().parse::<Lease>().unwrap(), lease);
        assert!("12".parse::<Lease>().is_err());
    }
}
