//! Tables of ticks, and a comparison with a second-by-second search around clock changes.

use std::collections::BTreeSet;

use super::*;

fn rule(cron: &str, zone: &str) -> Rule {
    Rule::parse(cron, zone).unwrap_or_else(|error| panic!("{error}"))
}

fn timestamp(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a timestamp"))
}

/// The ticks after `from`, in local time with the offset.
fn local_ticks(cron: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let rule = rule(cron, zone);
    let next = |at: &Timestamp| rule.after(*at);
    let ticks: Vec<Timestamp> = std::iter::successors(Some(timestamp(from)), next).skip(1).take(count).collect();
    // `before` finds the same ticks.
    let previous = |at: &Timestamp| rule.before(*at);
    let first = ticks.first().copied();
    let mut back: Vec<Timestamp> = std::iter::successors(ticks.last().copied(), previous).take(count).collect();
    back.reverse();
    assert_eq!(back, ticks, "{cron} in {zone}: back from {:?} to {first:?}", ticks.last());
    ticks.iter().map(|tick| rule.local(*tick).format("%a %Y-%m-%d %H:%M:%S%:z").to_string()).collect()
}

fn assert_ticks(table: &[(&str, &str, &str, &[&str])]) {
    for (cron, zone, from, expected) in table {
        assert_eq!(local_ticks(cron, zone, from, expected.len()), *expected, "{cron} in {zone} from {from}");
    }
}

#[test]
fn fields_names_ranges_lists_and_steps() {
    let from = "2026-01-01T00:00:00Z";
    assert_ticks(&[
        ("30 6 * * *", "UTC", from, &["Thu 2026-01-01 06:30:00+00:00", "Fri 2026-01-02 06:30:00+00:00"]),
        ("* * * * * *", "UTC", from, &["Thu 2026-01-01 00:00:01+00:00", "Thu 2026-01-01 00:00:02+00:00"]),
        ("*/20 59 23 * * *", "UTC", from, &["Thu 2026-01-01 23:59:00+00:00", "Thu 2026-01-01 23:59:20+00:00"]),
        (
            "0 9-17/8 * jan,Jul mon-fri",
            "UTC",
            from,
            &["Thu 2026-01-01 09:00:00+00:00", "Thu 2026-01-01 17:00:00+00:00"],
        ),
        ("0 0 1 1-3,12 *", "UTC", from, &["Sun 2026-02-01 00:00:00+00:00", "Sun 2026-03-01 00:00:00+00:00"]),
        ("0 12 * * 0", "UTC", from, &["Sun 2026-01-04 12:00:00+00:00"]),
        ("0 12 * * 7", "UTC", from, &["Sun 2026-01-04 12:00:00+00:00"]),
        ("0 12 ? * MON", "UTC", from, &["Mon 2026-01-05 12:00:00+00:00"]),
        ("@daily", "UTC", from, &["Fri 2026-01-02 00:00:00+00:00"]),
        (" @Daily ", "UTC", from, &["Fri 2026-01-02 00:00:00+00:00"]),
        ("\t30  6 * * *\n", "UTC", from, &["Thu 2026-01-01 06:30:00+00:00"]),
        // A day of the month or a day of the week; with `+`, both.
        (
            "0 0 13 * FRI",
            "UTC",
            from,
            &["Fri 2026-01-02 00:00:00+00:00", "Fri 2026-01-09 00:00:00+00:00", "Tue 2026-01-13 00:00:00+00:00"],
        ),
        ("0 0 13 * +FRI", "UTC", from, &["Fri 2026-02-13 00:00:00+00:00", "Fri 2026-03-13 00:00:00+00:00"]),
    ]);
}

