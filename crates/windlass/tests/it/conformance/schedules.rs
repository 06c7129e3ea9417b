//! Schedules: added, edited, paused, run manually and removed, and the events they publish.

use std::time::Duration;

use serde_json::json;
use windlass::{
    Error, Limits, MissedPolicy, NewEvent, NewSchedule, PREVIEW_MAX, Policy, Queue, ScheduleFilter, ScheduleFire,
    ScheduleRunner, ScheduleView, Timestamp,
};

use crate::support::*;

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a timestamp"))
}

/// A schedule with this name that publishes an event of type `tick` every minute.
pub fn every_minute(name: &str) -> NewSchedule {
    NewSchedule::new(name, "* * * * *", NewEvent::new("tick"))
}

pub async fn add(queue: &Queue, new: NewSchedule) -> ScheduleView {
    queue.add_schedule(new).await.expect("the schedule can be added")
}

/// Fires due schedules; returns the number of published events.
pub async fn fire(queue: &Queue) -> usize {
    queue.fire_schedules_once().await.expect("schedules can be fired").fired
}

pub async fn fires(queue: &Queue, id: &str) -> Vec<ScheduleFire> {
    queue.schedule_fires(id, None, 1_000).await.expect("fires can be shown")
}

async fn names(queue: &Queue, filter: ScheduleFilter) -> (Vec<String>, u64) {
    let page = queue.schedules(filter).await.expect("schedules can be listed");
    (page.items.into_iter().map(|view| view.name).collect(), page.total)
}

/// The field that the error names.
async fn refused_field(queue: &Queue, new: NewSchedule) -> &'static str {
    match queue.add_schedule(new).await {
        Err(Error::Invalid { field, .. } | Error::TooLarge { field, .. }) => field,
        other => panic!("not refused: {other:?}"),
    }
}

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

