//! Schedules fired by real processes at once, with clocks that jump, and some of which are killed: each tick happens
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::TimeDelta;
use windlass::{Clock, FireReport, ListFilter, MissedPolicy, NewEvent, NewSchedule, Policy, Queue, Result, Timestamp};

use crate::bed::Bed;
use crate::process::{Process, note, notes};
use crate::support::*;

/// Where the clocks of all processes begin, more or less.
fn start() -> Timestamp {
    "2025-12-24T10:30:00Z".parse().unwrap()
}

/// How often each process fires, and how far its clock goes on each time.
const STEPS: i64 = 200;
const STEP: TimeDelta = TimeDelta::seconds(3);
/// How far from that it may be.
const JUMP: i64 = 45;

/// A process that fires: by the system's clock, or by one of its own.
pub async fn child(url: &str, clock: &str) {
    match clock {
        "by the system's clock" => fire_without_end(url).await,
        _ => fire_with_a_jumping_clock(url).await,
    }
}

async fn fire_without_end(url: &str) {
    let queue = Queue::open(url).await.unwrap().in_namespace("ns").unwrap();
    loop {
        let fired = queue.fire_schedules_once().await.unwrap();
        note(format!("{} {}", std::process::id(), fired.fired));
        tokio::time::sleep(fired.next_in.unwrap_or(secs(1))).await;
    }
}

async fn fire_with_a_jumping_clock(url: &str) {
    let (clock, hand) = Clock::test(start());
    let queue = Queue::options(url).clock(clock).open().await.unwrap().in_namespace("ns").unwrap();
    for step in 0..STEPS {
        let jump = TimeDelta::microseconds(fastrand::i64(-JUMP * 1_000_000..JUMP * 1_000_000));
        hand.set(start() + STEP * step as i32 + jump);
        let fired = patient(&queue).await;
        note(format!("{} {}", std::process::id(), fired.fired));
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
    }
    queue.close().await;
}

/// With so many processes, a file may be locked for long.
async fn patient(queue: &Queue) -> FireReport {
    loop {
        let fired: Result<FireReport> = queue.fire_schedules_once().await;
        match fired {
            Err(error) if error.is_temporary() => tokio::time::sleep(millis(5)).await,
            fired => return fired.unwrap(),
        }
    }
}

/// The ticks of the events of each schedule, as their payloads tell; nothing may be there twice.
async fn ticks(queue: &Queue) -> BTreeMap<String, BTreeSet<Timestamp>> {
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
            assert_eq!(view.deliveries.len(), 1, "event {} is half there", view.event.id);
            let tick: Timestamp = view.event.payload::<String>().unwrap().parse().unwrap();
            let id = view.event.scheduled_task_id.clone().unwrap();
            assert!(ticks.entry(id).or_default().insert(tick), "{tick} happened twice: event {}", view.event.id);
        }
    }
}

/// All that is on record of a schedule: its ticks with an event, and how many it was about in all.
async fn record(queue: &Queue, id: &str) -> (BTreeSet<Timestamp>, u32) {
    let (mut ticks, mut about, mut before) = (BTreeSet::new(), 0, None);
    loop {
        let page = queue.schedule_fires(id, before, 1_000).await.unwrap();
        let Some(last) = page.last() else { return (ticks, about) };
        before = Some(last.tick_at);
        about += page.iter().map(|fire| 1 + fire.skipped).sum::<u32>();
        ticks.extend(page.iter().filter(|fire| fire.event_id.is_some()).map(|fire| fire.tick_at));
    }
}

fn schedule(name: &str, cron: &str, missed: MissedPolicy) -> NewSchedule {
    NewSchedule::new(name, cron, NewEvent::new("tick").payload("{{tick.utc}}").unwrap()).missed(missed)
}

async fn namespace(queue: &Queue) -> Queue {
    queue.put_namespace("ns", Some(Policy::default().into()), None).await.unwrap()
}

fn fired(bed: &Bed) -> usize {
    notes(bed).iter().map(|line| line.split_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}

/// Starts eight, and kills three of them in the middle of it.
async fn let_them_race(bed: &Bed) {
    let mut children: Vec<Process> = (0..8).map(|_| Process::start(bed, "fire by a clock of its own")).collect();
    for (killed, enough) in [(0, 200), (1, 600), (2, 1_000)] {
        eventually("they fire", async || fired(bed) >= enough).await;
        children[killed].kill();
    }
    let rest = children.split_off(3);
    let ended = tokio::task::spawn_blocking(|| rest.into_iter().map(|mut child| child.wait()).collect::<Vec<_>>());
    assert!(ended.await.unwrap().iter().all(|ended| ended.success()));
}

conformance! {
    // C11
    async fn each_tick_happens_once_whatever_the_clocks_of_eight_processes_do(bed) {
        let queue = namespace(&bed.queue).await;
        let mut schedules = Vec::new();
        for missed in [MissedPolicy::Skip, MissedPolicy::Once, MissedPolicy::All] {
            for (cron, every) in [("* * * * * *", 1), ("* * * * *", 60), ("*/7 * * * * *", 7)] {
                let view = queue.add_schedule(schedule(&format!("{cron} {missed:?}"), cron, missed)).await.unwrap();
                schedules.push((view, missed, every));
            }
        }
        let_them_race(bed).await;
        let end = start() + STEP * STEPS as i32 + TimeDelta::seconds(JUMP);
        bed.hand.set(end);
        patient(&queue).await;
        let happened = ticks(&queue).await;
        for (view, missed, every) in schedules {
            let all = queue.preview_schedule(&view.cron, "UTC", Some(start()), 1).await.unwrap();
            assert_eq!(all[0], view.next_at.unwrap());
            let expected = expected(all[0], end, every);
            let of_events = happened.get(&view.id).cloned().unwrap_or_default();
            let (on_record, about) = record(&queue, &view.id).await;
            assert_eq!(of_events, on_record, "{}", view.name);
            assert!(of_events.is_subset(&expected), "{}", view.name);
            // Each tick happened, or was passed over and counted.
            assert_eq!(about as usize, expected.len(), "{}", view.name);
            if missed == MissedPolicy::All {
                assert_eq!(of_events, expected, "{}", view.name);
            }
        }
    }

    // C11
    async fn two_processes_fire_by_the_systems_clock(bed) {
        let queue = namespace(&bed.real_time().await).await;
        let id = queue.add_schedule(schedule("every second", "* * * * * *", MissedPolicy::All)).await.unwrap().id;
        let mut children = [0, 1].map(|_| Process::start(bed, "fire by the system's clock"));
        eventually("five ticks happened", async || record(&queue, &id).await.1 >= 5).await;
        children.iter_mut().for_each(Process::kill);
        // The server may still be storing what they sent.
        eventually("all is still", async || {
            let before = ticks(&queue).await;
            tokio::time::sleep(millis(50)).await;
            before == ticks(&queue).await
        })
        .await;
        let (on_record, about) = record(&queue, &id).await;
        let of_events = ticks(&queue).await.remove(&id).unwrap();
        assert_eq!((&of_events, of_events.len()), (&on_record, about as usize));
        let (first, last) = (*on_record.first().unwrap(), *on_record.last().unwrap());
        assert_eq!(of_events, expected(first, last, 1));
    }
}

/// Every so many seconds; every seven, from the full minute on.
fn expected(first: Timestamp, last: Timestamp, every: i64) -> BTreeSet<Timestamp> {
    let seconds = (0..=(last - first).num_seconds()).map(|n| first + TimeDelta::seconds(n));
    seconds.filter(|tick| (tick.timestamp() % 60) % every == 0).collect()
}
