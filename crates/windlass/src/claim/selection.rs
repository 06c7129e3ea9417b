//! Resolves a filter to lanes, and to the streams that a claim reads.
//!
//! A filter selects a whole subscription, or the lanes that match its types and tags. Types that are paused are left
//! out.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Filter;
use super::positions::{Positions, ReadyStream};
use crate::clock::Timestamp;
use crate::event::names;
use crate::queue::Core;
use crate::queue::wake::ClaimInterest;
use crate::store::{ClaimSource, LaneSource, ReadyPosition};
use crate::topology::Topology;
use crate::topology::lanes::{LaneFilter, LaneKey};

/// Up to this many lanes are read as one stream each. More lanes are read from the subscription's streams and filtered.
const LANES_READ_MAX: usize = 32;

const START: ReadyPosition = (Timestamp::UNIX_EPOCH, 0);

/// What one claimer claims from, for one version of its namespace.
#[derive(Default)]
pub(super) struct Selection {
    pub topology: Option<Arc<Topology>>,
    pub subscription_id: i64,
    kind: SelectionKind,
    /// How many entries of the cached list of lanes were read.
    listed: usize,
    /// The number of the last lane that was read.
    newest_lane: i64,
}

#[derive(Default)]
enum SelectionKind {
    /// The namespace or the subscription is paused.
    #[default]
    Nothing,
    /// The whole subscription.
    Everything,
    /// The priorities of the lanes, by id.
    Lanes { priorities: BTreeMap<i64, i16>, ids: Arc<[i64]> },
}

impl Selection {
    pub fn version(&self) -> Option<i64> {
        self.topology.as_ref().map(|topology| topology.version)
    }

    /// Whether the lanes must be listed before a claim.
    pub fn needs_lanes(filter: &Filter, topology: &Topology) -> bool {
        let paused_types = topology.paused_types(&filter.subscription);
        !filter.is_everything() || paused_types.is_some_and(|types| !types.is_empty())
    }

    /// The selection for a new version of the namespace.
    pub fn new(core: &Core, filter: &Filter, topology: Arc<Topology>) -> Selection {
        let subscription_id = topology.subscription(&filter.subscription).map_or(0, |found| found.subscription_id);
        let kind = match topology.paused_types(&filter.subscription) {
            None => SelectionKind::Nothing,
            Some([]) if filter.is_everything() => SelectionKind::Everything,
            Some(_) => SelectionKind::Lanes { priorities: BTreeMap::new(), ids: Arc::new([]) },
        };
        let mut selection = Selection { topology: Some(topology), subscription_id, kind, listed: 0, newest_lane: 0 };
        selection.add_listed(core, filter);
        selection
    }

    /// Adds the matching lanes that were listed since the last call. Returns `true` if there are any.
    pub fn add_listed(&mut self, core: &Core, filter: &Filter) -> bool {
        let (Some(topology), SelectionKind::Lanes { priorities, ids }) = (&self.topology, &mut self.kind) else {
            return false;
        };
        let lanes = LaneFilter { subscription_id: self.subscription_id, types: &filter.types, tags: &filter.tags };
        let (mut new, listed, newest_lane) = core.lanes.select(topology, &lanes, self.listed);
        (self.listed, self.newest_lane) = (listed, newest_lane);
        let paused_types = topology.paused_types(&filter.subscription).unwrap_or_default();
        new.retain(|lane| !filter.excludes(&lane.key) && !matches_any(paused_types, &lane.key.event_type));
        if new.is_empty() {
            return false;
        }
        priorities.extend(new.iter().map(|lane| (lane.lane_id, lane.key.priority)));
        *ids = priorities.keys().copied().collect();
        true
    }

    /// The streams to read; `None` if nothing can be claimed.
    pub fn source(&self, positions: &Positions) -> Option<ClaimSource> {
        let streams = |lanes| ClaimSource::Subscription {
            lanes,
            after_event: positions.after_event(),
            after_ready: positions.priorities(),
        };
        match &self.kind {
            SelectionKind::Nothing => None,
            SelectionKind::Everything => Some(streams(None)),
            SelectionKind::Lanes { ids, .. } if ids.len() > LANES_READ_MAX => Some(streams(Some(ids.clone()))),
            SelectionKind::Lanes { priorities, .. } => {
                let lane = |(lane_id, priority): (&i64, &i16)| LaneSource {
                    lane_id: *lane_id,
                    priority: *priority,
                    after: positions.after_ready(ReadyStream::Lane(*lane_id)).unwrap_or(START),
                };
                Some(ClaimSource::Lanes(priorities.iter().map(lane).collect()))
            }
        }
    }

    /// The number of the newest lane that was read; `None` if the claim does not select by lane.
    pub fn newest_lane(&self) -> Option<i64> {
        matches!(self.kind, SelectionKind::Lanes { .. }).then_some(self.newest_lane)
    }

    /// The notifications that the claimer needs.
    pub fn interest(&self) -> ClaimInterest {
        let subscription_id = self.subscription_id;
        match &self.kind {
            SelectionKind::Nothing => ClaimInterest::Nothing,
            SelectionKind::Everything => ClaimInterest::Subscription { subscription_id, lanes: None },
            SelectionKind::Lanes { ids, .. } if ids.len() > LANES_READ_MAX => {
                ClaimInterest::Subscription { subscription_id, lanes: Some(ids.clone()) }
            }
            SelectionKind::Lanes { ids, .. } => ClaimInterest::Lanes { subscription_id, lanes: ids.clone() },
        }
    }
}

impl Filter {
    /// Whether the filter selects every delivery of its subscription.
    pub fn is_everything(&self) -> bool {
        self.types.is_empty() && self.except_types.is_empty() && self.tags.is_empty()
    }

    fn excludes(&self, key: &LaneKey) -> bool {
        matches_any(&self.except_types, &key.event_type)
    }

    /// Whether the filter selects this lane if the lane belongs to its subscription.
    pub fn may_select(&self, key: &LaneKey) -> bool {
        crate::topology::wants(&self.types, &self.tags, &key.event_type, &key.tags) && !self.excludes(key)
    }
}

fn matches_any(patterns: &[String], event_type: &str) -> bool {
    patterns.iter().any(|pattern| names::type_matches(pattern, event_type))
}
