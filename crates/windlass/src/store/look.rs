//! What claims find when they look around.

use std::time::Duration;

use crate::topology::Edition;

/// What a claim that came back empty, or one that waits, finds when it looks around.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// The namespace's version now.
    pub version: i64,
    /// How many lanes the namespace has now.
    pub lanes: usize,
    /// Those of the lanes asked about that have deliveries.
    pub found: Vec<LaneLook>,
}

/// What there is in a lane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LaneLook {
    pub lane_id: i64,
    /// A free delivery is ready.
    pub claimable: bool,
    /// A lease has run out.
    pub run_out: bool,
    /// How long until the next delivery that is not yet ready becomes so, by the database's clock.
    pub next_ready_in: Option<Duration>,
}

impl Look {
    /// Of the topology as it is now.
    pub fn edition(&self) -> Edition {
        (self.version, self.lanes)
    }

    pub fn claimable(&self) -> Vec<i64> {
        self.found.iter().filter(|lane| lane.claimable).map(|lane| lane.lane_id).collect()
    }

    pub fn run_out(&self) -> Vec<i64> {
        self.found.iter().filter(|lane| lane.run_out).map(|lane| lane.lane_id).collect()
    }

    /// How long until the first delivery that is not yet ready becomes so.
    pub fn next_ready_in(&self) -> Option<Duration> {
        self.found.iter().filter_map(|lane| lane.next_ready_in).min()
    }
}