#[test]
fn last_days_nth_weekdays_and_leap_days() {
    let from = "2026-01-01T00:00:00Z";
    assert_ticks(&[
        ("0 0 L * *", "UTC", from, &["Sat 2026-01-31 00:00:00+00:00", "Sat 2026-02-28 00:00:00+00:00"]),
        (
            "0 0 L 2 *",
            "UTC",
            "2027-03-01T00:00:00Z",
            &["Tue 2028-02-29 00:00:00+00:00", "Wed 2029-02-28 00:00:00+00:00"],
        ),
        ("0 12 * * FRI#2", "UTC", from, &["Fri 2026-01-09 12:00:00+00:00", "Fri 2026-02-13 12:00:00+00:00"]),
        ("0 12 * * 5L", "UTC", from, &["Fri 2026-01-30 12:00:00+00:00", "Fri 2026-02-27 12:00:00+00:00"]),
        ("0 12 * * FRI#L", "UTC", from, &["Fri 2026-01-30 12:00:00+00:00", "Fri 2026-02-27 12:00:00+00:00"]),
        // Every notation of Sunday.
        ("0 12 * * 7L", "UTC", from, &["Sun 2026-01-25 12:00:00+00:00", "Sun 2026-02-22 12:00:00+00:00"]),
        ("0 12 * * 7#L", "UTC", from, &["Sun 2026-01-25 12:00:00+00:00", "Sun 2026-02-22 12:00:00+00:00"]),
        ("0 12 * * 0l", "UTC", from, &["Sun 2026-01-25 12:00:00+00:00", "Sun 2026-02-22 12:00:00+00:00"]),
        ("0 12 * * 7#2", "UTC", from, &["Sun 2026-01-11 12:00:00+00:00", "Sun 2026-02-08 12:00:00+00:00"]),
        ("0 12 * * 6-7#1", "UTC", from, &["Sat 2026-01-03 12:00:00+00:00", "Sun 2026-01-04 12:00:00+00:00"]),
        ("0 12 * * Sat-Sun#1", "UTC", from, &["Sat 2026-01-03 12:00:00+00:00", "Sun 2026-01-04 12:00:00+00:00"]),
        (
            "0 12 * * 6,7L",
            "UTC",
            "2026-01-20T00:00:00Z",
            &["Sat 2026-01-24 12:00:00+00:00", "Sun 2026-01-25 12:00:00+00:00", "Sat 2026-01-31 12:00:00+00:00"],
        ),
        ("0 12 * * FRI-SUN", "UTC", from, &["Fri 2026-01-02 12:00:00+00:00", "Sat 2026-01-03 12:00:00+00:00"]),
        ("0 0 1 * +7#1", "UTC", from, &["Sun 2026-02-01 00:00:00+00:00", "Sun 2026-03-01 00:00:00+00:00"]),
        ("0 12 * * MON#5", "UTC", from, &["Mon 2026-03-30 12:00:00+00:00", "Mon 2026-06-29 12:00:00+00:00"]),
        (
            "0 0 15W * *",
            "UTC",
            "2026-02-01T00:00:00Z",
            &["Mon 2026-02-16 00:00:00+00:00", "Mon 2026-03-16 00:00:00+00:00"],
        ),
        ("0 0 29 2 *", "UTC", from, &["Tue 2028-02-29 00:00:00+00:00", "Sun 2032-02-29 00:00:00+00:00"]),
        ("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", &["Fri 2104-02-29 00:00:00+00:00"]),
        (
            "0 0 31 * *",
            "UTC",
            "2026-02-01T00:00:00Z",
            &["Tue 2026-03-31 00:00:00+00:00", "Sun 2026-05-31 00:00:00+00:00"],
        ),
    ]);
}

