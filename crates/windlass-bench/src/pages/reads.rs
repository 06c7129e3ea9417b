//! Measures each read that a page makes.

use std::time::Duration;

use chrono::TimeDelta;
use windlass::{
    DeadLetterFilter, ListFilter, MAIN, NewEvent, Queue, SampleFilter, ScheduleFilter, SearchFilter, Status,
};

use super::fill::{DEAD_EVERY, NEEDLE, TAG, TYPES};
use crate::AnyError;
use crate::latency::{Latencies, Percentiles};

/// Times a read `rounds` times, after one that warms the caches and is not counted.
macro_rules! time {
    ($times:ident, $rounds:ident, $name:expr, $read:expr) => {{
        let _ = $read.await?;
        let mut latencies = Latencies::new($name);
        for _ in 0..$rounds {
            let _ = latencies.time(async { $read.await.map_err(AnyError::from) }).await?;
        }
        $times.extend(latencies.percentiles());
    }};
}

pub async fn measure(queue: &Queue, rounds: u16) -> Result<Vec<Percentiles>, AnyError> {
    let mut times = Vec::new();
    searches(queue, rounds, &mut times).await?;
    lists(queue, rounds, &mut times).await?;
    dead_letters(queue, rounds, &mut times).await?;
    one_event(queue, rounds, &mut times).await?;
    others(queue, rounds, &mut times).await?;
    Ok(times)
}

async fn searches(queue: &Queue, rounds: u16, times: &mut Vec<Percentiles>) -> Result<(), AnyError> {
    let now = queue.clock().now();
    let none = SearchFilter::default;
    let middle = queue.search(none()).await?.next.unwrap_or(2) / 2;
    let of = |status| SearchFilter { status: Some(status), ..none() };
    let searches = [
        ("search", none()),
        ("search, middle", SearchFilter { before: Some(middle), ..none() }),
        ("search PENDING", of(Status::Pending)),
        ("search PROCESSING", of(Status::Processing)),
        ("search COMPLETED", of(Status::Completed)),
        ("search COMPLETED_WITH_ERRORS (none)", of(Status::CompletedWithErrors)),
        ("search FAILED", of(Status::Failed)),
        ("search EXPIRED", of(Status::Expired)),
        ("search CANCELLED", of(Status::Cancelled)),
        ("search type", SearchFilter { types: vec![TYPES[3].into()], ..none() }),
        ("search rare type", SearchFilter { types: vec!["nowhere.*".into()], ..none() }),
        ("search tag", SearchFilter { tags: vec![TAG.into()], ..none() }),
        ("search PENDING of type", SearchFilter { types: vec![TYPES[3].into()], ..of(Status::Pending) }),
        ("search FAILED of rare type", SearchFilter { types: vec!["nowhere.*".into()], ..of(Status::Failed) }),
        ("search text", SearchFilter { text: Some("order_id".into()), ..none() }),
        ("search rare text", SearchFilter { text: Some(NEEDLE.into()), ..none() }),
        ("search number", SearchFilter { text: Some(middle.to_string()), ..none() }),
        ("search group", SearchFilter { group_id: Some("nobody".into()), ..none() }),
        ("search key", SearchFilter { key: Some("nobody".into()), ..none() }),
        ("search an hour", SearchFilter { created_from: Some(now - TimeDelta::hours(1)), ..none() }),
        ("search before yesterday", SearchFilter { created_before: Some(now - TimeDelta::hours(24)), ..none() }),
        ("search of subscription", SearchFilter { subscription: Some("audit".into()), ..none() }),
    ];
    for (name, filter) in searches {
        time!(times, rounds, name, queue.search(filter.clone()));
    }
    Ok(())
}

async fn lists(queue: &Queue, rounds: u16, times: &mut Vec<Percentiles>) -> Result<(), AnyError> {
    let none = ListFilter::default;
    let of = |status| ListFilter { status: Some(status), ..none() };
    let lists = [
        ("list", none()),
        ("list PENDING", of(Status::Pending)),
        ("list FAILED", of(Status::Failed)),
        ("list COMPLETED", of(Status::Completed)),
        ("list type", ListFilter { types: vec![TYPES[3].into()], ..none() }),
    ];
    for (name, filter) in lists {
        // Each takes seconds because it counts an exact total.
        let rounds = rounds.min(5);
        time!(times, rounds, name, queue.list(filter.clone()));
    }
    Ok(())
}

async fn dead_letters(queue: &Queue, rounds: u16, times: &mut Vec<Percentiles>) -> Result<(), AnyError> {
    let none = DeadLetterFilter::default;
    let total = queue.dead_letters(none()).await?.total as usize;
    let letters = [
        ("dead letters", none()),
        ("dead letters, middle", DeadLetterFilter { offset: total / 2, ..none() }),
        ("dead letters, last", DeadLetterFilter { offset: total.saturating_sub(20), ..none() }),
        ("dead letters of type", DeadLetterFilter { types: vec![TYPES[0].into()], ..none() }),
        ("dead letters by reason", DeadLetterFilter { reason: Some("Handler error".into()), ..none() }),
        ("dead letters EXPIRED", DeadLetterFilter { status: Some(Status::Expired), ..none() }),
        ("dead letters of subscription", DeadLetterFilter { subscription: Some(MAIN.into()), ..none() }),
    ];
    for (name, filter) in letters {
        time!(times, rounds, name, queue.dead_letters(filter.clone()));
    }
    Ok(())
}

async fn one_event(queue: &Queue, rounds: u16, times: &mut Vec<Percentiles>) -> Result<(), AnyError> {
    let dead = i64::from(DEAD_EVERY) * 1_000;
    let waiting = queue.publish(NewEvent::new("nobody.asks")).await?.event.id;
    for (names, event_id) in [
        (["get a dead letter", "log of a dead letter", "explain a dead letter"], dead),
        (["get one that waits", "log of one that waits", "explain one that waits"], waiting),
    ] {
        time!(times, rounds, names[0], queue.get(event_id));
        time!(times, rounds, names[1], queue.log(event_id));
        time!(times, rounds, names[2], queue.explain(event_id, MAIN));
    }
    Ok(())
}

async fn others(queue: &Queue, rounds: u16, times: &mut Vec<Percentiles>) -> Result<(), AnyError> {
    let now = queue.clock().now();
    let silence = Duration::from_secs(30);
    let day = SampleFilter { from: Some(now - TimeDelta::hours(24)), ..SampleFilter::default() };
    time!(times, rounds, "stats of an hour", queue.stats(now - TimeDelta::hours(1)));
    time!(times, rounds, "stats of a day", queue.stats(now - TimeDelta::hours(24)));
    time!(times, rounds, "samples of a day", queue.samples(day.clone()));
    time!(times, rounds, "workers", queue.workers(silence));
    time!(times, rounds, "consumers", queue.consumers());
    time!(times, rounds, "nodes", queue.nodes());
    time!(times, rounds, "schedules", queue.schedules(ScheduleFilter::default()));
    time!(times, rounds, "subscriptions", queue.subscriptions());
    time!(times, rounds, "stuck", queue.stuck(silence, 20));
    time!(times, rounds, "tasks", queue.maintenance_tasks());
    Ok(())
}
