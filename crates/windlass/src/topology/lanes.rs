//! Lanes: deliveries of one subscription with the same type, tag set and priority.
//!
//! A delivery is stored with the id of its lane, so that a claim that filters by type or tag reads a few index ranges
//! instead of the whole queue. Claims without a filter do not use lanes.
//!
//! This process caches lane ids by key for publishing, and the complete list of lanes for claims with a filter. Both
//! belong to one version of the topology. Maintenance increments the version when it removes lanes, and publishing
//! rejects an old version, so a cached id is never used after its lane was removed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::queue::Core;
use crate::queue::wake::lock;
use crate::topology::{Topology, wants};

/// The cache of ids by key is cleared when it reaches this size. Ids are loaded again on demand.
const KEYS_MAX: usize = 200_000;

/// Fewer empty lanes than this are not worth removing: all processes then reload the namespace and list its lanes
/// again.
pub(crate) const EMPTY_LANES_MIN: usize = 500;

/// What the deliveries of one lane have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey {
    pub subscription_id: i64,
    pub event_type: String,
    /// Sorted, without duplicates.
    pub tags: Vec<String>,
    pub priority: i16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lane {
    pub lane_id: i64,
    /// Lanes of a namespace are numbered in commit order.
    pub number: i64,
    pub key: Arc<LaneKey>,
}

/// The cached lanes, by namespace.
#[derive(Default)]
pub(crate) struct LaneCache(Mutex<HashMap<String, NamespaceLanes>>);

/// The cached lanes of a namespace, for one version of its topology.
#[derive(Default)]
struct NamespaceLanes {
    version: i64,
    ids: HashMap<Arc<LaneKey>, i64>,
    /// All lanes up to the number of the last entry, sorted by number.
    listed: Vec<Lane>,
    /// Indexes into `listed`.
    by_tag: HashMap<String, Vec<usize>>,
}

impl NamespaceLanes {
    fn insert(&mut self, key: Arc<LaneKey>, lane_id: i64) {
        if self.ids.len() >= KEYS_MAX {
            self.ids.clear();
        }
        self.ids.insert(key, lane_id);
    }

    fn list(&mut self, lane: Lane) {
        if self.listed.last().is_some_and(|last| last.number >= lane.number) {
            return;
        }
        let index = self.listed.len();
        lane.key.tags.iter().for_each(|tag| self.by_tag.entry(tag.clone()).or_default().push(index));
        self.listed.push(lane);
    }
}

/// A selection of lanes by subscription, type and tag.
pub(crate) struct LaneFilter<'a> {
    pub subscription_id: i64,
    pub types: &'a [String],
    pub tags: &'a [String],
}

impl LaneFilter<'_> {
    fn matches(&self, key: &LaneKey) -> bool {
        key.subscription_id == self.subscription_id && wants(self.types, self.tags, &key.event_type, &key.tags)
    }
}

impl LaneCache {
    /// Runs `work` on the lanes of this version. If a newer version is cached, `work` gets an empty set, and its
    /// changes are discarded.
    fn at<T>(&self, namespace: &str, version: i64, work: impl FnOnce(&mut NamespaceLanes) -> T) -> T {
        let mut cache = lock(&self.0);
        let lanes = match cache.get_mut(namespace) {
            Some(lanes) => lanes,
            None => cache.entry(namespace.to_owned()).or_default(),
        };
        if lanes.version > version {
            return work(&mut NamespaceLanes::default());
        }
        if lanes.version < version {
            *lanes = NamespaceLanes { version, ..NamespaceLanes::default() };
        }
        work(lanes)
    }

    /// Removes cached lanes of a version newer than the database's: it was restored, or failed over to a replica.
    pub fn forget_newer(&self, namespace: &str, version: i64) {
        lock(&self.0).retain(|known, lanes| known != namespace || lanes.version <= version);
    }

    /// Looks up lane ids, with one lock of the cache for all of them.
    pub fn look_up<T>(&self, topology: &Topology, work: impl FnOnce(&dyn Fn(&LaneKey) -> Option<i64>) -> T) -> T {
        self.at(&topology.namespace.namespace, topology.version, |lanes| work(&|key| lanes.ids.get(key).copied()))
    }

    pub fn insert(&self, namespace: &str, version: i64, lanes: impl IntoIterator<Item = (LaneKey, i64)>) {
        self.at(namespace, version, |known| {
            lanes.into_iter().for_each(|(key, lane_id)| known.insert(Arc::new(key), lane_id));
        });
    }

    /// The number of the newest listed lane; 0 if none is listed.
    pub fn newest(&self, topology: &Topology) -> i64 {
        let newest = |lanes: &mut NamespaceLanes| lanes.listed.last().map_or(0, |lane| lane.number);
        self.at(&topology.namespace.namespace, topology.version, newest)
    }

    /// The listed lanes with a larger number.
    pub fn newer_than(&self, topology: &Topology, number: i64) -> Vec<Lane> {
        let newer = |lanes: &mut NamespaceLanes| {
            let from = lanes.listed.partition_point(|lane| lane.number <= number);
            lanes.listed[from..].to_vec()
        };
        self.at(&topology.namespace.namespace, topology.version, newer)
    }