// Clocks go from 02:00 to 03:00.
#[test]
fn berlin_clock_moves_forward() {
    let from = "2026-03-28T22:00:00Z";
    assert_ticks(&[
        ("30 2 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Mon 2026-03-30 02:30:00+02:00"]),
        ("0 2 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Mon 2026-03-30 02:00:00+02:00"]),
        ("59 59 2 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Mon 2026-03-30 02:59:59+02:00"]),
        ("0 3 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Mon 2026-03-30 03:00:00+02:00"]),
        ("59 1 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 01:59:00+01:00", "Mon 2026-03-30 01:59:00+02:00"]),
        // Several times in the skipped hour tick once; so do one in it and one at its end.
        ("*/15 2 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Mon 2026-03-30 02:00:00+02:00"]),
        ("0 2,3 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Mon 2026-03-30 02:00:00+02:00"]),
        ("30 2,3 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Sun 2026-03-29 03:30:00+02:00"]),
        ("0 2,14 * * *", "Europe/Berlin", from, &["Sun 2026-03-29 03:00:00+02:00", "Sun 2026-03-29 14:00:00+02:00"]),
        (
            "0 */2 * * *",
            "Europe/Berlin",
            from,
            &["Sun 2026-03-29 00:00:00+01:00", "Sun 2026-03-29 03:00:00+02:00", "Sun 2026-03-29 04:00:00+02:00"],
        ),
        (
            "*/15 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:40:00Z",
            &["Sun 2026-03-29 01:45:00+01:00", "Sun 2026-03-29 03:00:00+02:00", "Sun 2026-03-29 03:15:00+02:00"],
        ),
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:00:00Z",
            &["Sun 2026-03-29 01:30:00+01:00", "Sun 2026-03-29 03:30:00+02:00"],
        ),
        (
            "*/7 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:55:00Z",
            &["Sun 2026-03-29 01:56:00+01:00", "Sun 2026-03-29 03:00:00+02:00"],
        ),
    ]);
}

// Clocks go from 03:00 back to 02:00.
#[test]
fn berlin_clock_moves_back() {
    let from = "2026-10-24T22:00:00Z";
    assert_ticks(&[
        ("30 2 * * *", "Europe/Berlin", from, &["Sun 2026-10-25 02:30:00+02:00", "Mon 2026-10-26 02:30:00+01:00"]),
        ("0 2 * * *", "Europe/Berlin", from, &["Sun 2026-10-25 02:00:00+02:00", "Mon 2026-10-26 02:00:00+01:00"]),
        ("0 3 * * *", "Europe/Berlin", from, &["Sun 2026-10-25 03:00:00+01:00", "Mon 2026-10-26 03:00:00+01:00"]),
        ("0 2,14 * * *", "Europe/Berlin", from, &["Sun 2026-10-25 02:00:00+02:00", "Sun 2026-10-25 14:00:00+01:00"]),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            from,
            &["Sun 2026-10-25 02:00:00+02:00", "Sun 2026-10-25 02:30:00+02:00", "Mon 2026-10-26 02:00:00+01:00"],
        ),
        ("0 */2 * * *", "Europe/Berlin", from, &["Sun 2026-10-25 02:00:00+02:00", "Sun 2026-10-25 04:00:00+01:00"]),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:45:00Z",
            &[
                "Sun 2026-10-25 02:00:00+02:00",
                "Sun 2026-10-25 02:30:00+02:00",
                "Sun 2026-10-25 02:00:00+01:00",
                "Sun 2026-10-25 02:30:00+01:00",
                "Sun 2026-10-25 03:00:00+01:00",
            ],
        ),
        // Starts between the two occurrences.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", &["Mon 2026-10-26 02:30:00+01:00"]),
        ("45 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", &["Mon 2026-10-26 02:45:00+01:00"]),
        (
            "15 * * * *",
            "Europe/Berlin",
            "2026-10-25T01:10:00Z",
            &["Sun 2026-10-25 02:15:00+01:00", "Sun 2026-10-25 03:15:00+01:00"],
        ),
    ]);
}

