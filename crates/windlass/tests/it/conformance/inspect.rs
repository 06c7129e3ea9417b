//! Reading events: get, list, log and statistics.

use serde_json::value::RawValue;
use windlass::{
    Action, ClaimRequest, Error, ListFilter, LogEntry, NewEvent, Queue, Report, StatRow, Status, SubscriptionSpec,
    Timestamp,
};

use crate::support::*;

/// The ids of all events that match, read as one page.
async fn list_all(queue: &Queue, filter: ListFilter) -> Vec<i64> {
    let page = queue.list(ListFilter { limit: 1_000, ..filter }).await.unwrap();
    assert_eq!(page.total, page.items.len() as u64);
    page.items.iter().map(|view| view.event.id).collect()
}

fn with_status(status: Status) -> ListFilter {
    ListFilter { status: Some(status), ..Default::default() }
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// JSON with white space that must be stored unchanged.
const DETAIL: &str = r#"{"stdout": "Grüße\n", "exit_code":  0}"#;

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.into()).unwrap()
}

fn as_json(log: &[LogEntry]) -> Vec<String> {
    log.iter().map(|entry| serde_json::to_string(entry).unwrap()).collect()
}

/// Statistics, sorted by subscription, type and status.
async fn stats(queue: &Queue, since: Timestamp) -> Vec<StatRow> {
    let mut rows = queue.stats(since).await.unwrap();
    rows.sort_by_key(|row| (row.subscription.clone(), row.event_type.clone(), row.status));
    rows
}

/// One event in each state, in the order of the states.
pub async fn publish_one_per_status(bed: &crate::bed::Bed) -> [i64; 7] {
    let queue = &bed.queue;
    let expired = publish_new(queue, NewEvent::new("expired").expires_at(after(bed.now(), secs(1)))).await.id;
    bed.advance(secs(1));
    queue.expire_once().await.unwrap();
    let cancelled = publish(queue, "cancelled").await.id;
    queue.cancel(cancelled, None).await.unwrap();
    let mut finished = Vec::new();
    for (event_type, report) in [("completed", Report::done()), ("failed", Report::dead("x"))] {
        finished.push(publish(queue, event_type).await.id);
        finish(queue, &claim_one(queue).await, report).await;
    }
    let with_errors = publish(queue, "with_errors").await.id;
    queue.finalize(&claim_one(queue).await, &["e".into()]).await.unwrap().attempt().unwrap();
    let processing = publish(queue, "processing").await.id;
    claim_one(queue).await;
    let pending = publish(queue, "pending").await.id;
    [pending, processing, finished[0], with_errors, finished[1], expired, cancelled]
}

