//! Bells reach those whom they concern, and nobody else.

use std::time::Duration;

use super::*;
use crate::clock::Timestamp;
use crate::policy::NamespacePolicy;
use crate::topology::{Lane, LaneKey, MAIN, Namespace, Subscription};

/// A topology in which the lanes, numbered from 1, have these tags.
fn topology(version: i64, tags: &[&str]) -> Arc<Topology> {
    let lane = |(lane_id, tag): (i64, &&str)| {
        let (subscription, event_type) = (MAIN.to_owned(), "t".to_owned());
        Lane { lane_id, key: LaneKey { subscription, event_type, tags: vec![tag.to_string()], priority: 0 } }
    };
    let created_at = Timestamp::UNIX_EPOCH;
    let namespace = Namespace {
        namespace: "ns".to_owned(),
        metadata: serde_json::value::RawValue::NULL.to_owned(),
        policy: NamespacePolicy::default(),
        paused: false,
        paused_types: Vec::new(),
        created_at,
    };
    let main = Subscription {
        subscription: MAIN.to_owned(),
        types: Vec::new(),
        tags: Vec::new(),
        policy: Default::default(),
        paused: false,
        starts_at: created_at,
        backfill_from: None,
        created_at,
    };
    Arc::new(Topology::new(namespace, version, vec![main], (1..).zip(tags).map(lane).collect()))
}

/// Who waits for deliveries with this tag.
fn waits(wakes: &Arc<Wakes>, topology: &Arc<Topology>, tag: &str) -> Place {
    let filter = Filter::new("ns").tag(tag);
    let place = wakes.register(&filter);
    place.set_lanes(topology, filter.lane_ids(topology));
    place.rest(None);
    place
}

fn rang(place: &Place) -> bool {
    place.waiter.news().rang
}

fn is_look_due(wakes: &Wakes) -> bool {
    let (_, look_by) = wakes.watch("ns").expect("somebody is there");
    look_by.is_some_and(|by| by <= Instant::now())
}

#[test]
fn only_who_takes_from_the_lane_is_woken() {
    let (wakes, topology) = (Arc::new(Wakes::default()), topology(1, &["a", "b"]));
    let (a, b, also_a) = (waits(&wakes, &topology, "a"), waits(&wakes, &topology, "b"), waits(&wakes, &topology, "a"));
    wakes.ring("ns", &[1]);
    assert!(rang(&a) && !rang(&b) && rang(&also_a));
    wakes.ring("ns", &[1, 2]);
    assert!(rang(&a) && rang(&b));
    wakes.ring_seen("ns", &[2, 3]);
    assert!(!a.waiter.news().seen && b.waiter.news().seen);
    wakes.ring("other", &[1]);
    wakes.ring("ns", &[]);
    drop(also_a);
    assert!(!rang(&a) && !rang(&b) && !is_look_due(&wakes));
}

#[test]
fn what_names_no_lane_or_a_new_one_is_for_the_watcher() {
    let (wakes, topology) = (Arc::new(Wakes::default()), topology(1, &["a", "nobody's"]));
    let a = waits(&wakes, &topology, "a");
    let bells: [(&str, &dyn Fn()); 3] = [
        ("anywhere", &|| wakes.ring_anywhere("ns")),
        ("all", &|| wakes.ring_all()),
        ("new", &|| wakes.ring("ns", &[3])),
    ];
    for (name, bell) in bells {
        bell();
        assert!(is_look_due(&wakes), "{name}");
        assert_eq!(wakes.begin_look("ns"), Some(vec![1]), "{name}");
        assert!(!is_look_due(&wakes) && !rang(&a), "{name}");
    }
    wakes.ring("ns", &[2]);
    assert!(!is_look_due(&wakes), "nobody takes from it");
}

#[test]
fn a_new_lane_is_told_to_those_who_want_it() {
    let (wakes, old, new) = (Arc::new(Wakes::default()), topology(1, &["a"]), topology(1, &["a", "b"]));
    let (a, b) = (waits(&wakes, &old, "a"), waits(&wakes, &old, "b"));
    wakes.tell("ns", &new);
    assert!(!rang(&a) && rang(&b));
    wakes.ring("ns", &[2]);
    assert!(!rang(&a) && rang(&b));
    wakes.tell("ns", &new);
    wakes.tell("ns", &topology(2, &["a", "b"]));
    assert!(!rang(&a) && !rang(&b), "nothing changed for them");
    wakes.tell("ns", &topology(3, &["b", "b"]));
    assert!(rang(&a) && rang(&b));
    assert_eq!(wakes.begin_look("ns"), Some(vec![1, 2]));
}

#[test]
fn who_knows_of_a_new_lane_lets_the_others_know() {
    let (wakes, old, new) = (Arc::new(Wakes::default()), topology(1, &["a"]), topology(1, &["a", "b"]));
    let (a, _b) = (waits(&wakes, &old, "a"), waits(&wakes, &old, "b"));
    assert!(!is_look_due(&wakes));
    a.set_lanes(&new, vec![1]);
    assert!(is_look_due(&wakes));
}

#[test]
fn nobody_looks_for_who_does_not_wait() {
    let (wakes, topology) = (Arc::new(Wakes::default()), topology(1, &["a", "b"]));
    let (a, b) = (waits(&wakes, &topology, "a"), waits(&wakes, &topology, "b"));
    a.rise();
    assert_eq!(wakes.begin_look("ns"), Some(vec![2]));
    b.rise();
    wakes.ring_anywhere("ns");
    assert_eq!(wakes.begin_look("ns"), None);
    assert!(is_look_due(&wakes), "put off until somebody waits");
    assert!(!a.rest(None), "there is a watcher");
    assert_eq!(wakes.begin_look("ns"), Some(vec![1]));
}

#[test]
fn a_look_comes_when_the_earliest_is_ready() {
    let (wakes, topology) = (Arc::new(Wakes::default()), topology(1, &["a"]));
    let a = waits(&wakes, &topology, "a");
    let at = |ms| Instant::now() + Duration::from_millis(ms);
    let (early, late) = (at(100_000), at(200_000));
    a.rest(Some(late));
    a.rest(Some(early));
    wakes.look_by("ns", late);
    assert_eq!(wakes.watch("ns").unwrap().1, Some(early));
    // A look at something else does not undo it.
    wakes.begin_look("ns");
    assert_eq!(wakes.watch("ns").unwrap().1, Some(early));
}

#[test]
fn a_failed_look_reaches_who_waits() {
    let (wakes, topology) = (Arc::new(Wakes::default()), topology(1, &["a"]));
    let (waiting, claiming) = (waits(&wakes, &topology, "a"), waits(&wakes, &topology, "a"));
    claiming.rise();
    wakes.fail("ns", &Error::Closed);
    assert_eq!(waiting.waiter.news().failed, Some(Error::Closed));
    assert_eq!(claiming.waiter.news().failed, None);
}

#[test]
fn a_watcher_ends_when_the_last_one_goes_and_is_started_anew() {
    let (wakes, topology) = (Arc::new(Wakes::default()), topology(1, &["a"]));
    let filter = Filter::new("ns").tag("a");
    for _ in 0..2 {
        let place = wakes.register(&filter);
        place.set_lanes(&topology, vec![1]);
        assert!(place.rest(None), "it has to be started");
        assert!(!place.rest(None), "once");
        assert!(wakes.watch("ns").is_some());
        drop(place);
        assert!(wakes.watch("ns").is_none());
    }
    // Without a watcher, whoever leaves last turns out the light.
    drop(wakes.register(&filter));
    assert!(lock(&wakes.0).is_empty());
}
