//! Firing schedules: every tick fires once, missed ticks follow the policy, and one schedule does not delay another.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;
use windlass::{ClaimRequest, Limits, MissedPolicy, NewEvent, NewSchedule, Queue, ScheduleFilter, Timestamp};
use windlass_testkit::Kind;

use super::schedules::{add, at, every_minute, fire, fires};
use crate::bed::Bed;
use crate::open_transaction::{self, OpenTransaction};
use crate::support::*;

/// The recorded ticks, oldest first: time, whether an event was published, and the number of ticks skipped before.
async fn recorded_ticks(queue: &Queue, id: &str) -> Vec<(String, bool, u32)> {
    let time = |tick: Timestamp| tick.format("%H:%M:%S").to_string();
    let fires = fires(queue, id).await.into_iter().rev();
    fires.map(|fire| (time(fire.tick_at), fire.event_id.is_some(), fire.skipped)).collect()
}

fn tick(tick: &str, published: bool, skipped: u32) -> (String, bool, u32) {
    (tick.to_owned(), published, skipped)
}

/// A statement that counts the events of a schedule.
fn count_events_sql(bed: &Bed, id: &str) -> String {
    let schema = if bed.database.kind == Kind::Sqlite { "" } else { "windlass." };
    format!("SELECT count(*) FROM {schema}events WHERE scheduled_task_id = '{id}'")
}

