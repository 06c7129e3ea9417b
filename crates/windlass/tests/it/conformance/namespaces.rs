//! Namespaces: registered, changed, and isolated from each other.

use std::time::Duration;

use serde_json::value::RawValue;
use windlass::{
    ClaimRequest, DeadLetterFilter, Error, LeasedEvent, ListFilter, NewEvent, PRESETS, Policy, Queue, Report, Status,
    SubscriptionSpec,
};

use crate::support::*;

fn object(json: &str) -> Option<Box<RawValue>> {
    Some(RawValue::from_string(json.to_owned()).unwrap())
}

/// The error codes of calls on this queue, all of which must fail.
async fn error_codes(queue: &Queue) -> Vec<&'static str> {
    let code = |result: Result<(), Error>| result.expect_err("the call must fail").code();
    vec![
        code(queue.publish(NewEvent::new("t")).await.map(drop)),
        code(queue.claim(ClaimRequest::new("w")).await.map(drop)),
        code(queue.list(ListFilter::default()).await.map(drop)),
        code(queue.dead_letters(DeadLetterFilter::default()).await.map(drop)),
        code(queue.redrive(DeadLetterFilter::default()).await.map(drop)),
        code(queue.purge(DeadLetterFilter::default()).await.map(drop)),
        code(queue.stuck(Duration::ZERO, 10).await.map(drop)),
        code(queue.workers(Duration::ZERO).await.map(drop)),
        code(queue.stats(queue.clock().now()).await.map(drop)),
        code(queue.subscriptions().await.map(drop)),
        code(queue.add_subscription(SubscriptionSpec::new("s")).await.map(drop)),
        code(queue.remove_subscription("s").await),
        code(queue.pause().await),
        code(queue.pause_type("t").await),
        code(queue.pause_subscription("main").await),
        code(queue.describe().await.map(drop)),
        code(queue.release_expired_once().await.map(drop)),
        code(queue.expire_once().await.map(drop)),
        code(queue.reset(1, "main", "x").await),
    ]
}

