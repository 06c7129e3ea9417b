//! Child processes that fire schedules concurrently, with clocks that jump, and are killed: each tick fires once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::TimeDelta;
use windlass::{Clock, FireReport, ListFilter, MissedPolicy, NewEvent, NewSchedule, Policy, Queue, Result, Timestamp};

use crate::bed::Bed;
use crate::process::{Process, record_line, recorded_lines};
use crate::support::*;

/// The approximate start of the clocks of all processes.
fn start() -> Timestamp {
    "2025-12-24T10:30:00Z".parse().unwrap()
}

/// The number of times that each process fires, and how far its clock advances each time.
const STEPS: i64 = 200;
const STEP: TimeDelta = TimeDelta::seconds(3);
/// The largest difference from that time, in seconds.
const JUMP_SECS_MAX: i64 = 45;

/// The body of a child process that fires schedules, by the system clock or by a jumping clock.
pub async fn run_child(url: &str, clock: &str) {
    match clock {
        "system-clock" => fire_forever(url).await,
        _ => fire_with_a_jumping_clock(url).await,
    }
}

async fn fire_forever(url: &str) {
    let queue = Queue::open(url).await.unwrap().in_namespace("ns").unwrap();
    loop {
        let fired = queue.fire_schedules_once().await.unwrap();
        record_line(format!("{} {}", std::process::id(), fired.fired));
        tokio::time::sleep(fired.next_in.unwrap_or(secs(1))).await;
    }
}

async fn fire_with_a_jumping_clock(url: &str) {
    let (clock, test_clock) = Clock::test(start());
    let queue = Queue::options(url).clock(clock).open().await.unwrap().in_namespace("ns").unwrap();
    for step in 0..STEPS {
        let jump = TimeDelta::microseconds(fastrand::i64(-JUMP_SECS_MAX * 1_000_000..JUMP_SECS_MAX * 1_000_000));
        test_clock.set(start() + STEP * step as i32 + jump);
        let fired = fire_with_retry(&queue).await;
        record_line(format!("{} {}", std::process::id(), fired.fired));
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
    }
    queue.close().await;
}

/// Fires, and retries while the SQLite file is locked by other processes.
async fn fire_with_retry(queue: &Queue) -> FireReport {
    loop {
        let fired: Result<FireReport> = queue.fire_schedules_once().await;
        match fired {
            Err(error) if error.is_temporary() => tokio::time::sleep(millis(5)).await,
            fired => return fired.unwrap(),
        }
    }
}

/// The ticks of each schedule, from the payloads of its events. Panics if a tick fired twice.
async fn fired_ticks(queue: &Queue) -> BTreeMap<String, BTreeSet<Timestamp>> {
    let mut ticks: BTreeMap<String, BTreeSet<Timestamp>> = BTreeMap::new();
    let mut seen = 0;
    loop {
        let filter = ListFilter { limit: 1_000, offset: seen, ..Default::default() };
        let page = queue.list(filter).await.unwrap();
        if page.items.is_empty() {
            return ticks;
        }
        seen += page.items.len();
        for view in page.items {
            assert_eq!(view.deliveries.len(), 1, "event {} does not have exactly one delivery", view.event.id);
            let tick: Timestamp = view.event.payload::<String>().unwrap().parse().unwrap();
            let id = view.event.scheduled_task_id.clone().unwrap();
            assert!(ticks.entry(id).or_default().insert(tick), "{tick} fired twice: event {}", view.event.id);
        }
    }
}

/// The recorded fires of a schedule: the ticks with an event, and the number of all ticks.
async fn recorded_ticks(queue: &Queue, id: &str) -> (BTreeSet<Timestamp>, u32) {
    let (mut ticks, mut count, mut before) = (BTreeSet::new(), 0, None);
    loop {
        let page = queue.schedule_fires(id, before, 1_000).await.unwrap();
        let Some(last) = page.last() else { return (ticks, count) };
        before = Some(last.tick_at);
        count += page.iter().map(|fire| 1 + fire.skipped).sum::<u32>();
        ticks.extend(page.iter().filter(|fire| fire.event_id.is_some()).map(|fire| fire.tick_at));
    }
}

