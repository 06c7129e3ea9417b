//! Claims, polls of waiting claims and the removal of lanes, on a database in memory.

use std::time::Duration;

use rusqlite::Connection;

use super::super::{expire, lanes, migrate, publish, row, transition, watch};
use super::{choose, lease};
use crate::clock::from_micros;
use crate::event::NewEvent;
use crate::event::delivery::Lease;
use crate::queue::decide::{RequeueTime, Transition};
use crate::queue::outcome::Action;
use crate::store::{
    AttemptRecord, ChangeGuard, Claim, ClaimSlot, ClaimSource, Claimed, DeliveryChange, LaneSource, LeaseTimes,
    NewDelivery, PreparedEvent, StreamPosition, WatchRequest, WatchResult,
};
use crate::topology::lanes::LaneKey;

const NAMESPACE: &str = "default";
/// The id of the `main` subscription of the first namespace.
const MAIN_ID: i64 = 1;
const SECOND: i64 = 1_000_000;
const LEASE_TIME: Duration = Duration::from_secs(60);

struct Fixture(Connection);

impl Fixture {
    fn new() -> Fixture {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate::prepare(&mut conn, true, 0).unwrap();
        Fixture(conn)
    }

    fn lane(&self, event: &NewEvent, now: i64) -> i64 {
        let tags = event.tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        let (event_type, priority) = (event.event_type.clone(), event.priority);
        let key = LaneKey { subscription_id: MAIN_ID, event_type, tags, priority };
        lanes::add_lanes(&self.0, NAMESPACE, &[key], now).unwrap()[0]
    }

    fn publish(&self, event: NewEvent, now: i64) -> i64 {
        let delivery = NewDelivery {
            subscription_id: MAIN_ID,
            lane_id: self.lane(&event, now),
            subscription: "main".into(),
            max_retries: None,
            attempts_limit: 20,
        };
        let prepared =
            PreparedEvent { event, key_window: Duration::ZERO, expires_in: None, deliveries: vec![delivery] };
        let version = row::version(&self.0, NAMESPACE).unwrap().unwrap();
        publish::publish(&self.0, NAMESPACE, version, &[prepared], now).unwrap().unwrap()[0].event_id
    }

    fn claim(&self, source: ClaimSource, max: usize, now: i64) -> Claimed {
        self.run(&self.request(source, max), now)
    }

    fn request(&self, source: ClaimSource, max: usize) -> Claim {
        Claim {
            namespace: NAMESPACE.into(),
            version: row::version(&self.0, NAMESPACE).unwrap().unwrap(),
            subscription: "main".into(),
            subscription_id: MAIN_ID,
            source,
            known_lanes: None,
            leases: LeaseTimes { default: LEASE_TIME, by_type: Vec::new() },
            deadline_horizon: Some(Duration::from_secs(10)),
            requests: vec![ClaimSlot { worker_id: "w".into(), lease: Lease(7), max, group_run: 1 }],
        }
    }

    fn run(&self, claim: &Claim, now: i64) -> Claimed {
        let (mut claimed, leased) = lease(&self.0, claim, now).unwrap();
        leased.read(&self.0, claim, &mut claimed).unwrap();
        claimed
    }

    fn apply(&self, delivery: &crate::event::delivery::Delivery, action: Action, transition: Transition, now: i64) {
        let change = DeliveryChange {
            live: delivery.live(),
            guard: ChangeGuard::Lease(delivery.lease),
            action,
            transition,
            record: AttemptRecord::default(),
            results: Vec::new(),
            succeeded: true,
        };
        let applied = transition::transition(&self.0, NAMESPACE, &[change], now).unwrap();
        assert!(applied.attempts[0].is_some());
    }

    fn release(&self, delivery: &crate::event::delivery::Delivery, now: i64) {
        let transition = Transition::Requeue {
            when: RequeueTime::Unchanged,
            failed: false,
            refund_attempt: true,
            pass_group: false,
        };
        self.apply(delivery, Action::Released, transition, now);
    }

    /// All lanes, as single streams.
    fn lanes(&self) -> ClaimSource {
        let lanes = lanes::lanes_after(&self.0, NAMESPACE, 0).unwrap();
        let source = |lane: &crate::topology::lanes::Lane| LaneSource {
            lane_id: lane.lane_id,
            priority: lane.key.priority,
            after: (from_micros(0), 0),
        };
        ClaimSource::Lanes(lanes.iter().map(source).collect())
    }

