//! Firing: which ticks happen, each once, and nobody stops the others.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;
use windlass::{ClaimRequest, Limits, MissedPolicy, NewEvent, NewSchedule, Queue, ScheduleFilter, Timestamp};

use super::schedules::{add, at, every_minute, fire, fires};
use crate::bed::{Bed, Kind};
use crate::own::{self, Own};
use crate::support::*;

/// The ticks on record, the oldest first, with whether they have an event, and how many were passed over before.
async fn record(queue: &Queue, id: &str) -> Vec<(String, bool, u32)> {
    let time = |tick: Timestamp| tick.format("%H:%M:%S").to_string();
    let fires = fires(queue, id).await.into_iter().rev();
    fires.map(|fire| (time(fire.tick_at), fire.event_id.is_some(), fire.skipped)).collect()
}

fn line(tick: &str, happened: bool, skipped: u32) -> (String, bool, u32) {
    (tick.to_owned(), happened, skipped)
}

/// How many events there are of a schedule.
fn count_of(bed: &Bed, id: &str) -> String {
    let schema = if bed.database.kind == Kind::Sqlite { "" } else { "windlass." };
    format!("SELECT count(*) FROM {schema}events WHERE scheduled_task_id = '{id}'")
}

/// Lets the database refuse the ticks of these from now on, and of no others.
async fn refuse(bed: &Bed, ids: &[String]) {
    let ids = ids.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ");
    let (drop, create) = match bed.database.kind {
        Kind::Sqlite => (
            "DROP TRIGGER IF EXISTS refused".to_owned(),
            format!(
                "CREATE TRIGGER refused BEFORE INSERT ON schedule_fires WHEN NEW.schedule_id IN ({ids})
                 BEGIN SELECT RAISE(ABORT, 'refused'); END"
            ),
        ),
        Kind::Postgres => (
            "ALTER TABLE windlass.schedule_fires DROP CONSTRAINT IF EXISTS refused".to_owned(),
            format!(
                "ALTER TABLE windlass.schedule_fires ADD CONSTRAINT refused CHECK (schedule_id NOT IN ({ids})) NOT VALID"
            ),
        ),
    };
    bed.database.execute(&drop).await;
    if !ids.is_empty() {
        bed.database.execute(&create).await;
    }
}

/// FireOutcomes until nobody else holds a schedule: the server may still be undoing a transaction that failed.
async fn fire_undisturbed(bed: &Bed) -> (usize, Option<Duration>) {
    let mut all = 0;
    loop {
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        all += fired.fired;
        if fired.next_in != Some(millis(100)) {
            return (all, fired.next_in);
        }
    }
}

