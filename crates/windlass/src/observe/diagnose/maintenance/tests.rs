//! Assessments, by tables of facts.

use super::*;
use crate::admin::scopes::Scope;
use crate::admin::tokens::SecretHash;
use crate::maintenance::task::MaintenanceTask;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn fact(late_s: i64, held_s: Option<i64>, error: Option<&str>) -> MaintenanceTaskState {
    let task = MaintenanceTaskView {
        task: MaintenanceTask::ReleaseExpired,
        every_ms: 10_000,
        next_at: now() - TimeDelta::seconds(late_s),
        worker_id: "w".to_owned(),
        runs: 1,
        last_run_at: None,
        took_ms: None,
        done: None,
        error: error.map(str::to_owned),
    };
    let held_until = held_s.map(|seconds| now() + TimeDelta::seconds(seconds));
    MaintenanceTaskState { namespace: "shop".to_owned(), task, held_until }
}

#[test]
fn overdue_or_failing_task_is_reported() {
    let table = [
        (fact(-5, None, None), FindingLevel::Ok),
        (fact(130, None, None), FindingLevel::Ok),
        (fact(131, None, None), FindingLevel::Warning),
        (fact(131, Some(1), None), FindingLevel::Ok),
        (fact(131, Some(-1), None), FindingLevel::Warning),
        (fact(3_601, None, None), FindingLevel::Problem),
        (fact(-5, None, Some("no space")), FindingLevel::Warning),
        // Written by a clock that has been set back since.
        (fact(-86_400, None, None), FindingLevel::Ok),
    ];
    for (fact, level) in table {
        assert_eq!(maintenance(std::slice::from_ref(&fact), &[], now()).level, level, "{fact:?}");
    }
    let found = maintenance(&[fact(720, None, Some("no space"))], &[], now());
    assert_eq!(
        found.summary,
        "release_expired of 'shop' fails: no space, release_expired of 'shop' is overdue by 12 min"
    );
}

#[test]
fn namespace_without_maintenance_is_reported() {
    let used = |name: &str, old_s: i64| NamespaceInUse {
        namespace: name.to_owned(),
        created_at: now() - TimeDelta::seconds(old_s),
    };
    assert_eq!(maintenance(&[], &[used("shop", 300)], now()).level, FindingLevel::Ok);
    assert_eq!(maintenance(&[fact(0, None, None)], &[used("shop", 301)], now()).level, FindingLevel::Ok);
    let found = maintenance(&[fact(0, None, None)], &[used("other", 301)], now());
    assert_eq!((found.level, &*found.summary), (FindingLevel::Warning, "no maintenance has run in 'other'"));
}

#[test]
fn late_and_failed_ticks_are_reported() {
    let late = |late_s: i64| LateSchedule {
        namespace: "shop".to_owned(),
        name: "report".to_owned(),
        next_at: now() - TimeDelta::seconds(late_s),
    };
    let failed = FailedTick {
        namespace: "shop".to_owned(),
        schedule_id: "a-b".to_owned(),
        tick_at: now(),
        error: "payload: too deep".to_owned(),
    };
    assert_eq!(schedules(&[], &[], now()).level, FindingLevel::Ok);
    assert_eq!(schedules(&[late(120)], &[], now()).level, FindingLevel::Warning);
    assert_eq!(schedules(&[late(901), late(120)], &[], now()).level, FindingLevel::Problem);
    let found = schedules(&[late(120)], &[failed], now());
    assert_eq!(
        found.summary,
        "1 late: 'report' in 'shop' by 2 min; 1 tick without an event within the hour: 12:00:00Z of a-b in 'shop': \
         payload: too deep"
    );
}

#[test]
fn many_dead_letters_are_a_warning() {
    let pair = |name: &str, dead: u64| (name.to_owned(), dead);
    assert_eq!(dead_letters(&[]).level, FindingLevel::Ok);
    assert_eq!(dead_letters(&[pair("shop", 0)]).level, FindingLevel::Ok);
    assert_eq!(dead_letters(&[pair("shop", 99)]).level, FindingLevel::Notice);
    let found = dead_letters(&[pair("a", 2), pair("shop", 1_000)]);
    assert_eq!(found.level, FindingLevel::Warning);
    assert_eq!(found.summary, "dead-lettered within the hour: 2 in 'a', at least 1,000 in 'shop'");
    assert!(found.advice.unwrap().contains("list --namespace shop"));
}

#[test]
fn very_many_lanes_are_a_notice() {
    for (count, level) in [(99_999, FindingLevel::Ok), (100_000, FindingLevel::Notice)] {
        assert_eq!(lanes(&[("shop".to_owned(), count)]).level, level, "{count}");
    }
    assert_eq!(lanes(&[("shop".to_owned(), 123_456)]).summary, "123,456 in 'shop'");
    assert_eq!(lanes(&[]).summary, "no namespace has more than 0");
}

#[test]
fn soon_expiring_tokens_come_before_expired_ones() {
    let token = |id: &str, left: Option<TimeDelta>| Token {
        token_id: id.to_owned(),
        name: "shop".to_owned(),
        scopes: vec![Scope::Read],
        namespaces: Vec::new(),
        created_at: now() - TimeDelta::days(90),
        expires_at: left.map(|left| now() + left),
        hash: SecretHash(Vec::new()),
    };
    let (forever, far) = (token("a", None), token("b", Some(TimeDelta::days(8))));
    let (soon, over) = (token("c", Some(TimeDelta::days(7))), token("d", Some(TimeDelta::seconds(-1))));
    let fine = tokens(&[forever.clone(), far], now());
    assert_eq!(fine, Assessment::ok("2 tokens, none about to expire"));
    let found = tokens(&[forever, over.clone()], now());
    assert_eq!((found.level, &*found.summary), (FindingLevel::Notice, "1 of 2 tokens expired: d \"shop\""));
    let found = tokens(&[over, soon], now());
    assert_eq!((found.level, &*found.summary), (FindingLevel::Warning, "1 expires soon: c \"shop\" in 7 days"));
    assert!(found.advice.unwrap().ends_with("`windlass token revoke c`"));
}
