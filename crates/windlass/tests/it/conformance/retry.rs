//! Retries: backoff, retry limits, and failures that are final.

use windlass::{
    Action, Backoff, Finished, NewEvent, Outcome, PRESETS, Policy, PolicyOverrides, Report, Status, SubscriptionSpec,
};

use crate::support::*;

conformance! {
    // H4, H6
    async fn failed_event_is_retried_after_its_backoff(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(secs(1));
        let report = Report::failed("no luck").status_code(500).execution_time_ms(987);
        let attempt = finish(&bed.queue, &delivery, report).await;
        let again_at = after(bed.now(), BACKOFF);
        assert_eq!((attempt.action, attempt.attempt), (Action::Failed, 1));
        assert_eq!((attempt.retry_count, attempt.max_retries), (1, Some(3)));
        assert_eq!((attempt.status_code, attempt.execution_time_ms), (Some(500), Some(987)));
        assert_eq!((attempt.next_retry_at, attempt.finished_at), (Some(again_at), bed.now()));
        assert_eq!(attempt.error_message.as_deref(), Some("no luck"));

        let view = view(&bed.queue, event.id).await;
        assert_eq!((view.status, view.attempts, view.retry_count), (Status::Pending, 1, 1));
        assert_eq!((view.ready_at, view.next_retry_at), (Some(again_at), Some(again_at)));
        assert_eq!(view.error_message.as_deref(), Some("no luck"));
        assert_eq!((view.worker_id, view.updated_at), (None, bed.now()));

        bed.advance(BACKOFF - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        let again = claim_one(&bed.queue).await;
        assert_eq!((again.attempts, again.retry_count), (2, 1));
    }

    // H5, H6, O2
    async fn failure_that_reaches_max_retries_is_final(bed) {
        let event = publish(&bed.queue, "t").await;
        for _ in 0..2 {
            fail(&bed.queue, &claim_one(&bed.queue).await).await;
            bed.advance(BACKOFF);
        }
        let delivery = claim_one(&bed.queue).await;
        let last = finish(&bed.queue, &delivery, Report::failed("third")).await;
        assert_eq!((last.retry_count, last.max_retries, last.next_retry_at), (3, Some(3), None));
        let view = view(&bed.queue, event.id).await;
        assert_eq!((view.status, view.attempts, view.retry_count), (Status::Failed, 3, 3));
        let letter = bed.queue.dead_letters(Default::default()).await.unwrap().items.remove(0);
        assert_eq!((letter.event.id, letter.reason.as_str()), (event.id, "Max retries exceeded"));
        assert_eq!(letter.error.as_deref(), Some("third"));

        let before = event_snapshot(&bed.queue, event.id).await;
        let again = bed.queue.finish(&delivery, Report::failed("third")).await.unwrap();
        assert_eq!(again, Finished::Repeated(last));
        assert_eq!(event_snapshot(&bed.queue, event.id).await, before);
        bed.advance(BACKOFF * 100);
        assert!(poll(&bed.queue).await.is_none());
        use Action::*;
        assert_eq!(trail(&bed.queue, event.id).await, [Picked, Failed, Picked, Failed, Picked, Failed]);
    }

    async fn event_can_set_its_own_max_retries(bed) {
        let once = publish_new(&bed.queue, NewEvent::new("t").max_retries(1)).await;
        let other = publish(&bed.queue, "t").await;
        for delivery in claim_all(&bed.queue).await {
            fail(&bed.queue, &delivery).await;
        }
        assert_eq!(status(&bed.queue, once.id).await, Status::Failed);
        assert_eq!(status(&bed.queue, other.id).await, Status::Pending);
    }

    async fn worker_can_set_the_retry_delay(bed) {
        publish(&bed.queue, "t").await;
        let report = Report::new(Outcome::Retry { after: Some(secs(7)) });
        let attempt = finish(&bed.queue, &claim_one(&bed.queue).await, report).await;
        assert_eq!(attempt.next_retry_at, Some(after(bed.now(), secs(7))));
        bed.advance(secs(7) - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        assert_eq!(claim_one(&bed.queue).await.retry_count, 1);
    }

    async fn exponential_backoff_doubles_up_to_its_maximum(bed) {
        let backoff = Backoff::Exponential { initial_ms: 100, max_ms: 300, jitter: 0.0 };
        let queue = bed.namespace(Policy { backoff, max_retries: None, ..Policy::default() }).await;
        publish(&queue, "t").await;
        for wait in [100, 200, 300, 300] {
            let attempt = fail(&queue, &claim_one(&queue).await).await;
            assert_eq!(attempt.next_retry_at, Some(after(bed.now(), millis(wait))));
            bed.advance(millis(wait));
        }
    }

    async fn backoff_with_jitter_stays_within_its_bounds(bed) {
        let backoff = Backoff::Exponential { initial_ms: 1_000, max_ms: 1_000, jitter: 0.5 };
        let queue = bed.namespace(Policy { backoff, max_retries: None, ..Policy::default() }).await;
        publish_many(&queue, "t", 50).await;
        let mut waits = Vec::new();
        for delivery in claim_all(&queue).await {
            let attempt = fail(&queue, &delivery).await;
            waits.push(attempt.next_retry_at.unwrap().signed_duration_since(bed.now()).num_microseconds().unwrap());
        }
        assert!(waits.iter().all(|wait| (500_000..=1_000_000).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "all the same: {waits:?}");
    }

    // Each source document has a preset: it decides after failures, unrecoverable errors and missing handlers.
    async fn every_preset_handles_failures_as_documented(bed) {
        use Status::*;
        let table = [
            // preset, status after a failure, backoff, status after an unrecoverable error, status without a handler
            ("default", Pending, Some(300), Failed, Pending),
            ("queue", Pending, Some(60), CompletedWithErrors, Pending),
            ("bus", Failed, None, Failed, Pending),
            ("tags", Pending, Some(300), Failed, Pending),
            ("core", Failed, None, Failed, Failed),
            ("outbox", Pending, Some(0), Failed, Failed),
        ];
        assert_eq!(table.map(|(preset, ..)| preset), PRESETS);
        for (preset, failed, wait, unrecoverable, unhandled) in table {
            let queue =
                bed.queue.put_namespace(preset, Some(Policy::preset(preset).unwrap().into()), None).await.unwrap();
            let events = publish_many(&queue, "t", 3).await;
            let got = claim_all(&queue).await;
            let attempt = fail(&queue, &got[0]).await;
            let again_at = wait.map(|wait| after(bed.now(), secs(wait)));
            assert_eq!((status(&queue, events[0]).await, attempt.next_retry_at), (failed, again_at), "{preset}");
            finish(&queue, &got[1], Report::dead("never")).await;
            assert_eq!(status(&queue, events[1]).await, unrecoverable, "{preset}");
            finish(&queue, &got[2], Report::new(Outcome::Unhandled)).await;
            assert_eq!(status(&queue, events[2]).await, unhandled, "{preset}");
        }
    }

    async fn dead_letter_reasons_match_the_document(bed) {
        let queue = bed.namespace(Policy::preset("core").unwrap()).await;
        publish_many(&queue, "user.created", 3).await;
        let got = claim_all(&queue).await;
        for (delivery, report) in
            got.iter().zip([Report::failed("x"), Report::dead("y"), Report::new(Outcome::Unhandled)])
        {
            bed.advance(secs(1));
            finish(&queue, delivery, report).await;
        }
        let page = queue.dead_letters(Default::default()).await.unwrap();
        let reasons: Vec<_> = page.items.iter().rev().map(|letter| letter.reason.as_str()).collect();
        assert_eq!(reasons, ["Handler error", "Handler error", "No handler for event user.created"]);
    }

    async fn unhandled_event_waits_one_lease_without_failure(bed) {
        let event = publish(&bed.queue, "t").await;
        finish(&bed.queue, &claim_one(&bed.queue).await, Report::new(Outcome::Unhandled)).await;
        bed.advance(LEASE - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        let again = claim_one(&bed.queue).await;
        assert_eq!((again.event.id, again.attempts, again.retry_count), (event.id, 2, 0));
    }

    // Q16
    async fn event_abandoned_too_often_becomes_dead_letter(bed) {
        let queue = bed.namespace(Policy { max_attempts: 3, max_retries: None, ..Policy::default() }).await;
        let event = publish(&queue, "t").await;
        for attempts in 1..=3 {
            assert_eq!(claim_one(&queue).await.attempts, attempts);
            bed.advance(LEASE);
        }
        assert!(poll(&queue).await.is_none());
        let view = view(&queue, event.id).await;
        assert_eq!((view.status, view.attempts, view.retry_count), (Status::Failed, 3, 0));
        let letter = queue.dead_letters(Default::default()).await.unwrap().items.remove(0);
        assert_eq!((letter.event.id, letter.attempts), (event.id, 3));
        assert_eq!((letter.reason.as_str(), letter.status), ("Max attempts exceeded", Status::Failed));
        use Action::*;
        assert_eq!(trail(&queue, event.id).await, [Picked, Abandoned, Picked, Abandoned, Picked, Abandoned]);
    }

    // Q16
    async fn event_that_fails_too_often_becomes_dead_letter(bed) {
        let policy = Policy { max_attempts: 2, max_retries: None, backoff: Backoff::None, ..Policy::default() };
        let queue = bed.namespace(policy).await;
        let event = publish(&queue, "t").await;
        fail(&queue, &claim_one(&queue).await).await;
        let last = finish(&queue, &claim_one(&queue).await, Report::failed("last")).await;
        assert_eq!((last.attempt, last.retry_count, last.next_retry_at), (2, 2, None));
        assert!(poll(&queue).await.is_none());
        let letter = queue.dead_letters(Default::default()).await.unwrap().items.remove(0);
        assert_eq!((letter.event.id, letter.reason.as_str()), (event.id, "Max attempts exceeded"));
        assert_eq!(letter.error.as_deref(), Some("last"));
    }

    // Q16, O10
    async fn snoozes_and_releases_do_not_count_toward_max_attempts(bed) {
        let queue = bed.namespace(Policy { max_attempts: 2, max_retries: Some(1), ..Policy::default() }).await;
        let event = publish(&queue, "t").await;
        for _ in 0..4 {
            finish(&queue, &claim_one(&queue).await, snooze(secs(1))).await;
            bed.advance(secs(1));
            finish(&queue, &claim_one(&queue).await, release()).await;
        }
        for attempts in [9, 10] {
            let delivery = claim_one(&queue).await;
            assert_eq!((delivery.attempts, delivery.retry_count), (attempts, 0));
            bed.advance(LEASE);
        }
        assert!(poll(&queue).await.is_none());
        assert_eq!(status(&queue, event.id).await, Status::Failed);
    }

    // Q16: attempts in one subscription do not count in another.
    async fn each_subscription_counts_its_own_retries(bed) {
        let policy = PolicyOverrides { max_retries: Some(Some(1)), ..Default::default() };
        bed.queue.add_subscription(SubscriptionSpec::new("strict").policy(policy)).await.unwrap();
        let event = publish(&bed.queue, "t").await;
        fail(&bed.queue, &claim_one(&bed.queue).await).await;
        let strict = claim(&bed.queue, windlass::ClaimRequest::new("w").subscription("strict")).await.remove(0);
        assert_eq!((strict.retry_count, strict.max_retries), (0, Some(1)));
        fail(&bed.queue, &strict).await;
        assert_eq!(view_of(&bed.queue, event.id, "strict").await.status, Status::Failed);
        assert_eq!(view(&bed.queue, event.id).await.status, Status::Pending);
    }

    async fn policy_change_does_not_affect_published_events(bed) {
        let queue = bed.namespace(Policy { max_retries: Some(2), ..Policy::default() }).await;
        let old = publish(&queue, "t").await;
        let queue = bed.namespace(Policy { max_retries: Some(1), ..Policy::default() }).await;
        let new = publish(&queue, "t").await;
        for delivery in claim_all(&queue).await {
            fail(&queue, &delivery).await;
        }
        assert_eq!(status(&queue, old.id).await, Status::Pending);
        assert_eq!(status(&queue, new.id).await, Status::Failed);
    }
}
