//! Publishing: an event is stored once with all its fields, and its delivery becomes ready on time.

use serde_json::value::RawValue;
use windlass::{DeliveryView, NewEvent, Status};

use crate::support::*;

/// An ungrouped event that is ready immediately. All fields differ, so that no two can be mixed up.
fn rich_event() -> NewEvent {
    NewEvent::new("order.paid")
        .title("Order paid")
        .description("Somebody paid an order.")
        .tags_text("b, a,b")
        .payload(&serde_json::json!({ "order": 17 }))
        .unwrap()
        .priority(-3)
        .max_retries(9)
        .metadata(&serde_json::json!({ "traceparent": "00-1" }))
        .unwrap()
        .producer("shop-1")
}

/// An event with every field.
fn full_event(bed: &crate::bed::Bed) -> NewEvent {
    rich_event()
        .run_at(after(bed.now(), secs(7)))
        .expires_at(after(bed.now(), secs(77)))
        .group("customer-5")
        .key("order-17-paid")
}

conformance! {
    // Q1, C3, O1
    async fn published_event_is_stored_as_pending(bed) {
        let event = publish(&bed.queue, "t").await;
        let view = bed.queue.get(event.id).await.unwrap();
        assert_eq!(json(&view.event), json(&event));
        let expected = DeliveryView {
            subscription: "main".into(),
            status: Status::Pending,
            attempts: 0,
            retry_count: 0,
            max_retries: Some(3),
            ready_at: Some(bed.now()),
            next_retry_at: None,
            worker_id: None,
            picked_at: None,
            started_at: None,
            lease_expires_at: None,
            error_message: None,
            updated_at: bed.now(),
        };
        assert_eq!(view.deliveries, [expected]);
        assert_eq!(trail(&bed.queue, event.id).await, []);
    }

    // Q1
    async fn single_publish_stores_the_same_as_a_batch(bed) {
        for event in [|| NewEvent::new("t"), rich_event as fn() -> NewEvent] {
            let single = publish_new(&bed.queue, event()).await;
            let mut batch = bed.queue.publish_all(vec![event(), event()]).await.unwrap();
            let ids = [single.id, batch.remove(1).event.id];
            let mut views = Vec::new();
            for id in ids {
                let mut view = bed.queue.get(id).await.unwrap();
                assert_eq!(view.event.id, id);
                view.event.id = 0;
                views.push((json(&view.event), view.deliveries));
            }
            assert_eq!(views[0], views[1]);
            let claimed: Vec<_> = claim_all(&bed.queue).await.into_iter().filter(|d| ids.contains(&d.event.id)).collect();
            assert_eq!(claimed.len(), 2);
        }
    }

    // Q1
    async fn every_field_is_stored(bed) {
        let event = publish_new(&bed.queue, full_event(bed)).await;
        assert_eq!(event.namespace, "default");
        assert_eq!(event.event_type, "order.paid");
        assert_eq!(event.title.as_deref(), Some("Order paid"));
        assert_eq!(event.description.as_deref(), Some("Somebody paid an order."));
        assert_eq!(event.tags, "b, a,b");
        assert_eq!(event.payload.get(), r#"{"order":17}"#);
        assert_eq!(event.run_at, Some(after(bed.now(), secs(7))));
        assert_eq!(event.expires_at, Some(after(bed.now(), secs(77))));
        assert_eq!(event.group_id.as_deref(), Some("customer-5"));
        assert_eq!(event.key.as_deref(), Some("order-17-paid"));
        assert_eq!(event.priority, -3);
        assert_eq!(event.metadata.as_ref().unwrap().get(), r#"{"traceparent":"00-1"}"#);
        assert_eq!(event.producer.as_deref(), Some("shop-1"));
        assert_eq!(event.created_at, bed.now());

        let view = bed.queue.get(event.id).await.unwrap();
        assert_eq!(json(&view.event), json(&event));
        assert_eq!(view.deliveries[0].max_retries, Some(9));
        assert_eq!(view.deliveries[0].ready_at, event.run_at);
        bed.advance(secs(7));
        let claimed = claim_one(&bed.queue).await;
        assert_eq!(json(&claimed.event), json(&event));
        assert_eq!(claimed.max_retries, Some(9));
    }

    async fn payload_is_stored_byte_for_byte(bed) {
        let payloads = [
            r#"{"a": 1.0, "b":1e5 , "ü":"\u00e4"}"#,
            "[ 1,\n 2 ]",
            r#""\u0000""#,
            r#""\ud83d\ude00 together""#,
            r#"{"a":1,"a":2}"#,
            "123456789012345678901234567890.00000000000000000001",
            "1e400",
            "null",
            r#""it's $1 \\ 'quoted' {\"""#,
            r#"{"emoji":"🧵","nul":"\u0000"}"#,
        ];
        for payload in payloads {
            let raw = RawValue::from_string(payload.to_owned()).unwrap();
            let event = publish_new(&bed.queue, NewEvent::new("t").payload_raw(raw)).await;
            assert_eq!(event.payload.get(), payload);
            assert_eq!(bed.queue.get(event.id).await.unwrap().event.payload.get(), payload);
            let delivery = claim_one(&bed.queue).await;
            assert_eq!(delivery.event.payload.get(), payload);
            done(&bed.queue, &delivery).await;
        }
    }

    async fn names_may_contain_any_printable_text(bed) {
        let text = r#"it's "ö" $1 \ % _ ; -- 🧵"#;
        let event = NewEvent::new(text).tags_text(text).title("two\nlines\t").group(text).key(text).producer(text);
        let event = publish_new(&bed.queue, event).await;
        let request = windlass::ClaimRequest::new(text).types([text]).tags([text]);
        let delivery = claim(&bed.queue, request).await.remove(0);
        assert_eq!(json(&delivery.event), json(&event));
        assert_eq!(delivery.worker_id, text);
        let attempt = finish(&bed.queue, &delivery, windlass::Report::failed(text)).await;
        assert_eq!(attempt.error_message.as_deref(), Some(text));
        assert_eq!(view(&bed.queue, event.id).await.error_message.as_deref(), Some(text));
    }

    async fn batch_is_stored_in_order(bed) {
        let events = (0..500).map(|n| NewEvent::new("t").payload(&n).unwrap()).collect();
        let published = bed.queue.publish_all(events).await.unwrap();
        assert!(published.is_sorted_by(|a, b| a.event.id < b.event.id));
        let got = claim_all(&bed.queue).await;
        let payloads: Vec<u32> = got.iter().map(|delivery| delivery.event.payload().unwrap()).collect();
        assert_eq!(payloads, (0..500).collect::<Vec<_>>());
    }

    async fn batch_with_invalid_event_stores_nothing(bed) {
        let good = || NewEvent::new("t").tags(["new"]);
        let bad = good().title("x".repeat(2_000));
        let error = bed.queue.publish_all(vec![good(), bad, good()]).await.unwrap_err();
        assert_eq!(error.to_string(), "events[1]: title is 2000 bytes; the limit is 1000 bytes");
        assert_eq!(count_events(&bed.queue).await, 0);
        assert!(claim_all(&bed.queue).await.is_empty());
    }

    async fn empty_batch_is_accepted(bed) {
        assert!(bed.queue.publish_all(vec![]).await.unwrap().is_empty());
    }

    async fn batch_may_mix_types_tags_and_priorities(bed) {
        let kinds =
            (0..60).map(|n| NewEvent::new(format!("t{}", n % 5)).tags([format!("tag{}", n % 4)]).priority(n % 3));
        let published = bed.queue.publish_all(kinds.collect()).await.unwrap();
        let got = claim_all(&bed.queue).await;
        assert_eq!(sorted(ids(&got)), published.iter().map(|p| p.event.id).collect::<Vec<_>>());
    }

    async fn concurrent_publishes_are_all_delivered(bed) {
        let tasks = (0..100).map(|n| {
            let queue = bed.queue.clone();
            tokio::spawn(async move { publish(&queue, &format!("t{}", n % 10)).await.id })
        });
        let mut published = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            published.push(task.await.unwrap());
        }
        assert_eq!(sorted(ids(&claim_all(&bed.queue).await)), sorted(published));
    }

    async fn delayed_event_is_delivered_at_its_run_at(bed) {
        let delayed = publish_new(&bed.queue, NewEvent::new("t").delay(secs(10))).await;
        assert_eq!(delayed.run_at, Some(after(bed.now(), secs(10))));
        assert_eq!(view(&bed.queue, delayed.id).await.ready_at, delayed.run_at);
        bed.advance(secs(10) - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        assert_eq!(claim_one(&bed.queue).await.event.id, delayed.id);
    }

    async fn event_with_past_run_at_is_ready_immediately(bed) {
        let past = bed.now() - chrono::TimeDelta::hours(1);
        let event = publish_new(&bed.queue, NewEvent::new("t").run_at(past)).await;
        assert_eq!(event.run_at, Some(past));
        assert_eq!(claim_one(&bed.queue).await.event.id, event.id);
    }

    async fn event_can_be_delayed_for_decades(bed) {
        let later = bed.now() + chrono::TimeDelta::days(36_000);
        let event = NewEvent::new("t").run_at(later).expires_at(later + chrono::TimeDelta::days(1));
        let event = publish_new(&bed.queue, event).await;
        assert_eq!(view(&bed.queue, event.id).await.ready_at, Some(later));
        assert!(poll(&bed.queue).await.is_none());
        bed.test_clock.set(later);
        assert_eq!(claim_one(&bed.queue).await.event.id, event.id);
    }

    async fn event_of_maximum_size_is_delivered(bed) {
        let text = "x".repeat((1 << 20) - 2);
        let event = NewEvent::new("t".repeat(200)).payload(&text).unwrap().title("y".repeat(1_000));
        let id = publish_new(&bed.queue, event).await.id;
        let delivery = claim_one(&bed.queue).await;
        assert_eq!(delivery.event.id, id);
        assert_eq!(delivery.event.payload.get().len(), 1 << 20);
        assert_eq!(delivery.event.payload::<String>().unwrap(), text);
    }
}
