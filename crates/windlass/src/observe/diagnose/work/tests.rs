//! Assessments, by tables of facts.

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-01-01T12:00:00Z")
}

fn held(event_id: i64, silent_s: i64, lease_left_s: i64) -> SilentDelivery {
    SilentDelivery {
        namespace: "shop".to_owned(),
        event_id,
        event_type: "mail".to_owned(),
        worker_id: "w:1".to_owned(),
        updated_at: now() - TimeDelta::seconds(silent_s),
        lease_expires_at: now() + TimeDelta::seconds(lease_left_s),
    }
}

#[test]
fn unreleased_expired_leases_are_reported() {
    let table = [
        (vec![], FindingLevel::Ok),
        (vec![held(1, 100, 5)], FindingLevel::Ok),
        (vec![held(1, 100, -59)], FindingLevel::Ok),
        (vec![held(1, 100, -60)], FindingLevel::Warning),
        (vec![held(1, 100, -601), held(2, 100, -60)], FindingLevel::Problem),
    ];
    for (list, level) in table {
        assert_eq!(expired_leases(&list, now()).level, level, "{list:?}");
    }
    let found = expired_leases(&[held(7, 900, -840)], now());
    assert_eq!(found.summary, "1 with a lease that expired up to 14 min ago: event 7 (mail in 'shop', held by w:1)");
}

#[test]
fn silent_delivery_with_valid_lease_is_stuck() {
    let table = [
        (vec![held(1, 599, 60)], FindingLevel::Ok),
        (vec![held(1, 600, 60)], FindingLevel::Warning),
        // The lease has expired: that is reported by another check.
        (vec![held(1, 600, -60)], FindingLevel::Ok),
    ];
    for (list, level) in table {
        assert_eq!(stuck_events(&list, now()).level, level, "{list:?}");
    }
    let advice = stuck_events(&[held(7, 900, 60)], now()).advice.unwrap();
    assert!(advice.contains("`windlass reset 7 --namespace shop`"), "{advice}");
}

#[test]
fn node_silent_for_a_day_is_only_a_notice() {
    let node = |silent: TimeDelta| SilentNode {
        namespace: "shop".to_owned(),
        node_id: "api-1".to_owned(),
        last_heartbeat: now() - silent,
    };
    let (fresh, old) = (node(TimeDelta::minutes(2)), node(TimeDelta::days(3)));
    assert_eq!(stale_nodes(&[], now()).level, FindingLevel::Ok);
    assert_eq!(stale_nodes(std::slice::from_ref(&old), now()).level, FindingLevel::Notice);
    let found = stale_nodes(&[old, fresh], now());
    assert_eq!(found.level, FindingLevel::Warning);
    assert_eq!(found.summary, "2 silent without having stopped: api-1 in 'shop' for 3 days, api-1 in 'shop' for 2 min");
}

fn minutes(depths: &[u64]) -> Vec<MinuteSample> {
    let minute =
        |depth: &u64| MinuteSample { namespace: "shop".to_owned(), published: 100, ended: 40, depth: Some(*depth) };
    depths.iter().map(minute).collect()
}

#[test]
fn large_growth_of_the_backlog_is_a_warning() {
    let table = [
        (vec![], FindingLevel::Ok),
        // Too few measurements.
        (vec![0, 0, 0, 0, 9_000, 9_000, 9_000, 9_000, 9_000], FindingLevel::Ok),
        (vec![0, 0, 0, 0, 0, 999, 999, 999, 999, 999], FindingLevel::Ok),
        (vec![0, 0, 0, 0, 0, 1_000, 1_000, 1_000, 1_000, 1_000], FindingLevel::Warning),
        // A tenth more than before.
        (vec![10_000, 10_000, 10_000, 10_000, 10_000, 11_000, 11_000, 11_000, 11_000, 11_000], FindingLevel::Ok),
        // It grew and shrank again.
        (vec![0, 0, 0, 0, 0, 9_000, 9_000, 0, 0, 0, 0, 0], FindingLevel::Ok),
    ];
    for (depths, level) in table {
        assert_eq!(backlog(&minutes(&depths)).level, level, "{depths:?}");
    }
    let found = backlog(&minutes(&[100, 100, 100, 100, 100, 2_000, 2_000, 2_000, 2_000, 2_000]));
    assert_eq!(
        found.summary,
        "'shop' grew from 100 to 2,000 pending and processing deliveries within the hour: 1,000 events published, 400 finished"
    );
    assert_eq!(backlog(&minutes(&[3])).summary, "does not grow; 3 deliveries pending or processing");
}

#[test]
fn minutes_without_measurement_do_not_count_as_empty() {
    let mut list = minutes(&[2_000; 12]);
    list.iter_mut().take(6).for_each(|minute| minute.depth = None);
    assert_eq!(backlog(&list).level, FindingLevel::Ok);
}

fn ready(event_type: &str, subscription: &str, waiting_s: i64) -> OldestReadyDelivery {
    OldestReadyDelivery {
        namespace: "shop".to_owned(),
        subscription: subscription.to_owned(),
        event_type: event_type.to_owned(),
        ready_at: now() - TimeDelta::seconds(waiting_s),
    }
}