conformance! {
    // C1
    async fn unknown_namespace_is_refused_by_every_call(bed) {
        let nowhere = bed.queue.in_namespace("nowhere").unwrap();
        let codes = error_codes(&nowhere).await;
        assert!(codes.iter().all(|code| *code == "namespace_not_found"), "{codes:?}");
        let error = nowhere.publish(NewEvent::new("t")).await.unwrap_err();
        assert_eq!(error.to_string(), "namespace 'nowhere' does not exist; create it first");
        assert_eq!(bed.queue.namespaces().await.unwrap().len(), 1);
    }

    // C1
    async fn namespace_is_registered_with_its_metadata(bed) {
        bed.advance(secs(5));
        let metadata = r#"{"owner": "team a"}"#;
        let queue = bed.queue.put_namespace("shop", None, object(metadata)).await.unwrap();
        assert_eq!(queue.namespace(), "shop");
        let described = bed.second_queue().await.in_namespace("shop").unwrap().describe().await.unwrap();
        assert_eq!((described.namespace.as_str(), described.metadata.get()), ("shop", metadata));
        assert_eq!((described.created_at, described.paused), (bed.now(), false));
        assert_eq!(described.policy, Policy::default().into());
        let names: Vec<_> = bed.queue.namespaces().await.unwrap().into_iter().map(|n| n.namespace).collect();
        assert_eq!(names, ["default", "shop"]);
    }

    // C1
    async fn only_given_fields_are_replaced(bed) {
        let bus = Policy::preset("bus").unwrap();
        bed.queue.put_namespace("shop", Some(bus.clone().into()), object(r#"{"a":1}"#)).await.unwrap();
        bed.advance(secs(5));
        let queue = bed.queue.put_namespace("shop", None, object(r#"{"b":2}"#)).await.unwrap();
        let described = queue.describe().await.unwrap();
        assert_eq!((described.policy, described.metadata.get()), (bus.into(), r#"{"b":2}"#));
        let queue = bed.queue.put_namespace("shop", Some(Policy::default().into()), None).await.unwrap();
        let described = queue.describe().await.unwrap();
        assert_eq!((described.policy, described.metadata.get()), (Policy::default().into(), r#"{"b":2}"#));
        assert_eq!(described.created_at, bed.now() - chrono::TimeDelta::seconds(5));
    }

    // Each source document has a preset with its behavior.
    async fn every_preset_can_be_set(bed) {
        for preset in PRESETS {
            let policy = Policy::preset(preset).unwrap();
            let queue = bed.queue.put_namespace(preset, Some(policy.clone().into()), None).await.unwrap();
            assert_eq!(queue.describe().await.unwrap().policy.base, policy);
            publish(&queue, "t").await;
            let delivery = claim_one(&queue).await;
            assert_eq!(delivery.lease_expires_at, after(bed.now(), policy.lease()), "{preset}");
            assert_eq!(delivery.max_retries, policy.max_retries, "{preset}");
        }
    }

    // C1
    async fn namespaces_are_isolated(bed) {
        let (here, there) = (bed.queue.clone(), bed.namespace(Policy::default()).await);
        let failed = publish(&here, "t").await;
        finish(&here, &claim_one(&here).await, Report::dead("x")).await;
        let event = publish(&here, "t").await;
        let delivery = claim_one(&here).await;
        let before = event_snapshot(&here, event.id).await;
        bed.advance(secs(1));

        let unknown = Error::EventNotFound { namespace: "ns".into(), event_id: event.id };
        assert_eq!(there.get(event.id).await.unwrap_err(), unknown);
        assert_eq!(there.log(event.id).await.unwrap_err(), unknown);
        assert_eq!(there.cancel(event.id, None).await, Err(unknown.clone()));
        assert_eq!(there.reset(event.id, "main", "x").await, Err(unknown.clone()));
        let by_name = LeasedEvent::by_worker(event.id, "w");
        for leased in [LeasedEvent::from(&delivery), LeasedEvent::by_lease(event.id, delivery.lease), by_name] {
            assert_eq!(there.finish(leased.clone(), Report::done()).await, Err(unknown.clone()));
            assert_eq!(there.start(leased.clone()).await.unwrap_or(None), None);
            assert_eq!(there.extend(leased, None).await.unwrap_or(None), None);
        }
        assert_eq!(count_events(&there).await, 0);
        assert!(poll(&there).await.is_none());
        assert!(dead_letter_ids(&there).await.is_empty());
        assert_eq!(there.redrive(DeadLetterFilter { event_ids: vec![failed.id], ..Default::default() }).await, Ok(0));
        assert_eq!(there.purge(DeadLetterFilter::default()).await, Ok(0));
        assert!(there.stuck(Duration::ZERO, 10).await.unwrap().is_empty());
        assert!(there.workers(Duration::ZERO).await.unwrap().is_empty());
        assert!(there.stats(bed.now() - chrono::TimeDelta::days(1)).await.unwrap().is_empty());
        bed.advance(LEASE);
        assert_eq!((there.release_expired_once().await, there.expire_once().await), (Ok(0), Ok(0)));
        assert_eq!(event_snapshot(&here, event.id).await, before);
        assert_eq!(dead_letter_ids(&here).await, [failed.id]);
    }

    // C1
    async fn types_and_subscriptions_are_separate_per_namespace(bed) {
        let (here, there) = (bed.queue.clone(), bed.namespace(Policy::default()).await);
        for queue in [&here, &there] {
            queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        }
        let (a, b) = (publish(&here, "t").await, publish(&there, "t").await);
        assert_ne!(a.id, b.id);
        assert_eq!((a.namespace.as_str(), b.namespace.as_str()), ("default", "ns"));
        let of = async |queue: &Queue| claim(queue, ClaimRequest::new("w").subscription("audit").max(10)).await;
        assert_eq!(ids(&of(&there).await), [b.id]);
        assert_eq!(ids(&of(&here).await), [a.id]);
        here.remove_subscription("audit").await.unwrap();
        assert_eq!(there.subscriptions().await.unwrap().len(), 2);
        assert_eq!(view_of(&there, b.id, "audit").await.status, Status::Processing);
    }

    async fn changed_policy_applies_to_next_claim_in_all_processes(bed) {
        let queue = bed.namespace(Policy::default()).await;
        let other = bed.second_queue().await.in_namespace("ns").unwrap();
        publish_many(&queue, "t", 2).await;
        assert_eq!(claim_one(&other).await.lease_expires_at, after(bed.now(), LEASE));
        bed.namespace(Policy { lease_ms: 5_000, ..Policy::default() }).await;
        assert_eq!(claim_one_soon(&other).await.lease_expires_at, after(bed.now(), secs(5)));
        publish(&other, "t").await;
        assert_eq!(claim_one(&queue).await.lease_expires_at, after(bed.now(), secs(5)));
    }

    async fn namespace_created_by_another_process_is_found(bed) {
        let other = bed.second_queue().await;
        let queue = other.in_namespace("ns").unwrap();
        assert_eq!(queue.publish(NewEvent::new("t")).await.unwrap_err().code(), "namespace_not_found");
        bed.namespace(Policy::default()).await;
        publish(&queue, "t").await;
        claim_one(&queue).await;
    }
}