conformance! {
    // C11
    async fn schedule_shows_all_its_fields(bed) {
        let event = NewEvent::new("report.due").payload(&json!({ "day": "{{tick.date}}" })).unwrap()
            .title("Report of {{tick.date}}").description("Daily.").tags(["b", "a"]).group("g").priority(3)
            .max_retries(7).metadata(&json!({ "m": 1 })).unwrap().expires_in(secs(90));
        let new = NewSchedule::new("daily report", "0 6 * * MON-FRI", event).timezone("Europe/Berlin")
            .missed(MissedPolicy::All);
        let added = add(&bed.queue, new).await;
        let expected = json!({
            "id": added.id, "name": "daily report", "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin",
            "type": "report.due", "title": "Report of {{tick.date}}", "description": "Daily.", "tags": "b,a",
            "payload": { "day": "{{tick.date}}" }, "group_id": "g", "priority": 3, "max_retries": 7,
            "metadata": { "m": 1 }, "expires_in_ms": 90_000, "missed": "all", "runner": "windlass", "active": true,
            "next_at": "2025-12-25T05:00:00Z",
            "next_runs": ["2025-12-25T05:00:00Z", "2025-12-26T05:00:00Z", "2025-12-29T05:00:00Z",
                          "2025-12-30T05:00:00Z", "2025-12-31T05:00:00Z"],
            "last_at": null, "last_event_id": null,
            "created_at": "2025-12-24T10:30:00Z", "updated_at": "2025-12-24T10:30:00Z",
        });
        assert_eq!(serde_json::to_value(&added).unwrap(), expected);
        let other = bed.second_queue().await;
        assert_eq!(serde_json::to_value(other.schedule(&added.id).await.unwrap()).unwrap(), expected);
        assert_eq!(serde_json::to_value(other.schedule(&added.id.to_uppercase()).await.unwrap()).unwrap(), expected);
        let listed = other.schedules(ScheduleFilter::default()).await.unwrap();
        assert_eq!((serde_json::to_value(&listed.items).unwrap(), listed.total), (json!([expected]), 1));
        assert_eq!(added.runner, ScheduleRunner::Windlass);
    }

    // C11
    async fn schedule_publishes_its_event_at_its_tick(bed) {
        let event = NewEvent::new("report.due").tags(["b", "a"]).group("g").priority(3).max_retries(7)
            .title("{{schedule.name}}").description("d").metadata(&json!({ "m": 1 })).unwrap()
            .payload(&json!({ "at": "{{tick.local}}", "id": "{{schedule.id}}", "before": "{{tick.previous}}" })).unwrap()
            .expires_in(secs(90));
        let new = NewSchedule::new("a \"b\"", "31 * * * *", event).timezone("Asia/Tokyo");
        let id = add(&bed.queue, new).await.id;
        let idle = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((idle.fired, idle.next_in), (0, Some(secs(60))));
        bed.advance(secs(61));
        let fired = bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!((fired.fired, fired.next_in), (1, Some(secs(3_599))));
        let delivery = claim_one(&bed.queue).await;
        let expected = json!({
            "id": delivery.event.id, "namespace": "default", "type": "report.due", "title": "a \"b\"",
            "description": "d", "tags": "b,a",
            "payload": { "at": "2025-12-24T19:31:00+09:00", "id": id, "before": "2025-12-24T09:31:00Z" },
            "group_id": "g", "priority": 3, "producer": "scheduler", "scheduled_task_id": id,
            "expires_at": "2025-12-24T10:32:31Z", "metadata": { "m": 1 }, "created_at": "2025-12-24T10:31:01Z",
        });
        assert_eq!(serde_json::to_value(&delivery.event).unwrap(), expected);
        assert_eq!(view(&bed.queue, delivery.event.id).await.max_retries, Some(7));
        let view = bed.queue.schedule(&id).await.unwrap();
        assert_eq!(view.last_event_id, Some(delivery.event.id));
        assert_eq!((view.last_at, view.next_at), (Some(at("2025-12-24T10:31:00Z")), Some(at("2025-12-24T11:31:00Z"))));
        assert_eq!((view.updated_at, view.created_at), (bed.now(), at("2025-12-24T10:30:00Z")));
        assert_eq!(fire(&bed.queue).await, 0);
        let fire = ScheduleFire {
            tick_at: at("2025-12-24T10:31:00Z"), manual: false, fired_at: bed.now(),
            event_id: Some(delivery.event.id), skipped: 0, error: None,
        };
        assert_eq!(fires(&bed.queue, &id).await, [fire]);
    }

    // C11
    async fn every_subscription_gets_scheduled_events(bed) {
        bed.queue.add_subscription(windlass::SubscriptionSpec::new("audit").types(["tick"])).await.unwrap();
        add(&bed.queue, every_minute("a")).await;
        bed.advance(MINUTE);
        // The other process has cached no lanes yet.
        assert_eq!(fire(&bed.second_queue().await).await, 1);
        let audit = windlass::ClaimRequest::new("w").subscription("audit").max(9);
        assert_eq!((claim_all(&bed.queue).await.len(), claim(&bed.queue, audit).await.len()), (1, 1));
    }

    // C11
    async fn subscription_added_by_another_process_gets_event(bed) {
        add(&bed.queue, every_minute("a")).await;
        let other = bed.second_queue().await;
        assert_eq!(fire(&other).await, 0);
        bed.queue.add_subscription(windlass::SubscriptionSpec::new("audit")).await.unwrap();
        bed.advance(MINUTE);
        assert_eq!(fire(&other).await, 1);
        let audit = windlass::ClaimRequest::new("w").subscription("audit").max(9);
        assert_eq!(claim(&bed.queue, audit).await.len(), 1);
    }

    async fn firing_wakes_a_waiting_claim(bed) {
        let queue = bed.real_time_queue().await;
        add(&queue, NewSchedule::new("a", "* * * * * *", NewEvent::new("tick"))).await;
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { claim_one_soon(&queue).await }
        });
        eventually("it fires", async || fire(&queue).await > 0).await;
        assert_eq!(waiting.await.unwrap().event.event_type, "tick");
    }

    // C11
    async fn names_are_unique_per_namespace(bed) {
        let other = bed.namespace(Policy::default()).await;
        let first = add(&bed.queue, every_minute("a")).await;
        let in_other = add(&other, every_minute("a")).await;
        let exists = Error::Exists { what: "schedule", name: "a".into() };
        assert_eq!(bed.queue.add_schedule(every_minute("a")).await.unwrap_err(), exists);
        let second = add(&bed.queue, every_minute("b")).await;
        assert_eq!(bed.queue.put_schedule(&second.id, every_minute("a")).await.unwrap_err(), exists);
        assert_eq!(bed.queue.put_schedule(&second.id, every_minute("b")).await.unwrap().id, second.id);
        assert_eq!(bed.queue.schedule(&second.id).await.unwrap().name, "b");
        // A schedule of one namespace does not exist in the other.
        for (queue, id) in [(&bed.queue, &in_other.id), (&other, &first.id), (&other, &UNKNOWN.to_owned())] {
            let none = Error::ScheduleNotFound { namespace: queue.namespace().into(), schedule_id: id.clone() };
            assert_eq!(queue.schedule(id).await.unwrap_err(), none);
            assert_eq!(queue.put_schedule(id, every_minute("c")).await.unwrap_err(), none);
            assert_eq!(queue.pause_schedule(id).await.unwrap_err(), none);
            assert_eq!(queue.resume_schedule(id).await.unwrap_err(), none);
            assert_eq!(queue.run_schedule(id).await.unwrap_err(), none);
            assert_eq!(queue.schedule_fires(id, None, 0).await.unwrap_err(), none);
            assert_eq!(queue.remove_schedule(id).await.unwrap_err(), none);
        }
        bed.advance(MINUTE);
        assert_eq!((fire(&bed.queue).await, fire(&bed.queue).await, fire(&other).await), (2, 0, 1));
        let nowhere = bed.queue.in_namespace("nowhere").unwrap();
        assert_eq!(nowhere.add_schedule(every_minute("a")).await.unwrap_err().code(), "namespace_not_found");
        assert_eq!(nowhere.fire_schedules_once().await.unwrap_err().code(), "namespace_not_found");
        assert_eq!(bed.queue.schedule("1").await.unwrap_err().code(), "invalid");
    }

    async fn schedules_are_listed_by_name(bed) {
        for name in ["b", "B", "a", "ä"] {
            add(&bed.queue, every_minute(name)).await;
        }
        add(&bed.queue, NewSchedule::new("c", "@daily", NewEvent::new("other")).paused()).await;
        let all = ScheduleFilter::default;
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&bed.queue, all()).await, (list(&["B", "a", "b", "c", "ä"]), 5));
        let page = ScheduleFilter { limit: 2, offset: 1, ..all() };
        assert_eq!(names(&bed.queue, page).await, (list(&["a", "b"]), 5));
        assert_eq!(names(&bed.queue, ScheduleFilter { active: Some(false), ..all() }).await, (list(&["c"]), 1));
        assert_eq!(names(&bed.queue, ScheduleFilter { active: Some(true), limit: 1, ..all() }).await, (list(&["B"]), 4));
        assert_eq!(names(&bed.queue, ScheduleFilter { name: Some("ä".into()), ..all() }).await, (list(&["ä"]), 1));
        assert_eq!(names(&bed.queue, ScheduleFilter { event_type: Some("other".into()), ..all() }).await, (list(&["c"]), 1));
        let long = bed.queue.schedules(ScheduleFilter { limit: 1_001, ..all() }).await.unwrap_err();
        assert_eq!(long.to_string(), "limit: must be from 1 to 1000");
    }

    // C11
    async fn paused_schedule_neither_fires_nor_misses_ticks(bed) {
        let id = add(&bed.queue, every_minute("a").missed(MissedPolicy::All)).await.id;
        bed.advance(secs(30));
        let paused = bed.queue.pause_schedule(&id).await.unwrap();
        assert_eq!((paused.active, paused.next_at, paused.next_runs.len(), paused.updated_at), (false, None, 0, bed.now()));
        assert_eq!(bed.queue.fire_schedules_once().await.unwrap().next_in, None);
        bed.advance(MINUTE * 10);
        assert_eq!(fire(&bed.queue).await, 0);
        let resumed = bed.queue.resume_schedule(&id).await.unwrap();
        assert_eq!((resumed.active, resumed.next_at), (true, Some(at("2025-12-24T10:41:00Z"))));
        assert_eq!(fire(&bed.queue).await, 0);
        bed.advance(secs(30));
        // Resuming an active schedule keeps its due tick.
        assert_eq!(bed.queue.resume_schedule(&id).await.unwrap().next_at, Some(at("2025-12-24T10:41:00Z")));
        assert_eq!(fire(&bed.queue).await, 1);
        let made_paused = add(&bed.queue, every_minute("b").paused()).await;
        assert_eq!((made_paused.active, made_paused.next_at), (false, None));
        bed.queue.pause_schedule(&made_paused.id).await.unwrap();
    }

    // C11
    async fn edit_replaces_all_fields_and_continues_from_now(bed) {
        let event = NewEvent::new("old").title("t").description("d").tags(["a"]).group("g").priority(1).max_retries(1)
            .metadata(&json!({})).unwrap().payload(&1).unwrap().expires_in(secs(9));
        let new = NewSchedule::new("a", "* * * * *", event).timezone("Asia/Tokyo").missed(MissedPolicy::All);
        let id = add(&bed.queue, new).await.id;
        bed.advance(MINUTE);
        assert_eq!(fire(&bed.queue).await, 1);
        bed.advance(MINUTE * 5);
        let before = bed.queue.schedule(&id).await.unwrap();
        let put = bed.queue.put_schedule(&id, NewSchedule::new("b", "0 12 * * *", NewEvent::new("new"))).await.unwrap();
        let expected = json!({
            "id": id, "name": "b", "cron": "0 12 * * *", "timezone": "UTC", "type": "new", "title": null,
            "description": null, "tags": "", "payload": null, "group_id": null, "priority": 0, "max_retries": null,
            "metadata": null, "expires_in_ms": null, "missed": "once", "runner": "windlass", "active": true,
            "next_at": "2025-12-24T12:00:00Z",
            "next_runs": ["2025-12-24T12:00:00Z", "2025-12-25T12:00:00Z", "2025-12-26T12:00:00Z",
                          "2025-12-27T12:00:00Z", "2025-12-28T12:00:00Z"],
            "last_at": "2025-12-24T10:31:00Z", "last_event_id": before.last_event_id,
            "created_at": "2025-12-24T10:30:00Z", "updated_at": "2025-12-24T10:36:00Z",
        });
        assert_eq!(serde_json::to_value(&put).unwrap(), expected);
        assert_eq!(fire(&bed.queue).await, 0);
        let paused = bed.queue.put_schedule(&id, every_minute("b").paused()).await.unwrap();
        assert_eq!((paused.active, paused.next_at), (false, None));
    }

    async fn edit_that_keeps_the_ticks_loses_none(bed) {
        let id = add(&bed.queue, every_minute("a")).await.id;
        bed.advance(MINUTE);
        let put = bed.queue.put_schedule(&id, every_minute("b").missed(MissedPolicy::All)).await.unwrap();
        assert_eq!((put.name.as_str(), put.next_at), ("b", Some(bed.now())));
        assert_eq!(bed.queue.declare_schedule(every_minute("b")).await.unwrap().next_at, Some(bed.now()));
        assert_eq!((fire(&bed.queue).await, fire(&bed.queue).await), (1, 0));
        // In another time zone the ticks differ.
        bed.advance(MINUTE);
        let put = bed.queue.put_schedule(&id, every_minute("b").timezone("Asia/Tokyo")).await.unwrap();
        assert_eq!(put.next_at, Some(at("2025-12-24T10:33:00Z")));
        // A paused schedule misses no ticks.
        bed.queue.pause_schedule(&id).await.unwrap();
        bed.advance(MINUTE);
        let put = bed.queue.put_schedule(&id, every_minute("b").timezone("Asia/Tokyo")).await.unwrap();
        assert_eq!((put.active, put.next_at), (true, Some(at("2025-12-24T10:34:00Z"))));
    }

    async fn declared_schedule_is_created_or_updated(bed) {
        let declared = bed.queue.declare_schedule(every_minute("a")).await.unwrap();
        assert_eq!((declared.active, declared.next_at), (true, Some(at("2025-12-24T10:31:00Z"))));
        let again = bed.queue.declare_schedule(NewSchedule::new("a", "@hourly", NewEvent::new("new"))).await.unwrap();
        assert_eq!((&again.id, again.event_type.as_str(), again.cron.as_str()), (&declared.id, "new", "@hourly"));
        assert_eq!((again.next_at, again.created_at), (Some(at("2025-12-24T11:00:00Z")), declared.created_at));
        // Declaring a paused schedule again does not resume it.
        bed.queue.pause_schedule(&again.id).await.unwrap();
        let paused = bed.queue.declare_schedule(every_minute("a")).await.unwrap();
        assert_eq!((paused.active, paused.next_at, paused.cron.as_str()), (false, None, "* * * * *"));
        let resumed = bed.queue.resume_schedule(&again.id).await.unwrap();
        assert_eq!(resumed.next_at, Some(at("2025-12-24T10:31:00Z")));
        let paused = bed.queue.declare_schedule(every_minute("a").paused()).await.unwrap();
        assert_eq!((paused.active, paused.next_at), (false, None));
        let other = bed.namespace(Policy::default()).await;
        assert_ne!(other.declare_schedule(every_minute("a")).await.unwrap().id, again.id);
        let bad = NewSchedule::new("a", "x", NewEvent::new("t"));
        assert_eq!(bed.queue.declare_schedule(bad).await.unwrap_err().code(), "invalid");
        assert_eq!(names(&bed.queue, ScheduleFilter::default()).await, (vec!["a".to_owned()], 1));
    }

    async fn concurrent_processes_declare_the_same_schedules(bed) {
        let mut starting = Vec::new();
        for _ in 0..4 {
            let queue = bed.second_queue().await;
            starting.push(tokio::spawn(async move {
                let mut ids = Vec::new();
                for n in 0..20 {
                    ids.push(queue.declare_schedule(every_minute(&format!("s{n}"))).await.unwrap().id);
                }
                ids
            }));
        }
        let mut ids = Vec::new();
        for started in starting {
            ids.push(started.await.unwrap());
        }
        assert!(ids.iter().all(|same| *same == ids[0]));
        assert_eq!(names(&bed.queue, ScheduleFilter::default()).await.1, 20);
        bed.advance(MINUTE);
        assert_eq!(fire(&bed.queue).await, 20);
    }

    // C11
    async fn removed_schedule_is_gone_and_its_events_stay(bed) {
        let id = add(&bed.queue, every_minute("a")).await.id;
        bed.advance(MINUTE);
        assert_eq!(fire(&bed.queue).await, 1);
        bed.advance(MINUTE);
        bed.queue.remove_schedule(&id).await.unwrap();
        assert_eq!((fire(&bed.queue).await, count_events(&bed.queue).await), (0, 1));
        assert_eq!(bed.queue.schedule(&id).await.unwrap_err().code(), "schedule_not_found");
        assert_ne!(add(&bed.queue, every_minute("a")).await.id, id);
    }

    async fn schedule_can_be_run_manually(bed) {
        let event = NewEvent::new("tick").payload("{{tick.utc}} {{tick.next}}").unwrap();
        let id = add(&bed.queue, NewSchedule::new("a", "@hourly", event).paused()).await.id;
        let first = bed.queue.run_schedule(&id).await.unwrap().event;
        let second = bed.queue.run_schedule(&id).await.unwrap().event;
        assert_eq!(first.payload.get(), r#""2025-12-24T10:30:00Z 2025-12-24T11:00:00Z""#);
        assert_eq!((first.producer.as_deref(), first.scheduled_task_id.as_ref()), (Some("scheduler"), Some(&id)));
        assert!(second.id > first.id);
        assert_eq!(serde_json::to_value(&claim_one(&bed.queue).await.event).unwrap(), serde_json::to_value(&first).unwrap());
        let view = bed.queue.schedule(&id).await.unwrap();
        assert_eq!((view.active, view.next_at, view.last_event_id), (false, None, Some(second.id)));
        let fires = fires(&bed.queue, &id).await;
        assert_eq!(fires.iter().map(|fire| fire.event_id).collect::<Vec<_>>(), [Some(second.id), Some(first.id)]);
        assert!(fires.iter().all(|fire| fire.manual && fire.skipped == 0));
        // Manual runs do not change the ticks.
        let id = add(&bed.queue, every_minute("b")).await.id;
        bed.advance(secs(30));
        bed.queue.run_schedule(&id).await.unwrap();
        assert_eq!(bed.queue.schedule(&id).await.unwrap().next_at, Some(at("2025-12-24T10:31:00Z")));
        bed.advance(secs(30));
        bed.queue.run_schedule(&id).await.unwrap();
        assert_eq!(fire(&bed.queue).await, 1);
        let kinds: Vec<bool> = self::fires(&bed.queue, &id).await.iter().map(|fire| fire.manual).collect();
        assert_eq!(kinds, [true, false, true]);
        // A late tick does not replace a later manual run as the last run.
        bed.advance(secs(90));
        let manual_event = bed.queue.run_schedule(&id).await.unwrap().event.id;
        let last = at("2025-12-24T10:32:30Z");
        assert_eq!(fire(&bed.queue).await, 1);
        let view = bed.queue.schedule(&id).await.unwrap();
        assert_eq!((view.last_at, view.last_event_id), (Some(last), Some(manual_event)));
    }

    async fn fires_are_listed_in_pages(bed) {
        let id = add(&bed.queue, every_minute("a").missed(MissedPolicy::All)).await.id;
        bed.advance(MINUTE * 30);
        assert_eq!(fire(&bed.queue).await, 30);
        let all = fires(&bed.queue, &id).await;
        assert_eq!((all.len(), all[0].tick_at, all[29].tick_at), (30, bed.now(), at("2025-12-24T10:31:00Z")));
        assert_eq!(bed.queue.schedule_fires(&id, None, 0).await.unwrap(), all[..20]);
        assert_eq!(bed.queue.schedule_fires(&id, Some(all[19].tick_at), 0).await.unwrap(), all[20..]);
        assert_eq!(bed.queue.schedule_fires(&id, None, 1_001).await.unwrap_err().to_string(), "limit: must be from 1 to 1000");
    }

    async fn preview_lists_upcoming_ticks(bed) {
        let queue = &bed.queue;
        let ticks = queue.preview_schedule("30 2 * * *", "Europe/Berlin", Some(at("2026-03-28T12:00:00Z")), 2).await;
        assert_eq!(ticks, Ok(vec![at("2026-03-29T01:00:00Z"), at("2026-03-30T00:30:00Z")]));
        let ticks = queue.preview_schedule("0 * * * *", "UTC", None, PREVIEW_MAX).await.unwrap();
        assert_eq!((ticks.len(), ticks[0]), (100, at("2025-12-24T11:00:00Z")));
        // Every 28 years, or 40 years across 2100.
        let rare = queue.preview_schedule("0 0 29 2 +MON", "UTC", None, PREVIEW_MAX).await.unwrap();
        assert_eq!((rare.len(), rare[0], rare[2]), (3, at("2044-02-29T00:00:00Z"), at("2112-02-29T00:00:00Z")));
        let field = async |cron, zone, count| match queue.preview_schedule(cron, zone, None, count).await {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("not refused: {other:?}"),
        };
        assert_eq!(field("* * * * *", "UTC", 101).await, "count");
        assert_eq!(field("0 0 30 2 *", "UTC", 1).await, "cron");
        assert_eq!(field("* * * * *", "Mars/Olympus", 1).await, "timezone");
    }

    async fn invalid_fields_are_refused(bed) {
        let queue = &bed.queue;
        let with = |event: NewEvent| NewSchedule::new("a", "* * * * *", event);
        let event = || NewEvent::new("t");
        let text = |length: usize| "x".repeat(length);
        for name in ["", " a", "a\n", &text(201)] {
            assert_eq!(refused_field(queue, NewSchedule::new(name, "* * * * *", event())).await, "name", "{name:?}");
        }
        assert_eq!(refused_field(queue, NewSchedule::new("a", "0 0 30 2 *", event())).await, "cron");
        assert_eq!(refused_field(queue, every_minute("a").timezone("Berlin")).await, "timezone");
        assert_eq!(refused_field(queue, with(event().expires_in(Duration::ZERO))).await, "expires_in_ms");
        assert_eq!(refused_field(queue, with(event().expires_in(Duration::MAX))).await, "expires_in_ms");
        assert_eq!(refused_field(queue, with(event().run_at(bed.now()))).await, "run_at");
        assert_eq!(refused_field(queue, with(event().delay(secs(1)))).await, "delay_ms");
        assert_eq!(refused_field(queue, with(event().expires_at(bed.now()))).await, "expires_at");
        assert_eq!(refused_field(queue, with(event().key("k"))).await, "key");
        assert_eq!(refused_field(queue, with(event().producer("p"))).await, "producer");
        assert_eq!(refused_field(queue, with(NewEvent::new("a*"))).await, "type");
        assert_eq!(refused_field(queue, with(event().title(text(1_001)))).await, "title");
        assert_eq!(refused_field(queue, with(event().payload(&text(1 << 20)).unwrap())).await, "payload");
        assert_eq!(refused_field(queue, with(event().payload("{{tick.day}}").unwrap())).await, "payload");
        // The limit applies after substitution: the name is longer than its placeholder.
        let full = format!("{}{{{{schedule.name}}}}", text((1 << 20) - 50));
        let long = NewSchedule::new(text(200), "* * * * *", event().payload(&full).unwrap());
        assert_eq!(refused_field(queue, long).await, "payload");
        assert_eq!(names(queue, ScheduleFilter::default()).await.1, 0);
        let id = add(queue, every_minute("a")).await.id;
        let bad = NewSchedule::new("a", "x", event());
        assert!(matches!(queue.put_schedule(&id, bad).await, Err(Error::Invalid { field: "cron", .. })));
    }

    async fn number_of_schedules_is_limited(bed) {
        assert_eq!(bed.queue.limits().schedules_max, 1_000_000);
        let limits = Limits { schedules_max: 2, ..Limits::default() };
        let queue = Queue::options(&bed.database.url).limits(limits).open().await.unwrap();
        for name in ["a", "b"] {
            add(&queue, every_minute(name)).await;
        }
        let error = queue.add_schedule(every_minute("c")).await.unwrap_err().to_string();
        assert_eq!(error, "name: a namespace has at most 2 schedules");
        let id = queue.schedules(ScheduleFilter::default()).await.unwrap().items[0].id.clone();
        queue.put_schedule(&id, every_minute("d")).await.unwrap();
        queue.declare_schedule(every_minute("d")).await.unwrap();
        assert_eq!(queue.declare_schedule(every_minute("c")).await.unwrap_err().to_string(), error);
        queue.remove_schedule(&id).await.unwrap();
        add(&queue, every_minute("c")).await;
        add(&bed.namespace(Policy::default()).await, every_minute("c")).await;
    }

    async fn fires_are_deleted_after_a_week(bed) {
        let other = bed.namespace(Policy::default()).await;
        let (id, in_other) = (add(&bed.queue, every_minute("a")).await.id, add(&other, every_minute("a")).await.id);
        bed.advance(MINUTE);
        assert_eq!((fire(&bed.queue).await, fire(&other).await), (1, 1));
        bed.queue.pause_schedule(&id).await.unwrap();
        bed.advance(secs(7 * 24 * 3600));
        assert_eq!((bed.queue.prune_once().await, fires(&bed.queue, &id).await.len()), (Ok(0), 1));
        bed.advance(MICRO);
        assert_eq!((bed.queue.prune_once().await, fires(&bed.queue, &id).await.len()), (Ok(1), 0));
        assert_eq!(fires(&other, &in_other).await.len(), 1);
    }
}
