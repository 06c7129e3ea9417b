//! Tables of facts, and what is thought of them.

use super::*;
use crate::maintenance::months::Kept;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn amiss(name: &str) -> SchemaProblem {
    SchemaProblem { name: name.to_owned(), remedy: format!("MEND {name}") }
}

#[test]
fn old_servers_are_told() {
    for (number, level) in [(130_022, FindingLevel::Warning), (140_000, FindingLevel::Ok), (180_001, FindingLevel::Ok)]
    {
        assert_eq!(release(&Release { number, text: "x".to_owned() }).level, level, "{number}");
    }
}

#[test]
fn whatever_loses_commits_is_a_problem() {
    let fine = || Durability {
        fsync: true,
        full_page_writes: true,
        synchronous_commit: "on".to_owned(),
        read_only: false,
        remedies: ["fsync", "full_page_writes", "synchronous_commit", "default_transaction_read_only"]
            .map(amiss)
            .into(),
    };
    assert_eq!(durability(&fine()), Assessment::ok("fsync is on, synchronous_commit is on"));
    assert_eq!(durability(&Durability { synchronous_commit: "local".to_owned(), ..fine() }).level, FindingLevel::Ok);
    let found = durability(&Durability { fsync: false, synchronous_commit: "off".to_owned(), ..fine() });
    assert_eq!(found.level, FindingLevel::Problem);
    let said = "fsync is off, synchronous_commit is off: a crash may lose or damage what was acknowledged";
    assert_eq!(found.summary, said);
    assert_eq!(found.advice.as_deref(), Some("MEND fsync; MEND synchronous_commit"));
    assert_eq!(durability(&Durability { full_page_writes: false, ..fine() }).level, FindingLevel::Problem);
    let found = durability(&Durability { read_only: true, ..fine() });
    assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "the server takes no writes"));
}

fn pin(who: &str, minutes: Option<i64>, xids: i64) -> Pin {
    let since = minutes.map(|minutes| now() - TimeDelta::minutes(minutes));
    Pin { who: who.to_owned(), since, xids, remedy: format!("END {who}") }
}

#[test]
fn the_oldest_transaction_is_named_with_how_to_end_it() {
    let table = [
        (vec![], FindingLevel::Ok),
        (vec![pin("a", Some(5), 9_000_000_000)], FindingLevel::Ok),
        (vec![pin("a", Some(6), 0)], FindingLevel::Warning),
        (vec![pin("a", Some(61), 0)], FindingLevel::Problem),
        (vec![pin("slot", None, 1_000_000)], FindingLevel::Ok),
        (vec![pin("slot", None, 1_000_001)], FindingLevel::Warning),
        (vec![pin("slot", None, 100_000_001)], FindingLevel::Problem),
    ];
    for (pins, level) in table {
        assert_eq!(pinned(&Pins { pins: pins.clone(), grant: None }, now()).level, level, "{pins:?}");
    }
    let pins = vec![pin("b", Some(10), 0), pin("slot s", None, 2_000_000), pin("a", Some(90), 0)];
    let found = pinned(&Pins { pins, grant: Some("GRANT".to_owned()) }, now());
    assert_eq!(found.level, FindingLevel::Problem);
    assert_eq!(found.summary, "dead rows are kept: a for 1 h 30 min, slot s for 2,000,000 transactions, b for 10 min");
    assert!(found.advice.unwrap().starts_with("end it: END a;"));
    let hidden = pinned(&Pins { pins: vec![], grant: Some("GRANT x".to_owned()) }, now());
    assert_eq!((hidden.level, hidden.advice.as_deref()), (FindingLevel::Notice, Some("to see them: GRANT x")));
}

#[test]
fn vacuum_may_be_behind_but_not_far() {
    let table = |dead: u64, off: bool| TableDirt {
        name: "event_queue".to_owned(),
        live: 10,
        dead,
        starts_at: 2_000.0,
        off,
        remedy: "VACUUM t".to_owned(),
    };
    let of = |tables: Vec<TableDirt>| dead_rows(&Dirt { tables, all_off: None });
    assert_eq!(of(vec![]).level, FindingLevel::Ok);
    for (dead, level) in [(20_000, FindingLevel::Ok), (20_001, FindingLevel::Warning), (200_001, FindingLevel::Problem)]
    {
        assert_eq!(of(vec![table(dead, false)]).level, level, "{dead}");
    }
    let found = of(vec![table(20_001, false), table(30_000, false)]);
    assert!(found.summary.contains("event_queue has 30,000 dead and 10 live rows"), "{}", found.summary);
    assert_eq!(of(vec![table(0, true)]).level, FindingLevel::Problem);
    let found = dead_rows(&Dirt { tables: vec![table(0, false)], all_off: Some("ON".to_owned()) });
    assert_eq!((found.level, found.advice.as_deref()), (FindingLevel::Problem, Some("ON")));
}

