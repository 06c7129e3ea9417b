//! Invalid input is refused with an error that names the field, and changes nothing.

use std::time::Duration;

use serde_json::value::RawValue;
use windlass::{
    Backoff, ClaimRequest, DeadLetterFilter, Error, LeasedEvent, Limits, ListFilter, NamespacePolicy, NewEvent,
    Outcome, Policy, PolicyOverrides, Queue, Report, SubscriptionSpec,
};

use crate::support::*;

/// The error message of a publish that must fail and store nothing.
async fn refused(queue: &Queue, event: NewEvent) -> String {
    let before = count_events(queue).await;
    let error = queue.publish(event).await.expect_err("the event must be refused");
    assert_eq!(count_events(queue).await, before);
    assert!(poll(queue).await.is_none());
    error.to_string()
}

async fn queue_with_limits(bed: &crate::bed::Bed, limits: Limits) -> Queue {
    Queue::options(&bed.database.url).limits(limits).open().await.unwrap()
}

fn invalid(error: Error, field: &str) {
    assert_eq!(error.code(), "invalid", "{error}");
    assert!(error.to_string().starts_with(&format!("{field}: ")), "{error}");
}

conformance! {
    // H13
    async fn payload_over_the_limit_is_refused(bed) {
        let text = "x".repeat((1 << 20) - 1);
        let error = refused(&bed.queue, NewEvent::new("t").payload(&text).unwrap()).await;
        assert_eq!(error, "payload is 1048577 bytes; the limit is 1048576 bytes");
        let queue = queue_with_limits(bed, Limits { payload_bytes_max: 10, ..Limits::default() }).await;
        let error = refused(&queue, NewEvent::new("t").payload("123456789").unwrap()).await;
        assert_eq!(error, "payload is 11 bytes; the limit is 10 bytes");
    }

    async fn too_deeply_nested_payload_is_refused(bed) {
        let deep = |depth: usize| RawValue::from_string("[".repeat(depth) + &"]".repeat(depth));
        let error = refused(&bed.queue, NewEvent::new("t").payload_raw(deep(101).unwrap())).await;
        assert_eq!(error, "payload: must not nest deeper than 100");
    }

    async fn number_of_distinct_filters_is_limited(bed) {
        let queue = queue_with_limits(bed, Limits { filters_max: 2, ..Limits::default() }).await;
        for tag in ["a", "b", "a"] {
            assert!(queue.claim(ClaimRequest::new("w").tags([tag])).await.unwrap().is_empty());
        }
        let error = queue.claim(ClaimRequest::new("w").tags(["c"])).await.unwrap_err();
        assert_eq!(error, Error::TooManyFilters { max: 2 });
    }

    async fn payload_with_lone_surrogate_is_refused(bed) {
        let lone_surrogate = RawValue::from_string(r#"{"a":"\ud800 alone"}"#.to_owned()).unwrap();
        let error = refused(&bed.queue, NewEvent::new("t").payload_raw(lone_surrogate)).await;
        assert_eq!(error, r"payload: has a \u escape that is half of a character: a lone surrogate");
    }

    async fn invalid_event_names_are_refused(bed) {
        let (long, control) = ("x".repeat(201), "a\u{7}b");
        let queue = &bed.queue;
        for (field, make) in [
            ("type", (|name| NewEvent::new(name)) as fn(&str) -> NewEvent),
            ("tags", |name| NewEvent::new("t").tags([name])),
            ("group_id", |name| NewEvent::new("t").group(name)),
            ("key", |name| NewEvent::new("t").key(name)),
            ("producer", |name| NewEvent::new("t").producer(name)),
        ] {
            assert_eq!(refused(queue, make(&long)).await, format!("{field} is 201 bytes; the limit is 200 bytes"));
            assert_eq!(refused(queue, make(control)).await, format!("{field}: must not contain control characters"));
            if field != "tags" {
                assert_eq!(refused(queue, make("")).await, format!("{field}: must not be empty"));
                let error = refused(queue, make(" a")).await;
                assert_eq!(error, format!("{field}: must not begin or end with white space"));
            }
        }
        assert_eq!(refused(queue, NewEvent::new("a*")).await, "type: must not contain '*'");
        let many: Vec<String> = (0..33).map(|n| n.to_string()).collect();
        assert_eq!(refused(queue, NewEvent::new("t").tags(many)).await, "tags: has 33 tags; the limit is 32");
        let error = refused(queue, NewEvent::new("t").title("a\0b")).await;
        assert_eq!(error, "title: must not contain the character U+0000");
        let error = refused(queue, NewEvent::new("t").metadata(&[1]).unwrap()).await;
        assert_eq!(error, "metadata: must be a JSON object");
    }

    async fn impossible_times_are_refused(bed) {
        let (queue, now) = (&bed.queue, bed.now());
        let event = || NewEvent::new("t");
        let expired = event().run_at(after(now, secs(2))).expires_at(after(now, secs(1)));
        assert_eq!(refused(queue, expired).await, "expires_at: must be after run_at: the event could never start");
        let expired = event().delay(secs(1)).expires_at(after(now, secs(1)));
        assert_eq!(refused(queue, expired).await, "expires_at: must be after run_at: the event could never start");
        let both = event().delay(secs(1)).run_at(now);
        assert_eq!(refused(queue, both).await, "delay_ms: give either run_at or a delay, not both");
        let far = event().run_at(now + chrono::TimeDelta::days(40_000));
        assert_eq!(refused(queue, far).await, "run_at: must be within 100 years from now");
        assert_eq!(refused(queue, event().delay(Duration::MAX)).await, "delay_ms: must be at most 100 years");
    }

    async fn batch_sizes_are_limited(bed) {
        let limits =
            Limits { publish_batch_max: 3, claim_batch_max: 3, finish_batch_max: 3, page_max: 3, ..Limits::default() };
        let queue = queue_with_limits(bed, limits).await;
        let events = |count| vec![NewEvent::new("t"); count];
        invalid(queue.publish_all(events(4)).await.unwrap_err(), "events");
        assert_eq!(count_events(&queue).await, 0);
        let published = queue.publish_all(events(3)).await.unwrap();
        invalid(queue.claim(ClaimRequest::new("w").max(4)).await.unwrap_err(), "max");
        invalid(queue.claim(ClaimRequest::new("w").max(0)).await.unwrap_err(), "max");
        assert_eq!(claim(&queue, ClaimRequest::new("w").max(3)).await.len(), 3);
        let reports = vec![(LeasedEvent::by_worker(published[0].event.id, "w"), Report::done()); 4];
        invalid(queue.finish_all(reports).await.unwrap_err(), "items");
        assert_eq!(status(&queue, published[0].event.id).await, windlass::Status::Processing);
        invalid(queue.list(ListFilter { limit: 4, ..Default::default() }).await.unwrap_err(), "limit");
        invalid(queue.dead_letters(DeadLetterFilter { limit: 4, ..Default::default() }).await.unwrap_err(), "limit");
        invalid(queue.stuck(secs(1), 4).await.unwrap_err(), "limit");
        invalid(queue.list(ListFilter { offset: usize::MAX, ..Default::default() }).await.unwrap_err(), "offset");
    }

    async fn invalid_claims_are_refused(bed) {
        publish(&bed.queue, "t").await;
        let request = || ClaimRequest::new("w");
        let refused = async |request| bed.queue.claim(request).await.unwrap_err();
        invalid(refused(ClaimRequest::new("")).await, "worker_id");
        invalid(refused(ClaimRequest::new("a\nb")).await, "worker_id");
        assert_eq!(refused(ClaimRequest::new("w".repeat(201))).await.code(), "too_large");
        invalid(refused(request().types(["a*b"])).await, "types");
        invalid(refused(request().tags([""])).await, "tags");
        invalid(refused(request().tags(vec!["x"; 33])).await, "tags");
        invalid(refused(request().lease(Duration::ZERO)).await, "lease_ms");
        invalid(refused(request().lease(secs(8 * 86_400))).await, "lease_ms");
        invalid(refused(request().wait(secs(61))).await, "wait_ms");
        let unknown = Error::SubscriptionNotFound { namespace: "default".into(), subscription: "nope".into() };
        assert_eq!(refused(request().subscription("nope")).await, unknown);
        assert_eq!(claim_one(&bed.queue).await.attempts, 1);
    }

    async fn invalid_reports_are_refused(bed) {
        let event = publish(&bed.queue, "t").await.id;
        let delivery = claim_one(&bed.queue).await;
        let before = event_snapshot(&bed.queue, event).await;
        let refused = async |report| bed.queue.finish(&delivery, report).await.unwrap_err();
        invalid(refused(snooze(Duration::MAX)).await, "delay_ms");
        invalid(refused(Report::new(Outcome::Retry { after: Some(Duration::MAX) })).await, "retry_after_ms");
        invalid(refused(Report::done().execution_time_ms(u64::MAX)).await, "execution_time_ms");
        let reason = |reason: String| Report::new(Outcome::Dead { reason });
        invalid(refused(reason("a\0b".into())).await, "reason");
        assert_eq!(refused(reason("x".repeat(1_001))).await.code(), "too_large");
        let detail = serde_json::value::to_raw_value(&"x".repeat(64 << 10)).unwrap();
        assert_eq!(refused(Report::done().detail(detail)).await.code(), "too_large");
        invalid(bed.queue.finish(LeasedEvent::by_worker(event, ""), Report::done()).await.unwrap_err(), "worker_id");
        invalid(bed.queue.extend(&delivery, Some(Duration::ZERO)).await.unwrap_err(), "lease_ms");
        invalid(bed.queue.extend(&delivery, Some(Duration::MAX)).await.unwrap_err(), "lease_ms");
        assert_eq!(bed.queue.reset(event, "main", "x".repeat(201).as_str()).await.unwrap_err().code(), "too_large");
        assert_eq!(event_snapshot(&bed.queue, event).await, before);
        done(&bed.queue, &delivery).await;
    }

    // C1: names validated
    async fn invalid_namespaces_and_subscriptions_are_refused(bed) {
        let queue = &bed.queue;
        let long = "x".repeat(64);
        for name in ["", "a b", "-a", "ä", "a/b", "a\nb", long.as_str()] {
            invalid(queue.put_namespace(name, None, None).await.map(drop).unwrap_err(), "namespace");
            invalid(queue.in_namespace(name).map(drop).unwrap_err(), "namespace");
            invalid(queue.add_subscription(SubscriptionSpec::new(name)).await.unwrap_err(), "subscription");
        }
        let list = RawValue::from_string("[1]".into()).unwrap();
        invalid(queue.put_namespace("ns", None, Some(list)).await.map(drop).unwrap_err(), "metadata");
        invalid(queue.add_subscription(SubscriptionSpec::new("s").types(["*a"])).await.unwrap_err(), "types");
        invalid(queue.add_subscription(SubscriptionSpec::new("s").tags(["a\0"])).await.unwrap_err(), "tags");
        let policy = PolicyOverrides { lease_ms: Some(0), ..Default::default() };
        invalid(queue.add_subscription(SubscriptionSpec::new("s").policy(policy)).await.unwrap_err(), "lease_ms");
        invalid(queue.pause_type("a*b").await.unwrap_err(), "type");
        assert_eq!(queue.namespaces().await.unwrap().len(), 1);
        assert_eq!(queue.subscriptions().await.unwrap().len(), 1);
    }

    async fn invalid_policies_are_refused(bed) {
        let default = Policy::default;
        let too_large = u64::MAX;
        let cases = [
            ("lease_ms", Policy { lease_ms: 0, ..default() }),
            ("lease_ms", Policy { lease_ms: too_large, ..default() }),
            ("max_attempts", Policy { max_attempts: 0, ..default() }),
            ("max_attempts", Policy { max_attempts: 10_001, ..default() }),
            ("max_retries", Policy { max_retries: Some(10_001), ..default() }),
            ("key_window_ms", Policy { key_window_ms: too_large, ..default() }),
            ("deadline_horizon_ms", Policy { deadline_horizon_ms: Some(too_large), ..default() }),
            ("backoff.delay_ms", Policy { backoff: Backoff::Fixed { delay_ms: too_large }, ..default() }),
            (
                "backoff.jitter",
                Policy { backoff: Backoff::Exponential { initial_ms: 1, max_ms: 1, jitter: f64::NAN }, ..default() },
            ),
        ];
        for (field, policy) in cases {
            invalid(bed.queue.put_namespace("ns", Some(policy.into()), None).await.map(drop).unwrap_err(), field);
        }
        let types = [("a*b".to_owned(), PolicyOverrides::default())].into();
        let policy = NamespacePolicy { base: default(), types };
        invalid(bed.queue.put_namespace("ns", Some(policy), None).await.map(drop).unwrap_err(), "types");
        assert_eq!(bed.queue.namespaces().await.unwrap().len(), 1);
    }

    async fn number_of_subscriptions_is_limited(bed) {
        let queue = queue_with_limits(bed, Limits { subscriptions_max: 2, ..Limits::default() }).await;
        queue.add_subscription(SubscriptionSpec::new("second").types(["x"])).await.unwrap();
        invalid(queue.add_subscription(SubscriptionSpec::new("third")).await.unwrap_err(), "subscription");
    }
}