#[test]
fn new_york_clock_changes() {
    assert_ticks(&[
        // From 02:00 to 03:00.
        (
            "30 2 * * *",
            "America/New_York",
            "2026-03-08T00:00:00Z",
            &["Sun 2026-03-08 03:00:00-04:00", "Mon 2026-03-09 02:30:00-04:00"],
        ),
        (
            "*/20 * * * *",
            "America/New_York",
            "2026-03-08T06:30:00Z",
            &["Sun 2026-03-08 01:40:00-05:00", "Sun 2026-03-08 03:00:00-04:00"],
        ),
        // From 02:00 back to 01:00.
        (
            "30 1 * * *",
            "America/New_York",
            "2026-11-01T00:00:00Z",
            &["Sun 2026-11-01 01:30:00-04:00", "Mon 2026-11-02 01:30:00-05:00"],
        ),
        (
            "0 * * * *",
            "America/New_York",
            "2026-11-01T04:30:00Z",
            &["Sun 2026-11-01 01:00:00-04:00", "Sun 2026-11-01 01:00:00-05:00", "Sun 2026-11-01 02:00:00-05:00"],
        ),
    ]);
}

// The change is half an hour: from 02:00 to 02:30, and from 02:00 back to 01:30.
#[test]
fn lord_howe_clock_changes() {
    let zone = "Australia/Lord_Howe";
    assert_ticks(&[
        (
            "15 2 * * *",
            zone,
            "2026-10-03T12:00:00Z",
            &["Sun 2026-10-04 02:30:00+11:00", "Mon 2026-10-05 02:15:00+11:00"],
        ),
        (
            "45 2 * * *",
            zone,
            "2026-10-03T12:00:00Z",
            &["Sun 2026-10-04 02:45:00+11:00", "Mon 2026-10-05 02:45:00+11:00"],
        ),
        (
            "*/15 * * * *",
            zone,
            "2026-10-03T15:20:00Z",
            &["Sun 2026-10-04 02:30:00+11:00", "Sun 2026-10-04 02:45:00+11:00"],
        ),
        // The skipped full hour ticks late, at the end of the gap.
        (
            "0 * * * *",
            zone,
            "2026-10-03T14:00:00Z",
            &["Sun 2026-10-04 01:00:00+10:30", "Sun 2026-10-04 02:30:00+11:00", "Sun 2026-10-04 03:00:00+11:00"],
        ),
        (
            "45 1 * * *",
            zone,
            "2026-04-04T12:00:00Z",
            &["Sun 2026-04-05 01:45:00+11:00", "Mon 2026-04-06 01:45:00+10:30"],
        ),
        (
            "*/15 * * * *",
            zone,
            "2026-04-04T14:25:00Z",
            &[
                "Sun 2026-04-05 01:30:00+11:00",
                "Sun 2026-04-05 01:45:00+11:00",
                "Sun 2026-04-05 01:30:00+10:30",
                "Sun 2026-04-05 01:45:00+10:30",
                "Sun 2026-04-05 02:00:00+10:30",
            ],
        ),
        (
            "45 * * * *",
            zone,
            "2026-04-04T14:25:00Z",
            &["Sun 2026-04-05 01:45:00+11:00", "Sun 2026-04-05 02:45:00+10:30"],
        ),
    ]);
}

