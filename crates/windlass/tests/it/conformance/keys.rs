//! Event keys: publishing a known key within its window stores no second event.

use serde_json::value::RawValue;
use windlass::{Error, NewEvent, Policy};

use crate::support::*;

fn keyed(key: &str) -> NewEvent {
    NewEvent::new("t").key(key)
}

conformance! {
    async fn known_key_returns_the_first_event(bed) {
        let first = publish_new(&bed.queue, keyed("k").title("first").tags(["a"])).await;
        let again = bed.queue.publish(keyed("k").title("second")).await.unwrap();
        assert!(again.duplicate);
        assert_eq!(json(&again.event), json(&first));
        assert_eq!(count_events(&bed.queue).await, 1);
        assert_eq!(ids(&claim_all(&bed.queue).await), [first.id]);
        assert_ne!(publish_new(&bed.queue, keyed("another")).await.id, first.id);
    }

    // F9
    async fn known_key_with_different_content_is_refused(bed) {
        let event = |payload: &str| keyed("k").payload_raw(RawValue::from_string(payload.to_owned()).unwrap());
        let first = publish_new(&bed.queue, event(r#"{"a": 1, "b": [2]}"#)).await;
        let same = bed.queue.publish(event(r#"{ "b":[2],"a":1 }"#)).await.unwrap();
        assert_eq!((same.duplicate, same.event.id), (true, first.id));
        let conflict = Error::KeyConflict { key: "k".into(), event_id: Some(first.id) };
        assert_eq!(bed.queue.publish(event(r#"{"a": 2}"#)).await.unwrap_err(), conflict);
        let message = format!("key: 'k' was used for event {}, which has another type or payload", first.id);
        assert_eq!((conflict.to_string(), conflict.code()), (message, "key_conflict"));
        let other_type = NewEvent::new("other").key("k").payload_raw(first.payload.clone());
        assert_eq!(bed.queue.publish(other_type).await.unwrap_err(), conflict);
        // A conflict refuses the whole call and does not affect concurrent calls.
        let call = vec![keyed("new"), keyed("k")];
        let (refused, stored) = tokio::join!(bed.queue.publish_all(call), bed.queue.publish(keyed("another")));
        assert_eq!((refused.unwrap_err(), stored.unwrap().duplicate), (conflict, false));
        assert!(!bed.queue.publish(keyed("new")).await.unwrap().duplicate);
        let call = vec![keyed("twice"), NewEvent::new("other").key("twice")];
        let refused = bed.queue.publish_all(call).await.unwrap_err();
        assert_eq!(refused.code(), "key_conflict");
        assert_eq!(count_events(&bed.queue).await, 3);
    }

    async fn key_stays_known_after_its_event_completes(bed) {
        let first = publish_new(&bed.queue, keyed("k")).await;
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        let again = bed.queue.publish(keyed("k")).await.unwrap();
        assert_eq!((again.duplicate, again.event.id), (true, first.id));
        assert!(poll(&bed.queue).await.is_none());
    }

    async fn concurrent_publishes_of_a_key_store_one_event(bed) {
        let other = bed.second_queue().await;
        let tasks = (0..20).map(|n| {
            let queue = if n % 2 == 0 { bed.queue.clone() } else { other.clone() };
            tokio::spawn(async move { queue.publish(keyed("k").title(format!("{n}"))).await.unwrap() })
        });
        let mut published = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            published.push(task.await.unwrap());
        }
        assert_eq!(published.iter().filter(|published| !published.duplicate).count(), 1);
        assert!(published.iter().all(|p| json(&p.event) == json(&published[0].event)));
        assert_eq!(ids(&claim_all(&bed.queue).await), [published[0].event.id]);
    }

    async fn key_can_be_used_again_after_its_window(bed) {
        let queue = bed.namespace(Policy { key_window_ms: 10_000, ..Policy::default() }).await;
        let first = publish_new(&queue, keyed("k")).await;
        bed.advance(secs(10) - MICRO);
        assert!(queue.publish(keyed("k")).await.unwrap().duplicate);
        bed.advance(MICRO);
        let second = publish_new(&queue, keyed("k")).await;
        assert_ne!(second.id, first.id);
        // The window starts at the stored event, not at the duplicate.
        bed.advance(secs(10) - MICRO);
        assert_eq!(queue.publish(keyed("k")).await.unwrap().event.id, second.id);
    }

    async fn every_duplicate_in_a_batch_returns_the_first_event(bed) {
        let first = publish_new(&bed.queue, keyed("k").title("first")).await;
        let again = bed.queue.publish_all(vec![keyed("k").title("second"); 3]).await.unwrap();
        assert!(again.iter().all(|again| again.duplicate && json(&again.event) == json(&first)));
    }

    async fn batch_stores_a_key_once(bed) {
        let batch = vec![keyed("k").title("1"), keyed("x"), keyed("k").title("2"), NewEvent::new("t")];
        let published = bed.queue.publish_all(batch).await.unwrap();
        assert_eq!(published.iter().map(|p| p.duplicate).collect::<Vec<_>>(), [false, false, true, false]);
        assert_eq!(published[2].event.id, published[0].event.id);
        assert_eq!(published[2].event.title.as_deref(), Some("1"));
        assert_eq!(count_events(&bed.queue).await, 3);
        assert_eq!(claim_all(&bed.queue).await.len(), 3);
    }

    // O4
    async fn batch_with_keys_keeps_group_order(bed) {
        let member = || NewEvent::new("t").group("g");
        let batch = vec![member(), member().key("k"), member(), member().key("l"), member().key("k")];
        let published = bed.queue.publish_all(batch).await.unwrap();
        let stored: Vec<i64> = published.iter().filter(|p| !p.duplicate).map(|p| p.event.id).collect();
        assert_eq!(stored.len(), 4);
        assert!(stored.is_sorted(), "{stored:?}");
        for event in stored {
            let got = claim_all(&bed.queue).await;
            assert_eq!(ids(&got), [event]);
            done(&bed.queue, &got[0]).await;
        }
    }

    async fn duplicate_does_not_block_its_batch(bed) {
        let first = publish_new(&bed.queue, keyed("k")).await;
        let published = bed.queue.publish_all(vec![keyed("k"), keyed("new")]).await.unwrap();
        assert_eq!((published[0].duplicate, published[0].event.id), (true, first.id));
        assert!(!published[1].duplicate);
        assert_eq!(ids(&claim_all(&bed.queue).await), [first.id, published[1].event.id]);
    }

    async fn keys_are_separate_per_namespace(bed) {
        let queue = bed.namespace(Policy::default()).await;
        let first = publish_new(&bed.queue, keyed("k")).await;
        let second = publish_new(&queue, keyed("k")).await;
        assert_ne!(first.id, second.id);
        assert_eq!(queue.publish(keyed("k")).await.unwrap().event.id, second.id);
    }

    async fn duplicate_does_not_affect_its_group(bed) {
        let first = publish_new(&bed.queue, keyed("k").group("g")).await;
        assert!(bed.queue.publish(keyed("k").group("g")).await.unwrap().duplicate);
        let second = publish_new(&bed.queue, NewEvent::new("t").group("g")).await;
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        assert_eq!(ids(&claim_all(&bed.queue).await), [second.id]);
        assert!(first.id < second.id);
    }

    // The event is deleted and cannot be returned, but it must not be processed twice.
    async fn key_outlives_its_deleted_event(bed) {
        let queue = bed.namespace(Policy::preset("outbox").unwrap()).await;
        publish_new(&queue, keyed("k")).await;
        done(&queue, &claim_one(&queue).await).await;
        let again = queue.publish(keyed("k")).await;
        assert!(again.is_ok_and(|published| published.duplicate));
        assert!(poll(&queue).await.is_none());
    }
}
