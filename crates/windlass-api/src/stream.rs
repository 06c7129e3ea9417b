//! `GET /events/stream`: the messages of the stream.
//!
//! The data of a message `activity` is a [`windlass::Activity`].

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The data of a message `missed`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MissedMessage {
    /// The number of activities that were left out.
    pub missed: u64,
}

/// The data of a message `bye`, the last of a stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ByeMessage {
    /// Why the server ends the stream: `shutting_down`, or `wrong_token` if the token was revoked.
    pub reason: Cow<'static, str>,
}