/// Makes the database reject the fires of these schedules only, from now on.
async fn reject_fires_of(bed: &Bed, ids: &[String]) {
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

/// Fires until no schedule is locked: the server may still be rolling back a failed transaction.
async fn fire_until_unlocked(bed: &Bed) -> (usize, Option<Duration>) {
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
    async fn missed_ticks_follow_the_policy(bed) {
        let mut ids = Vec::new();
        for missed in [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All] {
            let new = NewSchedule::new(missed.as_str(), "*/10 * * * *", NewEvent::new("t").payload("{{tick.utc}}").unwrap());
            ids.push(add(&bed.queue, new.missed(missed)).await.id);
        }
        bed.test_clock.set(at("2025-12-24T11:05:00Z"));
        assert_eq!(fire(&bed.queue).await, 1 + 3);
        assert_eq!(recorded_ticks(&bed.queue, &ids[0]).await, [tick("11:00:00", false, 2)]);
        assert_eq!(recorded_ticks(&bed.queue, &ids[1]).await, [tick("11:00:00", true, 2)]);
        let all = [tick("10:40:00", true, 0), tick("10:50:00", true, 0), tick("11:00:00", true, 0)];
        assert_eq!(recorded_ticks(&bed.queue, &ids[2]).await, all);
        let got = claim_all(&bed.queue).await;
        let ticks: Vec<String> = sorted(got.iter().map(|delivery| delivery.event.payload.get().to_owned()).collect());
        assert_eq!(ticks, ["10:40", "10:50", "11:00", "11:00"].map(|time| format!("\"2025-12-24T{time}:00Z\"")));
        for id in &ids {
            let view = bed.queue.schedule(id).await.unwrap();
            assert_eq!(view.next_at, Some(at("2025-12-24T11:10:00Z")));
            assert_eq!(view.updated_at, bed.now());
        }
        assert_eq!(bed.queue.schedule(&ids[0]).await.unwrap().last_at, None);
        // A short delay loses no tick.
        bed.test_clock.set(at("2025-12-24T11:11:00Z"));
        assert_eq!(fire(&bed.queue).await, 3);
    }

    async fn number_of_missed_ticks_is_limited(bed) {
        let id = add(&bed.queue, NewSchedule::new("a", "* * * * * *", NewEvent::new("t")).missed(MissedPolicy::All)).await.id;
        bed.advance(secs(365 * 24 * 3600));
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1_000, Some(secs(1))));
        let fires = fires(&bed.queue, &id).await;
        assert_eq!((fires.len(), fires[0].tick_at, fires[0].skipped), (1_000, bed.now(), 0));
        assert_eq!((fires[999].tick_at, fires[999].skipped), (bed.now() - chrono::TimeDelta::seconds(999), 1_000));
    }

    async fn many_missed_ticks_fire_in_several_transactions(bed) {
        let limits = Limits { missed_ticks_max: 2_500, ..Limits::default() };
        let (clock, test_clock) = windlass::Clock::test(bed.now());
        let queue = Queue::options(&bed.database.url).limits(limits).clock(clock).open().await.unwrap();
        let one = add(&queue, NewSchedule::new("a", "* * * * * *", NewEvent::new("t")).missed(MissedPolicy::All)).await.id;
        let two = add(&queue, NewSchedule::new("b", "* * * * * *", NewEvent::new("t"))).await.id;
        // The 60 events exceed the size limit of one transaction.
        let large = NewEvent::new("t").payload(&"x".repeat(1_000_000)).unwrap();
        let three = add(&queue, NewSchedule::new("c", "* * * * * *", large)).await.id;
        test_clock.advance(MINUTE);
        assert_eq!(fire(&queue).await, 3 * 60);
        for id in [&two, &three] {
            queue.pause_schedule(id).await.unwrap();
        }
        test_clock.advance(secs(2_400));
        assert_eq!(fire(&queue).await, 2_400);
        let mut ticks = HashSet::new();
        let mut before = None;
        loop {
            let page = queue.schedule_fires(&one, before, 1_000).await.unwrap();
            let Some(last) = page.last() else { break };
            before = Some(last.tick_at);
            assert!(page.iter().all(|fire| fire.event_id.is_some() && ticks.insert(fire.tick_at)));
        }
        assert_eq!((ticks.len(), count_events(&queue).await), (2_460, 2_460 + 120));
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
    async fn concurrent_processes_fire_each_tick_once(bed) {
        for n in 0..20 {
            add(&bed.queue, every_minute(&format!("s{n}")).missed(MissedPolicy::All)).await;
        }
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(bed.second_queue().await);
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
        assert_eq!((count_events(&bed.queue).await, fire(&bed.queue).await), (100, 0));
    }

    // C11
    async fn clock_set_back_repeats_no_tick(bed) {
        let id = add(&bed.queue, every_minute("a").missed(MissedPolicy::All)).await.id;
        bed.advance(MINUTE * 3);
        assert_eq!(fire(&bed.queue).await, 3);
        bed.test_clock.set(at("2025-12-24T10:30:30Z"));
        assert_eq!(fire(&bed.queue).await, 0);
        // An edit while the clock is behind does not repeat ticks that have fired.
        let put = bed.queue.put_schedule(&id, every_minute("a").missed(MissedPolicy::All)).await.unwrap();
        assert_eq!(put.next_at, Some(at("2025-12-24T10:31:00Z")));
        bed.test_clock.set(at("2025-12-24T10:32:10Z"));
        assert_eq!(fire(&bed.queue).await, 0);
        assert_eq!(bed.queue.schedule(&id).await.unwrap().next_at, Some(at("2025-12-24T10:33:00Z")));
        bed.test_clock.set(at("2025-12-24T10:34:00Z"));
        assert_eq!(fire(&bed.queue).await, 1);
        assert_eq!((recorded_ticks(&bed.queue, &id).await.len(), count_events(&bed.queue).await), (4, 4));
    }

    // C11
    async fn clock_that_ran_ahead_stops_no_schedule(bed) {
        for hours in [2, 365 * 24] {
            let (ahead, start) = (secs(hours * 3_600), bed.now());
            let id = add(&bed.queue, every_minute(&format!("{hours} hours"))).await.id;
            let rare = add(&bed.queue, NewSchedule::new(format!("rare {hours}"), "0 0 1 1 *", NewEvent::new("t"))).await;
            let paused = add(&bed.queue, every_minute(&format!("paused {hours}")).paused()).await.id;
            assert_eq!(bed.queue.reschedule_once().await, Ok(0));
            bed.advance(ahead);
            let fired = fire(&bed.queue).await;
            assert!(fired > 0);
            bed.test_clock.set(start + chrono::TimeDelta::seconds(30));
            assert_eq!(fire(&bed.queue).await, 0);
            let other = bed.second_queue().await;
            assert!(other.reschedule_once().await.unwrap() > 0);
            assert_eq!(other.reschedule_once().await, Ok(0));
            for (id, next_at) in [(&id, Some(start + MINUTE)), (&rare.id, rare.next_at), (&paused, None)] {
                assert_eq!(bed.queue.schedule(id).await.unwrap().next_at, next_at);
            }
            // The schedules continue at the current time, …
            for _ in 0..3 {
                bed.advance(MINUTE);
                assert!(fire(&bed.queue).await > 0);
            }
            assert_eq!(bed.queue.schedule(&id).await.unwrap().next_at, Some(start + MINUTE * 4));
            // … and ticks that fired while the clock was ahead are not repeated.
            bed.test_clock.set(start + ahead);
            fire(&bed.queue).await;
            let fires = fires(&bed.queue, &id).await;
            let ticks: HashSet<Timestamp> = fires.iter().map(|fire| fire.tick_at).collect();
            let events = open_transaction::query_number(&bed.database, &count_events_sql(bed, &id)).await;
            assert_eq!((ticks.len(), events), (fires.len(), fires.len() as i64));
            for id in [&id, &rare.id] {
                bed.queue.remove_schedule(id).await.unwrap();
            }
        }
    }

    async fn schedule_locked_by_another_process_is_skipped(bed) {
        if bed.database.kind == Kind::Sqlite {
            return;
        }
        let (id, free) = (add(&bed.queue, every_minute("a")).await.id, add(&bed.queue, every_minute("b")).await.id);
        let mut other = OpenTransaction::begin(&bed.database).await;
        other.execute("SELECT FROM windlass.schedules WHERE name = 'a' FOR UPDATE").await;
        bed.advance(MINUTE);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(millis(100))));
        let recorded = (recorded_ticks(&bed.queue, &free).await.len(), recorded_ticks(&bed.queue, &id).await.len());
        assert_eq!(recorded, (1, 0));
        other.rollback().await;
        assert_eq!(fire(&bed.queue).await, 1);
    }

    async fn locked_group_does_not_delay_other_schedules(bed) {
        if bed.database.kind == Kind::Sqlite {
            return;
        }
        let grouped = |name: &str| NewSchedule::new(name, "* * * * *", NewEvent::new("t").group("g"));
        let grouped_ids = [add(&bed.queue, grouped("a")).await.id, add(&bed.queue, grouped("b")).await.id];
        for n in 0..30 {
            add(&bed.queue, every_minute(&n.to_string())).await;
        }
        publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        for before in [0, 4] {
            let mut other = OpenTransaction::begin(&bed.database).await;
            other.execute("SELECT FROM windlass.event_groups FOR UPDATE").await;
            for _ in 0..2 {
                bed.advance(MINUTE);
                let fired = bed.queue.fire_schedules_once().await.unwrap();
                assert_eq!((fired.fired, fired.next_in), (30, Some(secs(1))));
                let mut recorded = recorded_ticks(&bed.queue, &grouped_ids[0]).await;
                recorded.extend(recorded_ticks(&bed.queue, &grouped_ids[1]).await);
                assert_eq!(recorded.len(), before);
            }
            other.rollback().await;
            // The earlier tick is one minute late and is not missed.
            let fired = bed.queue.fire_schedules_once().await.unwrap();
            assert_eq!((fired.fired, fired.next_in), (4, Some(MINUTE)));
        }
    }

    async fn ticks_of_a_group_are_processed_in_order(bed) {
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

    async fn unpublishable_tick_does_not_stop_other_schedules(bed) {
        let large = NewEvent::new("large").payload(&"x".repeat(100)).unwrap();
        let large = add(&bed.queue, NewSchedule::new("large", "* * * * *", large)).await.id;
        for n in 0..4 {
            add(&bed.queue, NewSchedule::new(format!("s{n}"), "* * * * *", NewEvent::new(format!("t{n}")))).await;
        }
        let limits = Limits { payload_bytes_max: 50, ..Limits::default() };
        let (clock, test_clock) = windlass::Clock::test(bed.now());
        let queue = Queue::options(&bed.database.url).limits(limits).clock(clock).open().await.unwrap();
        test_clock.advance(MINUTE);
        assert_eq!(fire(&queue).await, 4);
        // The tick is recorded without an event, and the schedule moves on.
        assert_eq!(recorded_ticks(&queue, &large).await, [tick("10:31:00", false, 0)]);
        let error = fires(&queue, &large).await.remove(0).error;
        let error = error.expect("the tick has an error");
        assert!(error.starts_with("payload") && error.contains("50 bytes"), "{error}");
        assert_eq!((fire(&queue).await, count_events(&queue).await), (0, 4));
        // A manual run returns the error.
        assert_eq!(queue.run_schedule(&large).await.unwrap_err().code(), "too_large");
        test_clock.advance(MINUTE);
        assert_eq!(fire(&queue).await, 4);
    }

    async fn schedule_with_unknown_timezone_is_left_to_others(bed) {
        let (id, fine) = (add(&bed.queue, every_minute("a")).await.id, add(&bed.queue, every_minute("b")).await.id);
        let schema = if bed.database.kind == Kind::Sqlite { "" } else { "windlass." };
        bed.database.execute(&format!("UPDATE {schema}schedules SET timezone = 'Mars/Olympus' WHERE name = 'a'")).await;
        bed.advance(MINUTE);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(secs(1))));
        let view = bed.queue.schedule(&id).await.unwrap();
        assert_eq!((view.next_at, view.next_runs.len()), (Some(bed.now()), 0));
        assert_eq!(recorded_ticks(&bed.queue, &fine).await.len(), 1);
        bed.database.execute(&format!("UPDATE {schema}schedules SET timezone = 'UTC' WHERE name = 'a'")).await;
        assert_eq!(fire(&bed.queue).await, 1);
    }

    async fn many_unknown_timezones_do_not_delay_other_schedules(bed) {
        for n in 0..1_001 {
            add(&bed.queue, every_minute(&format!("s{n}"))).await;
        }
        let schema = if bed.database.kind == Kind::Sqlite { "" } else { "windlass." };
        bed.database.execute(&format!("UPDATE {schema}schedules SET timezone = 'Mars/Olympus'")).await;
        let fine = add(&bed.queue, NewSchedule::new("fine", "*/2 * * * *", NewEvent::new("t"))).await.id;
        bed.advance(MINUTE * 2);
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(secs(1))));
        assert_eq!(recorded_ticks(&bed.queue, &fine).await.len(), 1);
    }

    async fn unreadable_schedule_does_not_delay_others(bed) {
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

    async fn failing_schedules_do_not_delay_others(bed) {
        let mut bad = Vec::new();
        for n in 0..5 {
            bad.push(add(&bed.queue, every_minute(&format!("bad {n}"))).await.id);
        }
        for n in 0..20 {
            add(&bed.queue, every_minute(&format!("good {n}"))).await;
        }
        reject_fires_of(bed, &bad).await;
        // Several consecutive schedules that fail for the first time may be treated as a database failure.
        let mut fired = 0;
        for _ in 0..3 {
            bed.advance(MINUTE);
            fired += bed.queue.fire_schedules_once().await.map_or(0, |fired| fired.fired);
        }
        assert!(fired >= 20);
        // Fire the schedules that were locked meanwhile.
        fire_until_unlocked(bed).await;
        for _ in 0..2 {
            bed.advance(MINUTE);
            assert_eq!(fire_until_unlocked(bed).await, (20, Some(secs(1))));
            assert_eq!(fire_until_unlocked(bed).await, (0, Some(secs(1))));
        }
        reject_fires_of(bed, &[]).await;
        assert_eq!(fire_until_unlocked(bed).await, (10, Some(MINUTE)));
    }

    async fn database_failure_is_reported(bed) {
        let mut all = Vec::new();
        for n in 0..20 {
            all.push(add(&bed.queue, every_minute(&n.to_string())).await.id);
        }
        reject_fires_of(bed, &all).await;
        bed.advance(MINUTE);
        // A loaded server may exceed the lock timeout; then the schedules are skipped and tried again after 100 ms.
        let error = loop {
            match bed.queue.fire_schedules_once().await {
                Ok(skipped) => assert_eq!((skipped.fired, skipped.next_in), (0, Some(millis(100)))),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), "database");
        reject_fires_of(bed, &[]).await;
        assert_eq!(fire_until_unlocked(bed).await.0, 20);
    }

    async fn next_tick_of_all_schedules_is_reported(bed) {
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
    async fn daylight_saving_neither_skips_nor_repeats_a_day(bed) {
        let payload = json!("{{tick.local}}");
        let new = NewSchedule::new("a", "30 2 * * *", NewEvent::new("t").payload(&payload).unwrap());
        add(&bed.queue, new.timezone("Europe/Berlin")).await;
        let page = bed.queue.schedules(ScheduleFilter::default()).await.unwrap();
        let id = page.items[0].id.clone();
        let mut seen = Vec::new();
        for day in ["2026-03-27", "2026-10-23"] {
            bed.test_clock.set(at(&format!("{day}T12:00:00Z")));
            bed.queue.pause_schedule(&id).await.unwrap();
            bed.queue.resume_schedule(&id).await.unwrap();
            // Three days in steps of half an hour.
            for _ in 0..144 {
                bed.advance(MINUTE * 30);
                fire(&bed.queue).await;
            }
            let mut got = claim_all(&bed.queue).await;
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