conformance! {
    // H7, C1
    async fn unknown_event_is_not_found(bed) {
        for id in [0, -1, 1, i64::MAX, i64::MIN] {
            let unknown = Error::EventNotFound { namespace: "default".into(), event_id: id };
            assert_eq!(bed.queue.get(id).await.unwrap_err(), unknown);
            assert_eq!(bed.queue.log(id).await.unwrap_err(), unknown);
        }
    }

    // H8, at the level of the library
    async fn events_are_listed_by_status(bed) {
        let events = publish_one_per_status(bed).await;
        for (status, event) in Status::ALL.into_iter().zip(events) {
            assert_eq!(list_all(&bed.queue, with_status(status)).await, [event], "{status}");
            let page = bed.queue.list(with_status(status)).await.unwrap();
            assert_eq!(page.items[0].deliveries[0].status, status);
        }
        let mut newest_first = events.to_vec();
        newest_first.sort_by_key(|id| std::cmp::Reverse(*id));
        assert_eq!(list_all(&bed.queue, ListFilter::default()).await, newest_first);
    }

    // H8
    async fn list_shows_the_same_view_as_get(bed) {
        let events = publish_one_per_status(bed).await;
        let page = bed.queue.list(ListFilter::default()).await.unwrap();
        for view in &page.items {
            assert_eq!(json(view), json(&bed.queue.get(view.event.id).await.unwrap()));
        }
        assert_eq!(page.items.len(), events.len());
    }

    // H8
    async fn events_are_listed_in_pages_newest_first(bed) {
        let mut events = publish_many(&bed.queue, "t", 25).await;
        events.reverse();
        let page = async |limit, offset| {
            let page = bed.queue.list(ListFilter { limit, offset, ..Default::default() }).await.unwrap();
            assert_eq!(page.total, 25);
            page.items.iter().map(|view| view.event.id).collect::<Vec<_>>()
        };
        assert_eq!(page(0, 0).await, events[..20]);
        assert_eq!(page(10, 20).await, events[20..]);
        assert_eq!(page(3, 4).await, events[4..7]);
        assert_eq!(page(5, 1_000_000).await, Vec::<i64>::new());
    }

    // H8
    async fn events_are_listed_by_types_and_tags(bed) {
        let queue = &bed.queue;
        let a = publish_new(queue, NewEvent::new("order.paid").tags_text("email, high")).await.id;
        let b = publish_new(queue, NewEvent::new("order.sent").tags(["sms"])).await.id;
        let c = publish_new(queue, NewEvent::new("user_created").tags(["email"])).await.id;
        let d = publish(queue, "userXcreated").await.id;
        let of_types = |types: &[&str]| ListFilter { types: strings(types), ..Default::default() };
        let of_tags = |tags: &[&str]| ListFilter { tags: strings(tags), ..Default::default() };
        assert_eq!(list_all(queue, of_types(&["order.paid"])).await, [a]);
        assert_eq!(list_all(queue, of_types(&["order.*"])).await, [b, a]);
        assert_eq!(list_all(queue, of_types(&["order.sent", "user_created"])).await, [c, b]);
        assert_eq!(list_all(queue, of_types(&["user_*"])).await, [c]);
        assert_eq!(list_all(queue, of_types(&["*"])).await, [d, c, b, a]);
        assert_eq!(list_all(queue, of_types(&["order"])).await, Vec::<i64>::new());
        assert_eq!(list_all(queue, of_tags(&["email"])).await, [c, a]);
        assert_eq!(list_all(queue, of_tags(&["high", "sms"])).await, [b, a]);
        assert_eq!(list_all(queue, of_tags(&["mail", "hig"])).await, Vec::<i64>::new());

        done(queue, &claim(queue, ClaimRequest::new("w").tags(["high"])).await[0]).await;
        let mixed = ListFilter { status: Some(Status::Completed), types: strings(&["order.*"]), ..of_tags(&["email"]) };
        assert_eq!(list_all(queue, mixed.clone()).await, [a]);
        assert_eq!(list_all(queue, ListFilter { status: Some(Status::Pending), ..mixed }).await, Vec::<i64>::new());
        let page = ListFilter { limit: 1, offset: 1, ..of_tags(&["email"]) };
        let page = queue.list(page).await.unwrap();
        assert_eq!((page.total, page.items[0].event.id, page.items.len()), (2, a, 1));
    }

    async fn whitespace_around_tags_is_ignored(bed) {
        let text = " \temail ,\n high ";
        let event = publish_new(&bed.queue, NewEvent::new("t").tags_text(text)).await;
        assert_eq!(event.tags, text);
        for tag in ["email", "high"] {
            let filter = ListFilter { tags: strings(&[tag]), ..Default::default() };
            assert_eq!(list_all(&bed.queue, filter).await, [event.id]);
            let got = claim(&bed.queue, ClaimRequest::new("w").tags([tag])).await;
            finish(&bed.queue, &got[0], release()).await;
        }
    }

    async fn list_can_be_filtered_by_subscription(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("orders").types(["order"])).await.unwrap();
        let (order, other) = (publish(queue, "order").await.id, publish(queue, "other").await.id);
        for delivery in claim_all(queue).await {
            done(queue, &delivery).await;
        }
        let seen = |status| ListFilter { status, subscription: Some("orders".into()), ..Default::default() };
        assert_eq!(list_all(queue, seen(None)).await, [order]);
        assert_eq!(list_all(queue, seen(Some(Status::Pending))).await, [order]);
        assert_eq!(list_all(queue, seen(Some(Status::Completed))).await, Vec::<i64>::new());
        assert_eq!(list_all(queue, with_status(Status::Completed)).await, [other, order]);
        assert_eq!(list_all(queue, with_status(Status::Pending)).await, Vec::<i64>::new());
        let view = queue.list(seen(None)).await.unwrap().items.remove(0);
        assert_eq!(view.deliveries.len(), 2);
    }

    async fn failed_then_completed_event_is_listed_once(bed) {
        let event = publish_new(&bed.queue, NewEvent::new("t").max_retries(1)).await.id;
        fail(&bed.queue, &claim_one(&bed.queue).await).await;
        bed.queue.redrive(Default::default()).await.unwrap();
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        assert_eq!(list_all(&bed.queue, with_status(Status::Completed)).await, [event]);
        assert_eq!(list_all(&bed.queue, with_status(Status::Failed)).await, Vec::<i64>::new());
        assert_eq!(status(&bed.queue, event).await, Status::Completed);
    }

    // H7, H9
    async fn log_records_every_action(bed) {
        let queue = &bed.queue;
        let event = publish(queue, "t").await.id;
        let first = queue.poll("w1").await.unwrap().unwrap();
        bed.advance(secs(1));
        queue.start(&first).await.unwrap();
        bed.advance(secs(1));
        finish(queue, &first, Report::failed("no luck").status_code(500).execution_time_ms(12)).await;
        bed.advance(BACKOFF);
        queue.poll("w2").await.unwrap().unwrap();
        bed.advance(secs(1));
        queue.reset(event, "main", "worker_timeout").await.unwrap();
        bed.advance(secs(1));
        queue.poll("w3").await.unwrap().unwrap();
        bed.advance(LEASE);
        let last = queue.poll("w4").await.unwrap().unwrap();
        bed.advance(secs(1));
        finish(queue, &last, Report::done().status_code(200).execution_time_ms(34).detail(raw(DETAIL))).await;

        let log = queue.log(event).await.unwrap();
        let start = first.picked_at;
        let at = |seconds: u64| after(start, secs(seconds));
        let entry_of = |attempt, worker: &str, action, created_at: Timestamp| LogEntry {
            id: 0,
            event_id: event,
            subscription: "main".into(),
            attempt,
            worker_id: Some(worker.into()),
            action,
            status_code: None,
            error_message: None,
            execution_time_ms: None,
            detail: None,
            created_at,
        };
        let mut expected = vec![
            entry_of(1, "w1", Action::Picked, at(0)),
            entry_of(1, "w1", Action::Started, at(1)),
            LogEntry {
                status_code: Some(500),
                error_message: Some("no luck".into()),
                execution_time_ms: Some(12),
                ..entry_of(1, "w1", Action::Failed, at(2))
            },
            entry_of(2, "w2", Action::Picked, at(302)),
            LogEntry { error_message: Some("worker_timeout".into()), ..entry_of(2, "w2", Action::Reset, at(303)) },
            entry_of(3, "w3", Action::Picked, at(304)),
            entry_of(3, "w3", Action::Abandoned, at(364)),
            entry_of(4, "w4", Action::Picked, at(364)),
            LogEntry {
                status_code: Some(200),
                execution_time_ms: Some(34),
                detail: Some(raw(DETAIL)),
                ..entry_of(4, "w4", Action::Completed, at(365))
            },
        ];
        expected.iter_mut().zip(&log).for_each(|(expected, entry)| expected.id = entry.id);
        assert_eq!(as_json(&log), as_json(&expected));
        assert!(log.is_sorted_by(|a, b| a.id < b.id));
    }

    // H9: append-only, so an entry keeps its id.
    async fn log_entries_keep_their_ids(bed) {
        let queue = &bed.queue;
        let event = publish(queue, "t").await.id;
        let mut before: Vec<LogEntry> = Vec::new();
        for step in 0..6 {
            match step % 2 {
                0 => drop(claim_one(queue).await),
                _ => bed.advance(LEASE),
            }
            queue.release_expired_once().await.unwrap();
            let log = queue.log(event).await.unwrap();
            assert_eq!(as_json(&log[..before.len()]), as_json(&before), "step {step}");
            assert_eq!(log.len(), step + 1);
            before = log;
        }
    }

    // H9
    async fn log_entry_ids_are_unique_across_events(bed) {
        let events = publish_many(&bed.queue, "t", 3).await;
        for delivery in claim_all(&bed.queue).await {
            done(&bed.queue, &delivery).await;
        }
        let mut all = Vec::new();
        for event in events {
            all.extend(bed.queue.log(event).await.unwrap().iter().map(|entry| entry.id));
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), count), (6, 6));
    }

    async fn newest_error_is_shown(bed) {
        let event = publish(&bed.queue, "t").await.id;
        for error in ["first", "second"] {
            finish(&bed.queue, &claim_one(&bed.queue).await, Report::failed(error)).await;
            assert_eq!(view(&bed.queue, event).await.error_message.as_deref(), Some(error));
            bed.advance(BACKOFF);
        }
        // A later attempt without an error does not hide the error.
        let delivery = claim_one(&bed.queue).await;
        assert_eq!(view(&bed.queue, event).await.error_message.as_deref(), Some("second"));
        finish(&bed.queue, &delivery, release()).await;
        assert_eq!(view(&bed.queue, event).await.error_message.as_deref(), Some("second"));
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        assert_eq!(view(&bed.queue, event).await.error_message.as_deref(), Some("second"));
    }

    // Q15 and C15 build on these counts; O2: unprocessed events, O9: statistics over processed ones
    async fn stats_count_by_subscription_type_and_status(bed) {
        let queue = &bed.queue;
        let start = bed.now();
        queue.add_subscription(SubscriptionSpec::new("orders").types(["order"])).await.unwrap();
        publish_many(queue, "order", 3).await;
        bed.advance(secs(1));
        publish_many(queue, "mail", 5).await;
        publish_new(queue, NewEvent::new("mail").delay(secs(100))).await;
        bed.advance(secs(1));
        let got = claim(queue, ClaimRequest::new("w").types(["mail"]).max(5)).await;
        bed.advance(secs(1));
        for delivery in &got[..2] {
            done(queue, delivery).await;
        }
        bed.advance(secs(1));
        finish(queue, &got[2], Report::dead("x")).await;
        queue.finalize(&got[3], &["e".into()]).await.unwrap().attempt().unwrap();
        bed.advance(secs(1));
        let cancelled = claim_one(queue).await;
        finish(queue, &cancelled, release()).await;
        queue.cancel(cancelled.event.id, Some("main")).await.unwrap();

        let row = |subscription: &str, event_type: &str, status, count, at: u64| StatRow {
            subscription: subscription.into(),
            event_type: event_type.into(),
            status,
            count,
            oldest_at: Some(after(start, secs(at))),
        };
        let mut expected = vec![
            row("main", "mail", Status::Pending, 1, 101),
            row("main", "mail", Status::Processing, 1, 2),
            row("main", "mail", Status::Completed, 2, 3),
            row("main", "mail", Status::CompletedWithErrors, 1, 4),
            row("main", "mail", Status::Failed, 1, 4),
            row("main", "order", Status::Pending, 2, 0),
            row("main", "order", Status::Cancelled, 1, 5),
            row("orders", "order", Status::Pending, 3, 0),
        ];
        assert_eq!(stats(queue, start).await, expected);
        // Completed deliveries are counted since the given time; unfinished deliveries and dead letters always are.
        expected.retain(|row| row.status != Status::Completed);
        assert_eq!(stats(queue, after(start, secs(4))).await, expected);
        expected.retain(|row| row.status != Status::CompletedWithErrors);
        assert_eq!(stats(queue, after(start, secs(5))).await, expected);
    }

    async fn delivery_finished_during_listing_is_shown_once(bed) {
        let (queue, other) = (&bed.queue, bed.second_queue().await);
        publish_many(queue, "t", 300).await;
        let ending = tokio::spawn(async move {
            for delivery in claim_all(&other).await {
                done(&other, &delivery).await;
            }
        });
        while !ending.is_finished() {
            for view in queue.list(ListFilter { limit: 1_000, ..Default::default() }).await.unwrap().items {
                assert_eq!(view.deliveries.len(), 1, "{}", json(&view));
            }
            for view in queue.list(ListFilter { limit: 1_000, ..with_status(Status::Completed) }).await.unwrap().items {
                assert_eq!(view.deliveries[0].status, Status::Completed, "{}", json(&view));
            }
        }
        ending.await.unwrap();
    }

    async fn ping_succeeds_until_queue_is_closed(bed) {
        let queue = bed.second_queue().await;
        assert_eq!(queue.ping().await, Ok(()));
        queue.close().await;
        assert_eq!(queue.ping().await, Err(Error::Closed));
        assert_eq!(queue.publish(NewEvent::new("t")).await.unwrap_err(), Error::Closed);
        assert_eq!(queue.claim(ClaimRequest::new("w")).await.unwrap_err(), Error::Closed);
        assert_eq!(queue.list(ListFilter::default()).await.unwrap_err(), Error::Closed);
        assert_eq!(bed.queue.ping().await, Ok(()));
    }
}
