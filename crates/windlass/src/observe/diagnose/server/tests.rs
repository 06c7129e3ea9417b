//! Assessments, by tables of facts.

use super::*;
use crate::maintenance::months::HistoryTable;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn fix(name: &str) -> NamedRemedy {
    NamedRemedy { name: name.to_owned(), remedy: format!("FIX {name}") }
}

#[test]
fn old_server_version_is_a_warning() {
    for (number, level) in [(130_022, FindingLevel::Warning), (140_000, FindingLevel::Ok), (180_001, FindingLevel::Ok)]
    {
        assert_eq!(server_version(&ServerVersion { number, text: "x".to_owned() }).level, level, "{number}");
    }
}

#[test]
fn settings_that_lose_commits_are_a_problem() {
    let fine = || DurabilitySettings {
        fsync: true,
        full_page_writes: true,
        synchronous_commit: "on".to_owned(),
        read_only: false,
        remedies: ["fsync", "full_page_writes", "synchronous_commit", "default_transaction_read_only"].map(fix).into(),
    };
    assert_eq!(durability(&fine()), Assessment::ok("fsync is on, synchronous_commit is on"));
    assert_eq!(
        durability(&DurabilitySettings { synchronous_commit: "local".to_owned(), ..fine() }).level,
        FindingLevel::Ok
    );
    let found = durability(&DurabilitySettings { fsync: false, synchronous_commit: "off".to_owned(), ..fine() });
    assert_eq!(found.level, FindingLevel::Problem);
    let summary = "fsync is off, synchronous_commit is off: a crash may lose or damage acknowledged events";
    assert_eq!(found.summary, summary);
    assert_eq!(found.advice.as_deref(), Some("FIX fsync; FIX synchronous_commit"));
    assert_eq!(durability(&DurabilitySettings { full_page_writes: false, ..fine() }).level, FindingLevel::Problem);
    let found = durability(&DurabilitySettings { read_only: true, ..fine() });
    assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "the server is read-only"));
}

fn holder(name: &str, minutes: Option<i64>, xids: i64) -> XminHolder {
    let since = minutes.map(|minutes| now() - TimeDelta::minutes(minutes));
    XminHolder { description: name.to_owned(), since, xids, remedy: format!("END {name}") }
}

#[test]
fn oldest_transaction_is_named_with_its_remedy() {
    let table = [
        (vec![], FindingLevel::Ok),
        (vec![holder("a", Some(5), 9_000_000_000)], FindingLevel::Ok),
        (vec![holder("a", Some(6), 0)], FindingLevel::Warning),
        (vec![holder("a", Some(61), 0)], FindingLevel::Problem),
        (vec![holder("slot", None, 1_000_000)], FindingLevel::Ok),
        (vec![holder("slot", None, 1_000_001)], FindingLevel::Warning),
        (vec![holder("slot", None, 100_000_001)], FindingLevel::Problem),
    ];
    for (holders, level) in table {
        assert_eq!(
            pinned_xmin(&XminHolders { holders: holders.clone(), grant: None }, now()).level,
            level,
            "{holders:?}"
        );
    }
    let holders = vec![holder("b", Some(10), 0), holder("slot s", None, 2_000_000), holder("a", Some(90), 0)];
    let found = pinned_xmin(&XminHolders { holders, grant: Some("GRANT".to_owned()) }, now());
    assert_eq!(found.level, FindingLevel::Problem);
    let summary = "vacuum cannot remove dead rows: a for 1 h 30 min, slot s for 2,000,000 transactions, b for 10 min";
    assert_eq!(found.summary, summary);
    assert!(found.advice.unwrap().starts_with("end it: END a;"));
    let hidden = pinned_xmin(&XminHolders { holders: vec![], grant: Some("GRANT x".to_owned()) }, now());
    assert_eq!((hidden.level, hidden.advice.as_deref()), (FindingLevel::Notice, Some("to see them: GRANT x")));
}

#[test]
fn vacuum_far_behind_is_a_warning_then_a_problem() {
    let table = |dead: u64, off: bool| TableDeadRows {
        name: "event_queue".to_owned(),
        live: 10,
        dead,
        starts_at: 2_000.0,
        off,
        remedy: "VACUUM t".to_owned(),
    };
    let of = |tables: Vec<TableDeadRows>| dead_rows(&DeadRows { tables, all_off: None });
    assert_eq!(of(vec![]).level, FindingLevel::Ok);
    for (dead, level) in [(20_000, FindingLevel::Ok), (20_001, FindingLevel::Warning), (200_001, FindingLevel::Problem)]
    {
        assert_eq!(of(vec![table(dead, false)]).level, level, "{dead}");
    }
    let found = of(vec![table(20_001, false), table(30_000, false)]);
    assert!(found.summary.contains("event_queue has 30,000 dead and 10 live rows"), "{}", found.summary);
    assert_eq!(of(vec![table(0, true)]).level, FindingLevel::Problem);
    let found = dead_rows(&DeadRows { tables: vec![table(0, false)], all_off: Some("ON".to_owned()) });
    assert_eq!((found.level, found.advice.as_deref()), (FindingLevel::Problem, Some("ON")));
}

