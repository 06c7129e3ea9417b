//! Notifications reach the waiters that claim from the named lanes, and no others.

use std::time::Duration;

use super::*;

const SUBSCRIPTION: i64 = 5;

fn ready(lane_id: i64) -> ReadyLane {
    ReadyLane { subscription_id: SUBSCRIPTION, lane_id, rewind: false }
}

/// A waiter whose filter selects lanes with this tag.
fn registered(wakes: &Arc<WakeRegistry>, tag: &'static str, interest: ClaimInterest) -> Registration {
    let registration = wakes.register("ns", Box::new(move |key| key.tags.iter().any(|other| other == tag)));
    registration.set_interest(interest);
    registration.wait(0, false);
    registration
}

fn waits_for_lane(wakes: &Arc<WakeRegistry>, tag: &'static str, lane_id: i64) -> Registration {
    registered(wakes, tag, ClaimInterest::Lanes { subscription_id: SUBSCRIPTION, lanes: Arc::new([lane_id]) })
}

fn waits_for_all(wakes: &Arc<WakeRegistry>) -> Registration {
    registered(wakes, "", ClaimInterest::Subscription { subscription_id: SUBSCRIPTION, lanes: None })
}

fn lane(lane_id: i64) -> Lane {
    let key = LaneKey { subscription_id: SUBSCRIPTION, event_type: "t".into(), tags: Vec::new(), priority: 0 };
    Lane { lane_id, number: lane_id, key: key.into() }
}

fn is_notified(registration: &Registration) -> bool {
    registration.waiter.take_reasons().ready
}

fn is_poll_due(wakes: &WakeRegistry) -> bool {
    let (_, poll_by) = wakes.watch("ns").expect("a waiter is registered");
    poll_by.is_some_and(|by| by <= Instant::now())
}

#[test]
fn only_waiters_of_the_lane_are_notified() {
    let wakes = Arc::new(WakeRegistry::default());
    wakes.lanes_changed("ns", 1, &[], 9);
    let (a, b, all) = (waits_for_lane(&wakes, "a", 1), waits_for_lane(&wakes, "b", 2), waits_for_all(&wakes));
    wakes.lanes_changed("ns", 1, &[lane(1), lane(2), lane(7)], 9);
    wakes.notify("ns", [ready(1)]);
    assert!(is_notified(&a) && !is_notified(&b) && is_notified(&all));
    wakes.notify("ns", [ReadyLane { subscription_id: 6, lane_id: 7, rewind: false }]);
    assert!(!is_notified(&all), "another subscription");
    wakes.notify_ready("ns", &[SUBSCRIPTION], &[2]);
    assert!(!a.waiter.take_reasons().seen_by_watcher && b.waiter.take_reasons().seen_by_watcher);
    assert!(all.waiter.take_reasons().seen_by_watcher);
    wakes.notify("other", [ready(1)]);
    assert!(!is_notified(&a) && !is_poll_due(&wakes));
}

#[test]
fn subscription_waiter_is_notified_of_its_lanes_only() {
    let wakes = Arc::new(WakeRegistry::default());
    let lanes = ClaimInterest::Subscription { subscription_id: SUBSCRIPTION, lanes: Some(Arc::new([2, 4])) };
    let some = registered(&wakes, "a", lanes);
    wakes.notify("ns", [ready(3)]);
    assert!(!is_notified(&some));
    wakes.notify("ns", [ready(4)]);
    assert!(is_notified(&some));
}

#[test]
fn unknown_lane_makes_the_watcher_poll() {
    let wakes = Arc::new(WakeRegistry::default());
    let a = waits_for_lane(&wakes, "a", 1);
    wakes.lanes_changed("ns", 1, &[lane(1), lane(2)], 2);
    let signals: [(&str, &dyn Fn()); 3] = [
        ("anywhere", &|| wakes.notify_anywhere("ns")),
        ("all", &|| wakes.notify_all()),
        ("new lane", &|| wakes.notify("ns", [ready(3)])),
    ];
    for (name, signal) in signals {
        signal();
        assert!(is_poll_due(&wakes), "{name}");
        assert_eq!(wakes.begin_poll("ns").unwrap().lanes, [1], "{name}");
        assert!(!is_poll_due(&wakes) && !is_notified(&a), "{name}");
    }
    wakes.notify("ns", [ready(2)]);
    assert!(!is_poll_due(&wakes), "a known lane without waiters");
}