#[test]
fn paused_deliveries_are_not_reported_as_waiting() {
    let pair = |one: &str, two: &str| (one.to_owned(), two.to_owned());
    let list = [ready("mail", "main", 4_000)];
    let table = [
        (PausedScopes::default(), FindingLevel::Warning),
        (PausedScopes { namespaces: ["shop".to_owned()].into(), ..PausedScopes::default() }, FindingLevel::Ok),
        (PausedScopes { namespaces: ["other".to_owned()].into(), ..PausedScopes::default() }, FindingLevel::Warning),
        (PausedScopes { types: vec![pair("shop", "ma*")], ..PausedScopes::default() }, FindingLevel::Ok),
        (PausedScopes { types: vec![pair("other", "ma*")], ..PausedScopes::default() }, FindingLevel::Warning),
        (PausedScopes { subscriptions: vec![pair("shop", "main")], ..PausedScopes::default() }, FindingLevel::Ok),
        (PausedScopes { subscriptions: vec![pair("shop", "audit")], ..PausedScopes::default() }, FindingLevel::Warning),
    ];
    for (pauses, level) in table {
        assert_eq!(oldest_waiting(&list, &pauses, now()).level, level, "{pauses:?}");
    }
    assert_eq!(
        oldest_waiting(&[ready("mail", "main", 3_600)], &PausedScopes::default(), now()).level,
        FindingLevel::Notice
    );
    assert_eq!(oldest_waiting(&[], &PausedScopes::default(), now()).level, FindingLevel::Ok);
}

#[test]
fn paused_scopes_are_named_with_the_resume_command() {
    let pair = |one: &str, two: &str| (one.to_owned(), two.to_owned());
    assert_eq!(paused(&PausedScopes::default()), Assessment::ok("nothing is paused"));
    let pauses = PausedScopes {
        namespaces: ["shop".to_owned()].into(),
        types: vec![pair("default", "mail.*")],
        subscriptions: vec![pair("default", "audit")],
    };
    let found = paused(&pauses);
    assert_eq!(found.level, FindingLevel::Notice);
    let named = "3 paused: namespace 'shop', type 'mail.*' in 'default', subscription 'audit' in 'default'";
    assert_eq!(found.summary, named);
    assert!(found.advice.unwrap().ends_with("`windlass namespace resume shop`"));
    let types = PausedScopes { types: vec![pair("default", "mail.*")], ..PausedScopes::default() };
    assert!(paused(&types).advice.unwrap().ends_with("`windlass namespace resume default --type 'mail.*'`"));
    let subscriptions = PausedScopes { subscriptions: vec![pair("default", "audit")], ..PausedScopes::default() };
    let advice = paused(&subscriptions).advice.unwrap();
    assert!(advice.ends_with("`windlass subscription resume audit --namespace default`"), "{advice}");
}

#[test]
fn many_deliveries_behind_a_retry_are_a_warning() {
    let group = |behind: u64| BlockedGroup {
        namespace: "shop".to_owned(),
        group_id: "user-42".to_owned(),
        event_id: 7,
        retry_count: 2,
        ready_at: now() + TimeDelta::minutes(5),
        behind,
    };
    assert_eq!(blocked_groups(&[], now()).level, FindingLevel::Ok);
    assert_eq!(blocked_groups(&[group(99)], now()).level, FindingLevel::Notice);
    let found = blocked_groups(&[group(99), group(1)], now());
    assert_eq!(found.level, FindingLevel::Warning);
    let first =
        "2 with 100 waiting for a retry: 'user-42' in 'shop' (99 behind event 7: 2 failures, next attempt in 5 min)";
    assert!(found.summary.starts_with(first), "{}", found.summary);
}

#[test]
fn unrouted_events_become_a_problem_after_ten_minutes() {
    let since = |name: &str, seconds: i64| (name.to_owned(), now() - TimeDelta::seconds(seconds));
    assert_eq!(arrivals(&[], now()).level, FindingLevel::Ok);
    let found = arrivals(&[since("shop", 600), since("mail", 12)], now());
    assert_eq!(found.level, FindingLevel::Warning);
    let summary = "events published in transactions are not routed: in 'shop' for 10 min, in 'mail' for 12 s";
    assert_eq!(found.summary, summary);
    assert!(found.advice.unwrap().contains("windlass serve"));
    assert_eq!(arrivals(&[since("shop", 601)], now()).level, FindingLevel::Problem);
}

#[test]
fn silent_workers_are_named() {
    let worker = SilentWorker {
        namespace: "shop".to_owned(),
        worker_id: "w:1".to_owned(),
        held: 12,
        seen_at: now() - TimeDelta::minutes(7),
    };
    assert_eq!(stale_workers(&[], now()).level, FindingLevel::Ok);
    let found = stale_workers(&[worker], now());
    assert_eq!(found.summary, "1 silent and still holding deliveries: w:1 in 'shop' (holds 12, silent for 7 min)");
}