conformance! {
    // C11
    async fn missed_ticks_go_by_the_policy(bed) {
        let mut ids = Vec::new();
        for missed in [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All] {
            let new = NewSchedule::new(missed.as_str(), "*/10 * * * *", NewEvent::new("t").payload("{{tick.utc}}").unwrap());
            ids.push(add(&bed.queue, new.missed(missed)).await.id);
        }
        bed.hand.set(at("2025-12-24T11:05:00Z"));
        assert_eq!(fire(&bed.queue).await, 1 + 3);
        assert_eq!(record(&bed.queue, &ids[0]).await, [line("11:00:00", false, 2)]);
        assert_eq!(record(&bed.queue, &ids[1]).await, [line("11:00:00", true, 2)]);
        let all = [line("10:40:00", true, 0), line("10:50:00", true, 0), line("11:00:00", true, 0)];
        assert_eq!(record(&bed.queue, &ids[2]).await, all);
        let got = take_all(&bed.queue).await;
        let ticks: Vec<String> = sorted(got.iter().map(|delivery| delivery.event.payload.get().to_owned()).collect());
        assert_eq!(ticks, ["10:40", "10:50", "11:00", "11:00"].map(|time| format!("\"2025-12-24T{time}:00Z\"")));
        for id in &ids {
            let view = bed.queue.schedule(id).await.unwrap();
            assert_eq!(view.next_at, Some(at("2025-12-24T11:10:00Z")));
            assert_eq!(view.updated_at, bed.now());
        }
        assert_eq!(bed.queue.schedule(&ids[0]).await.unwrap().last_at, None);
        // A short stall loses nothing.
        bed.hand.set(at("2025-12-24T11:11:00Z"));
        assert_eq!(fire(&bed.queue).await, 3);
    }

    async fn what_is_made_up_for_is_bounded(bed) {
        let id = add(&bed.queue, NewSchedule::new("a", "* * * * * *", NewEvent::new("t")).missed(MissedPolicy::All)).await.id;
        bed.advance(secs(365 * 24 * 3600));
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1_000, Some(secs(1))));
        let fires = fires(&bed.queue, &id).await;
        assert_eq!((fires.len(), fires[0].tick_at, fires[0].skipped), (1_000, bed.now(), 0));
        assert_eq!((fires[999].tick_at, fires[999].skipped), (bed.now() - chrono::TimeDelta::seconds(999), 1_000));
    }

    async fn more_than_a_transaction_holds_goes_in_several(bed) {
        let limits = Limits { missed_ticks_max: 2_500, ..Limits::default() };
        let (clock, hand) = windlass::Clock::test(bed.now());
        let queue = Queue::options(&bed.database.url).limits(limits).clock(clock).open().await.unwrap();
        let one = add(&queue, NewSchedule::new("a", "* * * * * *", NewEvent::new("t")).missed(MissedPolicy::All)).await.id;
        let two = add(&queue, NewSchedule::new("b", "* * * * * *", NewEvent::new("t"))).await.id;
        // Seventy of them are more than one transaction should hold.
        let large = NewEvent::new("t").payload(&"x".repeat(1_000_000)).unwrap();
        let three = add(&queue, NewSchedule::new("c", "* * * * * *", large)).await.id;
        hand.advance(MINUTE);
        assert_eq!(fire(&queue).await, 3 * 60);
        for id in [&two, &three] {
            queue.pause_schedule(id).await.unwrap();
        }
        hand.advance(secs(2_400));
        assert_eq!(fire(&queue).await, 2_400);
        let mut ticks = HashSet::new();
        let mut before = None;
        loop {
            let page = queue.schedule_fires(&one, before, 1_000).await.unwrap();
            let Some(last) = page.last() else { break };
            before = Some(last.tick_at);
            assert!(page.iter().all(|fire| fire.event_id.is_some() && ticks.insert(fire.tick_at)));
        }
        assert_eq!((ticks.len(), total(&queue).await), (2_460, 2_460 + 120));
        assert_eq!(queue.schedule(&three).await.unwrap().last_at, Some(at("2025-12-24T10:31:00Z")));
    }

    // C11
    async fn many_schedules_fire_together(bed) {
        for n in 0..1_200 {
            add(&bed.queue, every_minute(&format!("s{n}"))).await;
        }
        bed.advance(MINUTE);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1_200, Some(MINUTE)));
        let events = bed.queue.list(windlass::ListFilter { limit: 1_000, ..Default::default() }).await.unwrap();
        let of: HashSet<_> = events.items.iter().map(|view| view.event.scheduled_task_id.clone()).collect();
        assert_eq!((of.len(), events.total), (1_000, 1_200));
    }

    // C11
    async fn several_at_once_fire_each_tick_once(bed) {
        for n in 0..20 {
            add(&bed.queue, every_minute(&format!("s{n}")).missed(MissedPolicy::All)).await;
        }
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(bed.other().await);
        }
        for _ in 0..5 {
            bed.advance(MINUTE);
            let firing = others.iter().chain(&others).map(|queue| {
                let queue = queue.clone();
                tokio::spawn(async move { fire(&queue).await })
            });
            let mut fired = 0;
            for each in firing.collect::<Vec<_>>() {
                fired += each.await.unwrap();
            }
            assert_eq!(fired, 20);
        }
        assert_eq!((total(&bed.queue).await, fire(&bed.queue).await), (100, 0));
    }

    // C11
    async fn a_clock_that_goes_back_repeats_nothing(bed) {
        let id = add(&bed.queue, every_minute("a").missed(MissedPolicy::All)).await.id;
        bed.advance(MINUTE * 3);
        assert_eq!(fire(&bed.queue).await, 3);
        bed.hand.set(at("2025-12-24T10:30:30Z"));
        assert_eq!(fire(&bed.queue).await, 0);
        // Somebody edits it while the clock is behind: what happened does not happen again.
        let put = bed.queue.put_schedule(&id, every_minute("a").missed(MissedPolicy::All)).await.unwrap();
        assert_eq!(put.next_at, Some(at("2025-12-24T10:31:00Z")));
        bed.hand.set(at("2025-12-24T10:32:10Z"));
        assert_eq!(fire(&bed.queue).await, 0);
        assert_eq!(bed.queue.schedule(&id).await.unwrap().next_at, Some(at("2025-12-24T10:33:00Z")));
        bed.hand.set(at("2025-12-24T10:34:00Z"));
        assert_eq!(fire(&bed.queue).await, 1);
        assert_eq!((record(&bed.queue, &id).await.len(), total(&bed.queue).await), (4, 4));
    }

    // C11
    async fn a_clock_that_was_ahead_stops_no_schedule(bed) {
        for hours in [2, 365 * 24] {
            let (ahead, start) = (secs(hours * 3_600), bed.now());
            let id = add(&bed.queue, every_minute(&format!("{hours} hours"))).await.id;
            let rare = add(&bed.queue, NewSchedule::new(format!("rare {hours}"), "0 0 1 1 *", NewEvent::new("t"))).await;
            let paused = add(&bed.queue, every_minute(&format!("paused {hours}")).paused()).await.id;
            assert_eq!(bed.queue.reschedule_once().await, Ok(0));
            bed.advance(ahead);
            let fired = fire(&bed.queue).await;
            assert!(fired > 0);
            bed.hand.set(start + chrono::TimeDelta::seconds(30));
            assert_eq!(fire(&bed.queue).await, 0);
            let other = bed.other().await;
            assert!(other.reschedule_once().await.unwrap() > 0);
            assert_eq!(other.reschedule_once().await, Ok(0));
            for (id, next_at) in [(&id, Some(start + MINUTE)), (&rare.id, rare.next_at), (&paused, None)] {
                assert_eq!(bed.queue.schedule(id).await.unwrap().next_at, next_at);
            }
            // They go on where they were, …
            for _ in 0..3 {
                bed.advance(MINUTE);
                assert!(fire(&bed.queue).await > 0);
            }
            assert_eq!(bed.queue.schedule(&id).await.unwrap().next_at, Some(start + MINUTE * 4));
            // … and what happened while the clock was ahead does not happen again.
            bed.hand.set(start + ahead);
            fire(&bed.queue).await;
            let fires = fires(&bed.queue, &id).await;
            let ticks: HashSet<Timestamp> = fires.iter().map(|fire| fire.tick_at).collect();
            let events = own::number(&bed.database, &count_of(bed, &id)).await;
            assert_eq!((ticks.len(), events), (fires.len(), fires.len() as i64));
            for id in [&id, &rare.id] {
                bed.queue.remove_schedule(id).await.unwrap();
            }
        }
    }

    async fn nobody_waits_for_what_another_process_works_on(bed) {
        if bed.database.kind == Kind::Sqlite {
            return;
        }
        let (id, free) = (add(&bed.queue, every_minute("a")).await.id, add(&bed.queue, every_minute("b")).await.id);
        let mut other = Own::begin(&bed.database).await;
        other.execute("SELECT FROM windlass.schedules WHERE name = 'a' FOR UPDATE").await;
        bed.advance(MINUTE);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(millis(100))));
        assert_eq!((record(&bed.queue, &free).await.len(), record(&bed.queue, &id).await.len()), (1, 0));
        other.rollback().await;
        assert_eq!(fire(&bed.queue).await, 1);
    }

    async fn nobody_waits_for_a_group_that_somebody_holds(bed) {
        if bed.database.kind == Kind::Sqlite {
            return;
        }
        let grouped = |name: &str| NewSchedule::new(name, "* * * * *", NewEvent::new("t").group("g"));
        let held = [add(&bed.queue, grouped("a")).await.id, add(&bed.queue, grouped("b")).await.id];
        for n in 0..30 {
            add(&bed.queue, every_minute(&n.to_string())).await;
        }
        publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        for before in [0, 4] {
            let mut other = Own::begin(&bed.database).await;
            other.execute("SELECT FROM windlass.event_groups FOR UPDATE").await;
            for _ in 0..2 {
                bed.advance(MINUTE);
                let fired = bed.queue.fire_schedules_once().await.unwrap();
                assert_eq!((fired.fired, fired.next_in), (30, Some(secs(1))));
                let so_far = record(&bed.queue, &held[0]).await.len() + record(&bed.queue, &held[1]).await.len();
                assert_eq!(so_far, before);
            }
            other.rollback().await;
            // The first was late by a minute, and was not missed.
            let fired = bed.queue.fire_schedules_once().await.unwrap();
            assert_eq!((fired.fired, fired.next_in), (4, Some(MINUTE)));
        }
    }

    async fn groups_go_in_order(bed) {
        let new = NewSchedule::new("a", "*/10 * * * * *", NewEvent::new("t").group("g").payload("{{tick.time}}").unwrap());
        add(&bed.queue, new).await;
        bed.advance(secs(30));
        assert_eq!(fire(&bed.queue).await, 3);
        for time in ["10:30:10", "10:30:20", "10:30:30"] {
            let got = claim(&bed.queue, ClaimRequest::new("w").max(9)).await;
            assert_eq!(got.len(), 1);
            assert_eq!(got[0].event.payload::<String>().unwrap(), time);
            done(&bed.queue, &got[0]).await;
        }
    }

    async fn one_that_cannot_be_published_does_not_stop_the_others(bed) {
        let large = NewEvent::new("large").payload(&"x".repeat(100)).unwrap();
        let large = add(&bed.queue, NewSchedule::new("large", "* * * * *", large)).await.id;
        for n in 0..4 {
            add(&bed.queue, NewSchedule::new(format!("s{n}"), "* * * * *", NewEvent::new(format!("t{n}")))).await;
        }
        let limits = Limits { payload_bytes_max: 50, ..Limits::default() };
        let (clock, hand) = windlass::Clock::test(bed.now());
        let queue = Queue::options(&bed.database.url).limits(limits).clock(clock).open().await.unwrap();
        hand.advance(MINUTE);
        assert_eq!(fire(&queue).await, 4);
        // Recorded as passed over, and moved on.
        assert_eq!(record(&queue, &large).await, [line("10:31:00", false, 0)]);
        let why = fires(&queue, &large).await.remove(0).error;
        assert!(why.as_ref().is_some_and(|why| why.starts_with("payload") && why.contains("50 bytes")), "{why:?}");
        assert_eq!((fire(&queue).await, total(&queue).await), (0, 4));
        // By hand, whoever asks is told.
        assert_eq!(queue.run_schedule(&large).await.unwrap_err().code(), "too_large");
        hand.advance(MINUTE);
        assert_eq!(fire(&queue).await, 4);
    }

    async fn a_rule_that_is_not_known_here_is_left_to_others(bed) {
        let (id, fine) = (add(&bed.queue, every_minute("a")).await.id, add(&bed.queue, every_minute("b")).await.id);
        let schema = if bed.database.kind == Kind::Sqlite { "" } else { "windlass." };
        bed.database.execute(&format!("UPDATE {schema}schedules SET timezone = 'Mars/Olympus' WHERE name = 'a'")).await;
        bed.advance(MINUTE);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(secs(1))));
        let view = bed.queue.schedule(&id).await.unwrap();
        assert_eq!((view.next_at, view.next_runs.len()), (Some(bed.now()), 0));
        assert_eq!(record(&bed.queue, &fine).await.len(), 1);
        bed.database.execute(&format!("UPDATE {schema}schedules SET timezone = 'UTC' WHERE name = 'a'")).await;
        assert_eq!(fire(&bed.queue).await, 1);
    }

    async fn those_that_others_know_hold_up_nobody(bed) {
        for n in 0..1_001 {
            add(&bed.queue, every_minute(&format!("s{n}"))).await;
        }
        let schema = if bed.database.kind == Kind::Sqlite { "" } else { "windlass." };
        bed.database.execute(&format!("UPDATE {schema}schedules SET timezone = 'Mars/Olympus'")).await;
        let fine = add(&bed.queue, NewSchedule::new("fine", "*/2 * * * *", NewEvent::new("t"))).await.id;
        bed.advance(MINUTE * 2);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(secs(1))));
        assert_eq!(record(&bed.queue, &fine).await.len(), 1);
    }

    async fn one_that_cannot_be_read_holds_up_nobody(bed) {
        for name in ["a", "b", "c"] {
            add(&bed.queue, every_minute(name)).await;
        }
        bed.database.execute(match bed.database.kind {
            Kind::Sqlite => "PRAGMA ignore_check_constraints = ON; UPDATE schedules SET missed = 'latest' WHERE name = 'b'",
            Kind::Postgres => "ALTER TABLE windlass.schedules DROP CONSTRAINT schedules_missed_check;
                UPDATE windlass.schedules SET missed = 'latest' WHERE name = 'b'",
        })
        .await;
        bed.advance(MINUTE);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (2, Some(secs(1))));
    }

    async fn those_that_fail_hold_up_nobody(bed) {
        let mut bad = Vec::new();
        for n in 0..5 {
            bad.push(add(&bed.queue, every_minute(&format!("bad {n}"))).await.id);
        }
        for n in 0..20 {
            add(&bed.queue, every_minute(&format!("good {n}"))).await;
        }
        refuse(bed, &bad).await;
        // Several that fail for the first time, one after the other, may be taken for a failure of the database.
        let mut fired = 0;
        for _ in 0..3 {
            bed.advance(MINUTE);
            fired += bed.queue.fire_schedules_once().await.map_or(0, |fired| fired.fired);
        }
        assert!(fired >= 20);
        // What others held just then is made up for.
        fire_undisturbed(bed).await;
        for _ in 0..2 {
            bed.advance(MINUTE);
            assert_eq!(fire_undisturbed(bed).await, (20, Some(secs(1))));
            assert_eq!(fire_undisturbed(bed).await, (0, Some(secs(1))));
        }
        refuse(bed, &[]).await;
        assert_eq!(fire_undisturbed(bed).await, (10, Some(MINUTE)));
    }

    async fn a_failure_of_the_database_is_told(bed) {
        let mut all = Vec::new();
        for n in 0..20 {
            all.push(add(&bed.queue, every_minute(&n.to_string())).await.id);
        }
        refuse(bed, &all).await;
        bed.advance(MINUTE);
        assert_eq!(bed.queue.fire_schedules_once().await.unwrap_err().code(), "database");
        refuse(bed, &[]).await;
        assert_eq!(fire(&bed.queue).await, 20);
    }

    async fn the_next_tick_of_all_is_told(bed) {
        assert_eq!(bed.queue.fire_schedules_once().await.unwrap().next_in, None);
        add(&bed.queue, NewSchedule::new("a", "0 12 * * *", NewEvent::new("t"))).await;
        add(&bed.queue, NewSchedule::new("b", "45 * * * *", NewEvent::new("t"))).await;
        add(&bed.queue, NewSchedule::new("c", "* * * * *", NewEvent::new("t")).paused()).await;
        let idle = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((idle.fired, idle.next_in), (0, Some(MINUTE * 15)));
        bed.advance(MINUTE * 15 + MICRO);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(MINUTE * 60 - MICRO)));
    }

    // C11
    async fn clock_changes_neither_skip_nor_repeat_a_day(bed) {
        let payload = json!("{{tick.local}}");
        let new = NewSchedule::new("a", "30 2 * * *", NewEvent::new("t").payload(&payload).unwrap());
        add(&bed.queue, new.timezone("Europe/Berlin")).await;
        let page = bed.queue.schedules(ScheduleFilter::default()).await.unwrap();
        let id = page.items[0].id.clone();
        let mut seen = Vec::new();
        for day in ["2026-03-27", "2026-10-23"] {
            bed.hand.set(at(&format!("{day}T12:00:00Z")));
            bed.queue.pause_schedule(&id).await.unwrap();
            bed.queue.resume_schedule(&id).await.unwrap();
            // Three days, half an hour at a time.
            for _ in 0..144 {
                bed.advance(MINUTE * 30);
                fire(&bed.queue).await;
            }
            let mut got = take_all(&bed.queue).await;
            got.sort_by_key(|delivery| delivery.event.id);
            for delivery in &got {
                done(&bed.queue, delivery).await;
            }
            seen.extend(got.iter().map(|delivery| delivery.event.payload::<String>().unwrap()));
        }
        assert_eq!(seen, [
            "2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00",
            "2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00",
        ]);
    }
}