    /// Returns the listed lanes from index `from` on that match; the length of the list; and the number of its last
    /// lane.
    pub fn select(&self, topology: &Topology, filter: &LaneFilter<'_>, from: usize) -> (Vec<Lane>, usize, i64) {
        self.at(&topology.namespace.namespace, topology.version, |lanes| {
            let matching = |lane: &&Lane| filter.matches(&lane.key);
            let found: Vec<Lane> = if filter.tags.is_empty() {
                lanes.listed.iter().skip(from).filter(matching).cloned().collect()
            } else {
                let tagged = filter.tags.iter().filter_map(|tag| lanes.by_tag.get(tag));
                let indexes: BTreeSet<usize> =
                    tagged.flat_map(|indexes| &indexes[indexes.partition_point(|at| *at < from)..]).copied().collect();
                indexes.into_iter().map(|index| &lanes.listed[index]).filter(matching).cloned().collect()
            };
            (found, lanes.listed.len(), lanes.listed.last().map_or(0, |lane| lane.number))
        })
    }
}

impl Core {
    /// Creates missing lanes, and caches the ids of all `keys`.
    pub async fn add_lanes(&self, topology: &Topology, keys: Vec<LaneKey>) -> Result<()> {
        let namespace = &topology.namespace.namespace;
        let ids = self.store.add_lanes(namespace, &keys).await?;
        self.lanes.insert(namespace, topology.version, keys.into_iter().zip(ids));
        Ok(())
    }

    /// Updates the list of lanes. Returns the number of the newest lane.
    pub async fn list_lanes(&self, topology: &Topology) -> Result<i64> {
        let (namespace, version) = (&topology.namespace.namespace, topology.version);
        let newer = self.store.lanes_after(namespace, self.lanes.newest(topology)).await?;
        self.lanes.at(namespace, version, |known| {
            for lane in newer {
                known.insert(lane.key.clone(), lane.lane_id);
                known.list(lane);
            }
        });
        Ok(self.lanes.newest(topology))
    }
}

/// A tag set in the format of the table of lanes.
pub(crate) fn join_tags(tags: &[String]) -> String {
    tags.join(",")
}

pub(crate) fn split_tags(tags: &str) -> Vec<String> {
    tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::topology;

    fn lane(lane_id: i64, tags: &[&str]) -> Lane {
        let tags = tags.iter().map(ToString::to_string).collect();
        Lane {
            lane_id,
            number: lane_id,
            key: Arc::new(LaneKey { subscription_id: 1, event_type: "t".into(), tags, priority: 0 }),
        }
    }

    fn list(cache: &LaneCache, version: i64, lanes: &[Lane]) {
        cache.at("n", version, |known| lanes.iter().for_each(|lane| known.list(lane.clone())));
    }

    fn ids((lanes, ..): &(Vec<Lane>, usize, i64)) -> Vec<i64> {
        lanes.iter().map(|lane| lane.lane_id).collect()
    }

    #[test]
    fn lanes_are_selected_by_tag_from_an_index_on() {
        let (cache, topology) = (LaneCache::default(), topology("n", 1));
        list(&cache, 1, &[lane(1, &["a"]), lane(2, &["a", "b"]), lane(3, &["b"])]);
        let tags = ["a".to_owned(), "b".to_owned()];
        let both = LaneFilter { subscription_id: 1, types: &[], tags: &tags };
        let only_a = LaneFilter { tags: &tags[..1], ..both };
        assert_eq!(ids(&cache.select(&topology, &both, 0)), [1, 2, 3]);
        assert_eq!(ids(&cache.select(&topology, &only_a, 0)), [1, 2]);
        assert_eq!(ids(&cache.select(&topology, &only_a, 1)), [2]);
        assert_eq!(ids(&cache.select(&topology, &LaneFilter { subscription_id: 2, ..only_a }, 0)), [0; 0]);
    }

    #[test]
    fn lane_listed_twice_appears_once() {
        let (cache, topology) = (LaneCache::default(), topology("n", 1));
        list(&cache, 1, &[lane(1, &[]), lane(2, &[])]);
        list(&cache, 1, &[lane(2, &[]), lane(3, &[])]);
        let all = LaneFilter { subscription_id: 1, types: &[], tags: &[] };
        assert_eq!(ids(&cache.select(&topology, &all, 0)), [1, 2, 3]);
    }

    #[test]
    fn new_version_clears_the_lanes_of_the_old_one() {
        let (cache, key) = (LaneCache::default(), lane(1, &[]).key);
        cache.insert("n", 1, [((*key).clone(), 7)]);
        let find = |version| cache.look_up(&topology("n", version), |find| find(&key));
        assert_eq!(find(1), Some(7));
        assert_eq!(find(2), None);
        cache.insert("n", 2, [((*key).clone(), 8)]);
        cache.insert("n", 1, [((*key).clone(), 7)]);
        assert_eq!((find(1), find(2)), (None, Some(8)), "a caller with an old version neither reads nor changes lanes");
        cache.forget_newer("n", 1);
        cache.insert("n", 1, [((*key).clone(), 7)]);
        assert_eq!(find(1), Some(7));
    }
}