/// An independent implementation of the rules that checks every second.
fn every_second(rule: &Rule, from: Timestamp, seconds: i64) -> BTreeSet<Timestamp> {
    let pattern = &rule.cron.pattern;
    let matches = |wall: NaiveDateTime| {
        let second = pattern.second_match(wall.second()).unwrap() && pattern.minute_match(wall.minute()).unwrap();
        second && rule.cron.is_time_matching(&wall).unwrap()
    };
    let offset = |at: Timestamp| rule.local(at).naive_local() - at.naive_utc();
    let mut ticks = BTreeSet::new();
    let mut latest = rule.local(from).naive_local();
    let mut is_periodic = true;
    for at in (1..=seconds).map(|n| from + TimeDelta::seconds(n)) {
        let (wall, second) = (rule.local(at).naive_local(), TimeDelta::seconds(1));
        let shift = offset(at) - offset(at - second);
        if shift != TimeDelta::zero() {
            let of_day = |second: i64| {
                let time = chrono::NaiveTime::from_num_seconds_from_midnight_opt(second.rem_euclid(86_400) as u32, 0);
                let time = time.unwrap();
                pattern.hour_match(time.hour()).unwrap()
                    && pattern.minute_match(time.minute()).unwrap()
                    && pattern.second_match(time.second()).unwrap()
            };
            is_periodic = (0..86_400).all(|second| of_day(second) == of_day(second + shift.num_seconds()));
        }
        if shift > TimeDelta::zero() && !is_periodic {
            let mut skipped = std::iter::successors(Some(wall - shift), |wall| Some(*wall + second));
            if skipped.by_ref().take_while(|skipped| *skipped < wall).any(matches) {
                ticks.insert(at);
            }
        }
        if matches(wall) && (wall > latest || is_periodic) {
            ticks.insert(at);
        }
        latest = latest.max(wall);
    }
    ticks
}