#[test]
fn waiter_for_a_whole_subscription_needs_no_lanes() {
    let wakes = Arc::new(WakeRegistry::default());
    let all = waits_for_all(&wakes);
    wakes.notify("ns", [ready(3)]);
    assert!(is_notified(&all) && !is_poll_due(&wakes));
    assert_eq!(wakes.begin_poll("ns").unwrap().subscriptions, [(SUBSCRIPTION, 0)]);
}

#[test]
fn waiters_are_notified_of_new_lanes_they_select() {
    let wakes = Arc::new(WakeRegistry::default());
    let (a, b) = (waits_for_lane(&wakes, "a", 1), waits_for_lane(&wakes, "b", 2));
    wakes.lanes_changed("ns", 1, &[], 2);
    let changed = |registration: &Registration| registration.waiter.take_reasons().lanes_changed;
    assert!(changed(&a) && changed(&b), "another version");
    let tags = vec!["b".to_owned()];
    let key = LaneKey { subscription_id: SUBSCRIPTION, event_type: "t".into(), tags, priority: 0 };
    wakes.lanes_changed("ns", 1, &[Lane { lane_id: 3, number: 3, key: key.into() }], 3);
    assert!(!changed(&a) && changed(&b));
    assert_eq!(wakes.known_lanes("ns"), (1, 3));
}

#[test]
fn watcher_does_not_poll_for_waiters_that_are_claiming() {
    let wakes = Arc::new(WakeRegistry::default());
    let (a, b) = (waits_for_lane(&wakes, "a", 1), waits_for_lane(&wakes, "b", 2));
    a.stop_waiting();
    assert_eq!(wakes.begin_poll("ns").unwrap().lanes, [2]);
    b.stop_waiting();
    wakes.notify_anywhere("ns");
    assert!(wakes.begin_poll("ns").is_none());
    assert!(is_poll_due(&wakes), "postponed until a claim waits");
    assert!(!a.wait(0, false), "a watcher is running");
    assert_eq!(wakes.begin_poll("ns").unwrap().lanes, [1]);
}

#[test]
fn poll_is_due_at_the_earliest_requested_time() {
    let wakes = Arc::new(WakeRegistry::default());
    let _a = waits_for_lane(&wakes, "a", 1);
    let at = |ms| Instant::now() + Duration::from_millis(ms);
    let (early, late) = (at(100_000), at(200_000));
    for by in [late, early, late] {
        wakes.poll_by("ns", by);
    }
    assert_eq!(wakes.watch("ns").unwrap().1, Some(early));
    // An earlier poll does not reset it.
    wakes.begin_poll("ns");
    assert_eq!(wakes.watch("ns").unwrap().1, Some(early));
}

#[test]
fn failed_poll_is_reported_to_waiting_claims_only() {
    let wakes = Arc::new(WakeRegistry::default());
    let (waiting, claiming) = (waits_for_lane(&wakes, "a", 1), waits_for_lane(&wakes, "a", 1));
    claiming.stop_waiting();
    wakes.fail("ns", &Error::Closed);
    assert_eq!(waiting.waiter.take_reasons().failed, Some(Error::Closed));
    assert_eq!(claiming.waiter.take_reasons().failed, None);
}

#[test]
fn watcher_ends_with_the_last_waiter_and_can_restart() {
    let wakes = Arc::new(WakeRegistry::default());
    for _ in 0..2 {
        let registration = wakes.register("ns", Box::new(|_| true));
        assert!(registration.wait(0, false), "no watcher is running");
        assert!(!registration.wait(0, false), "a watcher is running");
        assert!(wakes.watch("ns").is_some());
        drop(registration);
        assert!(wakes.watch("ns").is_none());
    }
    // Without a watcher, dropping the last registration removes the entry.
    drop(wakes.register("ns", Box::new(|_| true)));
    assert!(lock(&wakes.0).is_empty());
}