fn schedule(name: &str, cron: &str, missed: MissedPolicy) -> NewSchedule {
    NewSchedule::new(name, cron, NewEvent::new("tick").payload("{{tick.utc}}").unwrap()).missed(missed)
}

async fn namespace(queue: &Queue) -> Queue {
    queue.put_namespace("ns", Some(Policy::default().into()), None).await.unwrap()
}

fn fire_count(bed: &Bed) -> usize {
    recorded_lines(bed).iter().map(|line| line.split_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}

/// Starts eight processes, and kills three of them while they fire.
async fn race_processes(bed: &Bed) {
    let mut children: Vec<Process> = (0..8).map(|_| Process::start(bed, "fire jumping-clock")).collect();
    for (killed, enough) in [(0, 200), (1, 600), (2, 1_000)] {
        eventually("the processes fire", async || fire_count(bed) >= enough).await;
        children[killed].kill();
    }
    let rest = children.split_off(3);
    let statuses = tokio::task::spawn_blocking(|| rest.into_iter().map(|mut child| child.wait()).collect::<Vec<_>>());
    assert!(statuses.await.unwrap().iter().all(|status| status.success()));
}

conformance! {
    // C11
    async fn eight_processes_with_jumping_clocks_fire_each_tick_once(bed) {
        let queue = namespace(&bed.queue).await;
        let mut schedules = Vec::new();
        for missed in [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All] {
            for (cron, every) in [("* * * * * *", 1), ("* * * * *", 60), ("*/7 * * * * *", 7)] {
                let view = queue.add_schedule(schedule(&format!("{cron} {missed:?}"), cron, missed)).await.unwrap();
                schedules.push((view, missed, every));
            }
        }
        race_processes(bed).await;
        let end = start() + STEP * STEPS as i32 + TimeDelta::seconds(JUMP_SECS_MAX);
        bed.test_clock.set(end);
        fire_with_retry(&queue).await;
        let fired = fired_ticks(&queue).await;
        for (view, missed, every) in schedules {
            let all = queue.preview_schedule(&view.cron, "UTC", Some(start()), 1).await.unwrap();
            assert_eq!(all[0], view.next_at.unwrap());
            let expected = expected(all[0], end, every);
            let of_events = fired.get(&view.id).cloned().unwrap_or_default();
            let (on_record, count) = recorded_ticks(&queue, &view.id).await;
            assert_eq!(of_events, on_record, "{}", view.name);
            assert!(of_events.is_subset(&expected), "{}", view.name);
            // Each tick fired, or was skipped and counted.
            assert_eq!(count as usize, expected.len(), "{}", view.name);
            if missed == MissedPolicy::All {
                assert_eq!(of_events, expected, "{}", view.name);
            }
        }
    }

    // C11
    async fn two_processes_fire_each_tick_once(bed) {
        let queue = namespace(&bed.real_time_queue().await).await;
        let id = queue.add_schedule(schedule("every second", "* * * * * *", MissedPolicy::All)).await.unwrap().id;
        let mut children = [0, 1].map(|_| Process::start(bed, "fire system-clock"));
        eventually("five ticks have fired", async || recorded_ticks(&queue, &id).await.1 >= 5).await;
        children.iter_mut().for_each(Process::kill);
        // The server may still be storing events of the killed processes.
        eventually("no more events arrive", async || {
            let before = fired_ticks(&queue).await;
            tokio::time::sleep(millis(50)).await;
            before == fired_ticks(&queue).await
        })
        .await;
        let (on_record, count) = recorded_ticks(&queue, &id).await;
        let of_events = fired_ticks(&queue).await.remove(&id).unwrap();
        assert_eq!((&of_events, of_events.len()), (&on_record, count as usize));
        let (first, last) = (*on_record.first().unwrap(), *on_record.last().unwrap());
        assert_eq!(of_events, expected(first, last, 1));
    }
}

/// The expected ticks: every `every` seconds of each minute.
fn expected(first: Timestamp, last: Timestamp, every: i64) -> BTreeSet<Timestamp> {
    let seconds = (0..=(last - first).num_seconds()).map(|n| first + TimeDelta::seconds(n));
    seconds.filter(|tick| (tick.timestamp() % 60) % every == 0).collect()
}