    fn look(&self, now: i64) -> WatchResult {
        let lanes = lanes::lanes_after(&self.0, NAMESPACE, 0).unwrap();
        let lanes = lanes.iter().map(|lane| lane.lane_id).collect();
        watch::poll_ready(&self.0, NAMESPACE, &WatchRequest { subscriptions: vec![(MAIN_ID, 0)], lanes }, now).unwrap()
    }
}

fn all() -> ClaimSource {
    ClaimSource::Subscription { lanes: None, after_event: 0, after_ready: Vec::new() }
}

fn ids(claimed: &Claimed) -> Vec<i64> {
    claimed.deliveries.iter().map(|delivery| delivery.event.id).collect()
}

fn event(event_type: &str) -> NewEvent {
    NewEvent::new(event_type)
}

fn expiring(event_type: &str, at: i64) -> NewEvent {
    event(event_type).expires_at(from_micros(at))
}

fn delayed(event_type: &str, seconds: u64) -> NewEvent {
    event(event_type).delay(Duration::from_secs(seconds))
}

/// One delivery of each kind, and the order in which they are claimed at second 5.
fn mixed(fixture: &Fixture) -> Vec<i64> {
    let first = fixture.publish(event("a"), SECOND);
    let low = fixture.publish(NewEvent { priority: -3, ..event("a") }, SECOND);
    let high = fixture.publish(NewEvent { priority: 5, ..event("b") }, 2 * SECOND);
    let late = fixture.publish(delayed("b", 2), 2 * SECOND);
    let far = fixture.publish(expiring("a", 100 * SECOND), 3 * SECOND);
    let near = fixture.publish(expiring("b", 12 * SECOND), 3 * SECOND);
    let nearest = fixture.publish(expiring("a", 11 * SECOND), 3 * SECOND);
    let _expired = fixture.publish(expiring("a", 4 * SECOND), 3 * SECOND);
    let _not_ready = fixture.publish(delayed("a", 60), 3 * SECOND);
    let last = fixture.publish(event("b"), 5 * SECOND);
    vec![nearest, near, high, first, far, late, last, low]
}

#[test]
fn deadlines_come_first_then_priority_then_readiness() {
    for max in 1..=10 {
        let fixture = Fixture::new();
        let order = mixed(&fixture);
        let wanted = &order[..max.min(order.len())];
        assert_eq!(ids(&fixture.claim(all(), max, 5 * SECOND)), wanted, "subscription, {max}");
        let fixture = Fixture::new();
        mixed(&fixture);
        assert_eq!(ids(&fixture.claim(fixture.lanes(), max, 5 * SECOND)), wanted, "lanes, {max}");
    }
}

#[test]
fn every_delivery_is_claimed_once() {
    for single_lanes in [false, true] {
        let fixture = Fixture::new();
        let order = mixed(&fixture);
        let mut claimed = Vec::new();
        for _ in 0..10 {
            let source = if single_lanes { fixture.lanes() } else { all() };
            claimed.append(&mut ids(&fixture.claim(source, 1, 5 * SECOND)));
        }
        assert_eq!(claimed, order);
    }
}

#[test]
fn without_a_horizon_all_deadlines_come_first() {
    let fixture = Fixture::new();
    mixed(&fixture);
    let claim = Claim { deadline_horizon: None, ..fixture.request(all(), 3) };
    let places = fixture.run(&claim, 5 * SECOND).positions;
    assert_eq!(places, [StreamPosition::Deadline; 3]);
}

#[test]
fn claim_without_the_newest_lane_claims_nothing() {
    let fixture = Fixture::new();
    mixed(&fixture);
    let newest = lanes::newest_lane(&fixture.0, NAMESPACE).unwrap();
    let claim = |known| Claim { known_lanes: Some(known), ..fixture.request(all(), 1) };
    let refused = fixture.run(&claim(newest - 1), 5 * SECOND);
    assert!(refused.new_lanes && refused.deliveries.is_empty());
    assert_eq!(fixture.run(&claim(newest), 5 * SECOND).deliveries.len(), 1);
}

#[test]
fn positions_name_their_stream() {
    let fixture = Fixture::new();
    let order = mixed(&fixture);
    let claimed = fixture.claim(all(), 8, 5 * SECOND);
    let (high, first, late) = (order[2], order[3], order[5]);
    let ready_at = |second: i64| from_micros(second * SECOND);
    assert_eq!(claimed.positions[0], StreamPosition::Deadline);
    assert_eq!(claimed.positions[2], StreamPosition::OutOfOrder { priority: 5, position: (ready_at(2), high) });
    assert_eq!(claimed.positions[3], StreamPosition::InOrder { event_id: first });
    assert_eq!(claimed.positions[5], StreamPosition::OutOfOrder { priority: 0, position: (ready_at(4), late) });
    assert_eq!(claimed.newest, order[6].into());
}