#[test]
fn bloat_is_judged_by_live_rows() {
    const MIB: u64 = 1 << 20;
    let of = |live, table, index| {
        let (shrink_table, shrink_index) = ("TABLE".to_owned(), "INDEX".to_owned());
        bloat(&QueueSizes { live, table_bytes: table * MIB, index_bytes: index * MIB, shrink_table, shrink_index })
    };
    assert_eq!(of(0, 64, 64).level, FindingLevel::Ok);
    let index = of(0, 64, 65);
    assert_eq!((index.level, index.advice.as_deref()), (FindingLevel::Warning, Some("INDEX (does not block)")));
    assert!(of(0, 65, 1).advice.unwrap().contains("TABLE"));
    // A million rows legitimately take this much.
    assert_eq!(of(1_000_000, 2_800, 380).level, FindingLevel::Ok);
    assert_eq!(of(1_000_000, 2_900, 300).level, FindingLevel::Warning);
}

#[test]
fn tightest_connection_limit_decides() {
    let base = ConnectionCounts {
        all: 50,
        max: 100,
        reserved: 3,
        role_max: -1,
        database_max: -1,
        per_process_max: 20,
        ..ConnectionCounts::default()
    };
    let table = [
        (base, FindingLevel::Ok),
        (ConnectionCounts { all: 78, ..base }, FindingLevel::Warning),
        (ConnectionCounts { all: 95, ..base }, FindingLevel::Problem),
        (ConnectionCounts { all: 120, ..base }, FindingLevel::Problem),
        (ConnectionCounts { role_max: 10, role_used: 5, ..base }, FindingLevel::Warning),
        (ConnectionCounts { role_max: 10, role_used: 8, ..base }, FindingLevel::Problem),
        (ConnectionCounts { database_max: 30, database_used: 30, ..base }, FindingLevel::Problem),
        (ConnectionCounts { role_max: 40, role_used: 1, ..base }, FindingLevel::Ok),
    ];
    for (connected, level) in table {
        assert_eq!(connections(&connected).level, level, "{connected:?}");
    }
    let found = connections(&ConnectionCounts { role_max: 10, role_used: 8, ..base });
    assert_eq!(found.summary, "8 of 10 for this role are in use; one windlass process takes up to 20");
    assert!(found.advice.unwrap().contains("ALTER ROLE"));
}

#[test]
fn clock_skew_within_measurement_error_is_ignored() {
    let of = |ahead_ms, round_trip_ms| {
        clock_skew(&ClockSkew {
            ahead: TimeDelta::milliseconds(ahead_ms),
            round_trip: TimeDelta::milliseconds(round_trip_ms),
        })
    };
    let table = [
        (0, 1, FindingLevel::Ok),
        (2_000, 0, FindingLevel::Ok),
        (2_100, 100, FindingLevel::Warning),
        (-2_100, 100, FindingLevel::Warning),
        // A slow round trip is a less precise measurement.
        (2_100, 1_000, FindingLevel::Ok),
        (61_000, 100, FindingLevel::Problem),
        (-61_000, 100, FindingLevel::Problem),
    ];
    for (ahead, round_trip, level) in table {
        assert_eq!(of(ahead, round_trip).level, level, "{ahead} {round_trip}");
    }
    let found = of(-2_500, 20).summary;
    assert_eq!(found, "the server's clock is 2500 ms behind this machine's (measured within 10 ms)");
}

#[test]
fn notifications_and_wraparound_have_thresholds() {
    for (usage, level) in
        [(0.0, FindingLevel::Ok), (0.1, FindingLevel::Ok), (0.2, FindingLevel::Warning), (0.6, FindingLevel::Problem)]
    {
        assert_eq!(notify_queue(usage).level, level, "{usage}");
    }
    assert_eq!(notifications(Some(TimeDelta::milliseconds(3))).level, FindingLevel::Ok);
    assert_eq!(notifications(None).level, FindingLevel::Warning);
    let of = |xids, multixacts| wraparound(&WraparoundAge { xids, multixacts, oldest: fix("t") });
    assert_eq!((of(1_000_000_000, 0).level, of(1_000_000_001, 0).level), (FindingLevel::Ok, FindingLevel::Warning));
    assert_eq!(
        (of(0, 1_500_000_001).level, of(1_500_000_001, 0).level),
        (FindingLevel::Problem, FindingLevel::Problem)
    );
    assert!(of(1_500_000_001, 0).advice.unwrap().starts_with("FIX t;"));
}

#[test]
fn missing_partition_of_this_month_is_a_warning() {
    let of = |months: &[&str]| {
        let parts = months.iter().flat_map(|month| HistoryTable::ALL.map(|kept| (kept, month.parse().unwrap())));
        partitions(&parts.collect::<Vec<_>>(), now())
    };
    assert_eq!(of(&["2026_01", "2026_02", "2026_03"]).level, FindingLevel::Ok);
    let found = of(&["2026_01", "2026_02"]);
    assert_eq!(
        (found.level, &*found.summary),
        (FindingLevel::Notice, "2 missing: events_2026_03, event_attempts_2026_03")
    );
    assert_eq!(of(&["2026_02", "2026_03"]).level, FindingLevel::Warning);
}