#[test]
fn size_is_judged_by_what_lives() {
    const MIB: u64 = 1 << 20;
    let of = |live, table, index| {
        let (shrink_table, shrink_index) = ("TABLE".to_owned(), "INDEX".to_owned());
        bloat(&Sizes { live, table_bytes: table * MIB, index_bytes: index * MIB, shrink_table, shrink_index })
    };
    assert_eq!(of(0, 64, 64).level, FindingLevel::Ok);
    let index = of(0, 64, 65);
    assert_eq!((index.level, index.advice.as_deref()), (FindingLevel::Warning, Some("INDEX (nobody has to wait)")));
    assert!(of(0, 65, 1).advice.unwrap().contains("TABLE"));
    // A million rows need their room.
    assert_eq!(of(1_000_000, 2_800, 380).level, FindingLevel::Ok);
    assert_eq!(of(1_000_000, 2_900, 300).level, FindingLevel::Warning);
}

#[test]
fn the_tightest_limit_on_connections_counts() {
    let base = Connected {
        all: 50,
        max: 100,
        reserved: 3,
        role_max: -1,
        database_max: -1,
        own_max: 20,
        ..Connected::default()
    };
    let table = [
        (base, FindingLevel::Ok),
        (Connected { all: 78, ..base }, FindingLevel::Warning),
        (Connected { all: 95, ..base }, FindingLevel::Problem),
        (Connected { all: 120, ..base }, FindingLevel::Problem),
        (Connected { role_max: 10, of_role: 5, ..base }, FindingLevel::Warning),
        (Connected { role_max: 10, of_role: 8, ..base }, FindingLevel::Problem),
        (Connected { database_max: 30, of_database: 30, ..base }, FindingLevel::Problem),
        (Connected { role_max: 40, of_role: 1, ..base }, FindingLevel::Ok),
    ];
    for (connected, level) in table {
        assert_eq!(connections(&connected).level, level, "{connected:?}");
    }
    let found = connections(&Connected { role_max: 10, of_role: 8, ..base });
    assert_eq!(found.summary, "8 of 10 for this role are in use; one windlass process takes up to 20");
    assert!(found.advice.unwrap().contains("ALTER ROLE"));
}

#[test]
fn only_what_is_certain_of_a_skew_counts() {
    let of = |ahead_ms, round_trip_ms| {
        clock(&Skew { ahead: TimeDelta::milliseconds(ahead_ms), round_trip: TimeDelta::milliseconds(round_trip_ms) })
    };
    let table = [
        (0, 1, FindingLevel::Ok),
        (2_000, 0, FindingLevel::Ok),
        (2_100, 100, FindingLevel::Warning),
        (-2_100, 100, FindingLevel::Warning),
        // A slow answer tells less.
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
fn the_rest_has_its_limits() {
    for (usage, level) in
        [(0.0, FindingLevel::Ok), (0.1, FindingLevel::Ok), (0.2, FindingLevel::Warning), (0.6, FindingLevel::Problem)]
    {
        assert_eq!(notify_queue(usage).level, level, "{usage}");
    }
    assert_eq!(notifications(Some(TimeDelta::milliseconds(3))).level, FindingLevel::Ok);
    assert_eq!(notifications(None).level, FindingLevel::Warning);
    let of = |xids, multixacts| wraparound(&Freeze { xids, multixacts, oldest: amiss("t") });
    assert_eq!((of(1_000_000_000, 0).level, of(1_000_000_001, 0).level), (FindingLevel::Ok, FindingLevel::Warning));
    assert_eq!(
        (of(0, 1_500_000_001).level, of(1_500_000_001, 0).level),
        (FindingLevel::Problem, FindingLevel::Problem)
    );
    assert!(of(1_500_000_001, 0).advice.unwrap().starts_with("MEND t;"));
}

#[test]
fn a_month_that_has_begun_without_its_partition_is_worse() {
    let of = |months: &[&str]| {
        let parts = months.iter().flat_map(|month| Kept::ALL.map(|kept| (kept, month.parse().unwrap())));
        partitions(&parts.collect::<Vec<_>>(), now())
    };
    assert_eq!(of(&["2026_01", "2026_02", "2026_03"]).level, FindingLevel::Ok);
    let found = of(&["2026_01", "2026_02"]);
    assert_eq!(
        (found.level, &*found.summary),
        (FindingLevel::Notice, "2 not made: events_2026_03, event_attempts_2026_03")
    );
    assert_eq!(of(&["2026_02", "2026_03"]).level, FindingLevel::Warning);
}