#[test]
fn requests_are_served_in_order() {
    let fixture = Fixture::new();
    let published: Vec<i64> = (0..4).map(|_| fixture.publish(event("a"), SECOND)).collect();
    let slot =
        |worker: &str, lease, max| ClaimSlot { worker_id: worker.into(), lease: Lease(lease), max, group_run: 1 };
    let claim = Claim { requests: vec![slot("v", 8, 1), slot("w", 9, 5)], ..fixture.request(all(), 0) };
    let claimed = fixture.run(&claim, SECOND);
    assert_eq!(ids(&claimed), published);
    let leases: Vec<_> = claimed.deliveries.iter().map(|found| (&*found.worker_id, found.lease.0)).collect();
    assert_eq!(leases, [("v", 8), ("w", 9), ("w", 9), ("w", 9)]);
}

#[test]
fn lane_selection_skips_other_lanes() {
    let fixture = Fixture::new();
    let (a, _b) = (fixture.publish(event("a"), SECOND), fixture.publish(event("b"), SECOND));
    let later = fixture.publish(event("a"), SECOND);
    let lanes = Some([fixture.lane(&event("a"), SECOND)].into());
    let source = ClaimSource::Subscription { lanes, after_event: 0, after_ready: Vec::new() };
    assert_eq!(ids(&fixture.claim(source, 9, SECOND)), [a, later]);
}

#[test]
fn in_order_rows_are_read_from_the_position_on() {
    let fixture = Fixture::new();
    let first = fixture.publish(event("a"), SECOND);
    let second = fixture.publish(event("a"), SECOND);
    let source = ClaimSource::Subscription { lanes: None, after_event: first, after_ready: Vec::new() };
    let claim = fixture.request(source.clone(), 9);
    let behind = |from, to| choose::first_in_order(&fixture.0, &claim, from, to, SECOND).unwrap();
    assert_eq!(behind(0, first), Some(first));
    assert_eq!(behind(first, first), None);
    assert_eq!(ids(&fixture.run(&claim, SECOND)), [second]);
    assert_eq!(behind(0, i64::MAX), Some(first));
}

#[test]
fn released_delivery_is_found_behind_the_position() {
    let fixture = Fixture::new();
    let first = fixture.publish(event("a"), SECOND);
    let claimed = fixture.claim(all(), 1, SECOND);
    fixture.release(&claimed.deliveries[0], 2 * SECOND);
    let after_all = ClaimSource::Subscription { lanes: None, after_event: first, after_ready: Vec::new() };
    let again = fixture.claim(after_all, 1, 2 * SECOND);
    assert_eq!(ids(&again), [first]);
    assert!(matches!(again.positions[0], StreamPosition::OutOfOrder { priority: 0, .. }));
    assert_eq!(again.deliveries[0].attempts, 2);
}

#[test]
fn group_member_is_claimed_after_its_predecessor() {
    let fixture = Fixture::new();
    let first = fixture.publish(event("a").group("g"), SECOND);
    let second = fixture.publish(event("a").group("g"), SECOND);
    let claimed = fixture.claim(all(), 9, SECOND);
    assert_eq!(ids(&claimed), [first]);
    fixture.apply(&claimed.deliveries[0], Action::Completed, Transition::End { forget: false }, 2 * SECOND);
    let after_all = ClaimSource::Subscription { lanes: None, after_event: second, after_ready: Vec::new() };
    assert_eq!(ids(&fixture.claim(after_all, 9, 2 * SECOND)), [second]);
}

#[test]
fn old_version_or_due_leases_claim_nothing() {
    let fixture = Fixture::new();
    fixture.publish(event("a"), SECOND);
    fixture.publish(event("a"), SECOND);
    let old = fixture.run(&Claim { version: 0, ..fixture.request(all(), 1) }, SECOND);
    assert!(old.outdated && old.deliveries.is_empty());
    assert_eq!(fixture.claim(all(), 1, SECOND).deliveries.len(), 1);
    let end = SECOND + LEASE_TIME.as_micros() as i64;
    let expired = |now| expire::expired_leases(&fixture.0, NAMESPACE, &[MAIN_ID], 9, now).unwrap().len();
    assert_eq!((expired(end - 1), expired(end)), (0, 1));
    let due = fixture.claim(all(), 1, end);
    assert!(due.leases_due && due.deliveries.is_empty());
    assert!(fixture.look(end).leases_due && !fixture.look(end - 1).leases_due);
}