#[test]
fn ticks_around_clock_changes_match_a_search_by_second() {
    let rules = [
        "* * * * * *",
        "*/15 * * * *",
        "*/7 * * * *",
        "0 * * * *",
        "30 * * * *",
        "0 */2 * * *",
        "30 1 * * *",
        "30 2 * * *",
        "0 0 * * *",
        "15,45 1-3 * * *",
        "*/10 2 * * *",
        "7 3,11 4 * * *",
        "*/25 */5 2,3 * * *",
        "30 2 * * SUN",
        "30 2 * * MON",
        "0 2 L 3 *",
    ];
    let changes = [
        ("Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00:00Z"),
        ("America/New_York", "2026-03-08T07:00:00Z"),
        ("America/New_York", "2026-11-01T06:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        // At midnight.
        ("Africa/Cairo", "2026-04-23T22:00:00Z"),
        ("Africa/Cairo", "2026-10-29T21:00:00Z"),
    ];
    for (zone, change) in changes {
        let from = timestamp(change) - TimeDelta::hours(2);
        for cron in rules {
            let rule = rule(cron, zone);
            let seconds = if cron == "* * * * * *" { 3 * 3600 } else { 5 * 3600 };
            let expected: Vec<Timestamp> = every_second(&rule, from, seconds).into_iter().collect();
            let until = from + TimeDelta::seconds(seconds);
            let next = |at: &Timestamp| rule.after(*at).filter(|at| *at <= until);
            let found: Vec<Timestamp> = std::iter::successors(Some(from), next).skip(1).collect();
            assert_eq!(found, expected, "{cron} in {zone} around {change}");
            let before = |at: &Timestamp| rule.before(*at).filter(|at| *at > from);
            let mut back: Vec<Timestamp> = std::iter::successors(Some(until + TimeDelta::seconds(1)), before).collect();
            back.reverse();
            back.pop();
            assert_eq!(back, expected, "{cron} in {zone} around {change}, backwards");
        }
    }
}

#[test]
fn croner_alone_misses_and_doubles_ticks_of_a_list() {
    let cron = expression("0 2,14 * * *").unwrap();
    let zone: Tz = "Europe/Berlin".parse().unwrap();
    let from = |text: &str| timestamp(text).with_timezone(&zone);
    let next = |at: DateTime<Tz>| cron.find_next_occurrence(&at, false).unwrap();
    assert_eq!(next(from("2026-03-28T22:00:00Z")).to_rfc3339(), "2026-03-29T14:00:00+02:00");
    let first = next(from("2026-10-24T22:00:00Z"));
    assert_eq!(
        (first.to_rfc3339(), next(first).to_rfc3339()),
        ("2026-10-25T02:00:00+02:00".into(), "2026-10-25T02:00:00+01:00".into())
    );
}

#[test]
fn fractions_of_a_second_are_handled() {
    let rule = rule("0 * * * *", "UTC");
    let at = |text: &str| Some(timestamp(text));
    for (from, after, before) in [
        ("2026-01-01T10:00:00Z", at("2026-01-01T11:00:00Z"), at("2026-01-01T09:00:00Z")),
        ("2026-01-01T10:00:00.000001Z", at("2026-01-01T11:00:00Z"), at("2026-01-01T10:00:00Z")),
        ("2026-01-01T10:59:59.999999Z", at("2026-01-01T11:00:00Z"), at("2026-01-01T10:00:00Z")),
    ] {
        assert_eq!((rule.after(timestamp(from)), rule.before(timestamp(from))), (after, before), "{from}");
    }
    assert_eq!(rule.after(DateTime::<chrono::Utc>::MAX_UTC), None);
    assert_eq!(rule.before(DateTime::<chrono::Utc>::MIN_UTC), None);
}

#[test]
fn invalid_expressions_and_zones_are_rejected() {
    let long = format!("{} * * * *", "0,".repeat(100));
    let table = [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * * *", "five fields"),
        ("@reboot", "cannot be read"),
        ("@daily now", "five fields"),
        ("60 * * * *", "out of bounds"),
        ("*/0 * * * *", "Step cannot be zero"),
        ("5-1 * * * *", "a range that wraps, '5-1' (ranges do not: write '5-59,0-1') in its field '5-1', the minute"),
        ("0 22-2 * * *", "write '22-23,0-2'"),
        ("0 22-0/2 * * *", "write '22-23,0'"),
        ("0 0 * nov-feb *", "write '11-12,1-2'"),
        ("0 0 * * SAT-MON", "write '6,0-1'"),
        ("0 0 * * FRI-SUN,SAT-0", "'SAT-0' (ranges do not: write '6,0')"),
        ("*/60 * * * *", "a step that is larger than its range, which is 0-59 in its field '*/60', the minute"),
        ("*/90 * * * *", "which is 0-59"),
        ("10-20/11 * * * *", "which is 10-20"),
        ("*/60 * * * * *", "the second"),
        ("0 */25 * * *", "which is 0-23"),
        ("0 0 */31 * *", "which is 1-31"),
        ("0 0 1 */12 *", "which is 1-12"),
        ("0 0 * * */7", "which is 0-6"),
        ("0 0 * * L", "an L without a day (write '5L' for the last Friday)"),
        ("0 0 * * 1,L", "an L without a day"),
        ("0 0 * * 1-7/2#1", "both a step and the day of a certain week, '1-7/2#1'"),
        ("0/5 * * * *", "*/5"),
        ("1,,2 * * * *", "an empty item in a list in its field '1,,2', the minute"),
        ("1, * * * *", "an empty item"),
        ("MON * * * *", "the unknown word 'MON' in its field 'MON', the minute"),
        ("0 0 * MON *", "the unknown word 'MON' in its field 'MON', the month"),
        ("0 0 * * JAN", "the unknown word 'JAN' in its field 'JAN', the day of the week"),
        ("0 0 * * MONDAY", "the unknown word 'MONDAY'"),
        ("ä * * * *", "the unknown word 'ä'"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 2,4,6,9,11 *", "never comes"),
        ("0 0 31 4 +MON", "never comes"),
        ("* * * * +", "never comes"),
        (&long, "the limit is 200 bytes"),
    ];
    for (cron, part) in table {
        let error = Rule::parse(cron, "UTC").expect_err(cron).to_string();
        assert!(error.starts_with("cron") && error.contains(part), "{cron}: {error}");
    }
    for zone in ["", "Berlin", "europe/berlin", "+01:00", "Europe/\nBerlin", &"x".repeat(10_000)] {
        let error = Rule::parse("* * * * *", zone).expect_err(zone).to_string();
        assert!(error.starts_with("timezone: ") && error.len() < 300, "{error}");
    }
}