#[test]
fn the_lease_depends_on_the_type() {
    let fixture = Fixture::new();
    fixture.publish(event("a.b"), SECOND);
    fixture.publish(event("c"), SECOND);
    let by_type = vec![("a.*".to_owned(), Duration::from_secs(1)), ("a.b".to_owned(), Duration::from_secs(2))];
    let leases = LeaseTimes { default: LEASE_TIME, by_type };
    let claimed = fixture.run(&Claim { leases, ..fixture.request(all(), 9) }, SECOND);
    let ends: Vec<_> = claimed.deliveries.iter().map(|found| found.lease_expires_at.timestamp_micros()).collect();
    assert_eq!(ends, [3 * SECOND, SECOND + LEASE_TIME.as_micros() as i64]);
}

#[test]
fn poll_finds_ready_deliveries_and_the_next_due_time() {
    let fixture = Fixture::new();
    let empty = fixture.look(SECOND);
    assert_eq!((empty.ready_subscriptions.len(), empty.newest_lane, empty.next_in), (0, 0, None));
    fixture.publish(delayed("a", 30), SECOND);
    fixture.publish(NewEvent { priority: 2, ..delayed("b", 20) }, SECOND);
    let waiting = fixture.look(SECOND);
    assert_eq!((waiting.ready_subscriptions.len(), waiting.ready_lanes.len()), (0, 0));
    assert_eq!((waiting.newest_lane, waiting.next_in), (2, Some(Duration::from_secs(20))));
    let ready = fixture.look(21 * SECOND);
    assert_eq!((ready.ready_subscriptions, ready.ready_lanes), (vec![MAIN_ID], vec![2]));
    assert_eq!(ready.next_in, Some(Duration::from_secs(10)));
    assert_eq!(fixture.claim(all(), 9, 21 * SECOND).deliveries.len(), 1);
    let claimed = fixture.look(21 * SECOND);
    assert_eq!((claimed.ready_subscriptions.len(), claimed.ready_lanes.len()), (0, 0));
}

#[test]
fn poll_finds_a_new_delivery_behind_many_delayed_ones() {
    let fixture = Fixture::new();
    (0..1_100).for_each(|_| {
        fixture.publish(delayed("a", 60), SECOND);
    });
    assert!(fixture.look(SECOND).ready_subscriptions.is_empty());
    fixture.publish(event("b"), SECOND);
    assert_eq!(fixture.look(SECOND).ready_subscriptions, [MAIN_ID]);
}

#[test]
fn poll_agrees_with_claims() {
    for single_lanes in [false, true] {
        let fixture = Fixture::new();
        mixed(&fixture);
        for _ in 0..10 {
            let look = fixture.look(5 * SECOND);
            let ready = if single_lanes { !look.ready_lanes.is_empty() } else { !look.ready_subscriptions.is_empty() };
            let source = if single_lanes { fixture.lanes() } else { all() };
            assert_eq!(fixture.claim(source, 1, 5 * SECOND).deliveries.len(), usize::from(ready));
        }
    }
}

#[test]
fn only_empty_lanes_are_removed() {
    let fixture = Fixture::new();
    fixture.publish(event("leased"), SECOND);
    let leased = fixture.claim(all(), 1, SECOND);
    fixture.publish(event("free"), SECOND);
    fixture.lane(&event("empty"), SECOND);
    fixture.lane(&event("young"), 3 * SECOND);
    let version = row::version(&fixture.0, NAMESPACE).unwrap();
    let empty = |until| lanes::empty_lanes(&fixture.0, NAMESPACE, until, 9).unwrap();
    assert_eq!(empty(2 * SECOND), [3]);
    let removed = lanes::remove_lanes(&fixture.0, NAMESPACE, &[1, 2, 3]).unwrap();
    assert_eq!(removed, 1);
    assert_ne!(row::version(&fixture.0, NAMESPACE).unwrap(), version);
    fixture.apply(&leased.deliveries[0], Action::Completed, Transition::End { forget: false }, SECOND);
    assert_eq!(empty(2 * SECOND), [1]);
    assert_eq!(lanes::newest_lane(&fixture.0, NAMESPACE).unwrap(), 4);
    assert_eq!(fixture.lane(&event("empty"), SECOND), 5, "ids are not used twice");
}
