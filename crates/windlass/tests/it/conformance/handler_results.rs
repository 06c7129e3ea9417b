//! Handler results: which handlers of a delivery succeeded and need not run again.

use windlass::{
    ClaimRequest, DeadLetterFilter, Delivery, Error, Finished, HandlerResult, Outcome, Policy, Queue, Report,
    SubscriptionSpec,
};

use crate::support::*;

fn succeeded(handler: &str) -> HandlerResult {
    HandlerResult { handler: handler.into(), succeeded: true, error: None }
}

fn failed(handler: &str, error: &str) -> HandlerResult {
    HandlerResult { handler: handler.into(), succeeded: false, error: Some(error.into()) }
}

fn fail_with(results: &[HandlerResult]) -> Report {
    Report::failed("not all of them").handler_results(results.to_vec())
}

async fn results(queue: &Queue, delivery: &Delivery) -> Vec<HandlerResult> {
    queue.handler_results(&[delivery]).await.expect("results can be read").remove(0)
}

/// Fails the delivery with these results and claims the retry.
async fn retry_and_claim(bed: &crate::bed::Bed, delivery: &Delivery, reported: &[HandlerResult]) -> Delivery {
    finish(&bed.queue, delivery, fail_with(reported)).await;
    bed.advance(BACKOFF);
    claim_one(&bed.queue).await
}

/// Redrives the only dead letter and claims it.
async fn redrive_and_claim(queue: &Queue) -> Delivery {
    assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
    claim_one(queue).await
}

/// The field that the error of a report with these results names.
async fn refused_field(queue: &Queue, delivery: &Delivery, results: Vec<HandlerResult>) -> &'static str {
    match queue.finish(delivery, Report::done().handler_results(results)).await {
        Err(Error::Invalid { field, .. } | Error::TooLarge { field, .. }) => field,
        other => panic!("not refused: {other:?}"),
    }
}

conformance! {
    // Q12
    async fn results_survive_a_retry_and_are_replaced(bed) {
        publish(&bed.queue, "t").await;
        let first = claim_one(&bed.queue).await;
        assert_eq!(results(&bed.queue, &first).await, []);
        let second = retry_and_claim(bed, &first, &[succeeded("mail"), failed("audit", "no such user")]).await;
        assert_eq!(results(&bed.queue, &second).await, [failed("audit", "no such user"), succeeded("mail")]);
        let reported = [succeeded("index"), failed("mail", "bounced"), succeeded("audit")];
        let third = retry_and_claim(bed, &second, &reported).await;
        let expected = [succeeded("audit"), succeeded("index"), failed("mail", "bounced")];
        assert_eq!(results(&bed.queue, &third).await, expected);
        finish(&bed.queue, &third, release()).await;
        assert_eq!(results(&bed.queue, &claim_one(&bed.queue).await).await.len(), 3);
    }

    // Q12
    async fn finished_delivery_has_no_results(bed) {
        let ends = [Report::done(), Report::new(Outcome::DoneWithErrors), Report::done().handler_results(vec![succeeded("b")])];
        for end in ends {
            publish(&bed.queue, "t").await;
            let second = retry_and_claim(bed, &claim_one(&bed.queue).await, &[succeeded("a"), failed("c", "x")]).await;
            finish(&bed.queue, &second, end).await;
            assert_eq!(results(&bed.queue, &second).await, []);
        }
        publish(&bed.queue, "t").await;
        let only = claim_one(&bed.queue).await;
        bed.queue.prune_once().await.unwrap();
        finish(&bed.queue, &only, Report::done().handler_results(vec![succeeded("a")])).await;
        assert_eq!(results(&bed.queue, &only).await, []);
    }

    // Q12, C9
    async fn redrive_keeps_only_successful_results(bed) {
        publish(&bed.queue, "t").await;
        let second = retry_and_claim(bed, &claim_one(&bed.queue).await, &[succeeded("a"), failed("b", "x")]).await;
        finish(&bed.queue, &second, Report::dead("no").handler_results(vec![succeeded("c"), failed("d", "y")])).await;
        let third = redrive_and_claim(&bed.queue).await;
        assert_eq!(results(&bed.queue, &third).await, [succeeded("a"), succeeded("c")]);
        // A report without results keeps the stored ones.
        finish(&bed.queue, &third, Report::dead("no")).await;
        let fourth = redrive_and_claim(&bed.queue).await;
        assert_eq!(results(&bed.queue, &fourth).await, [succeeded("a"), succeeded("c")]);
        done(&bed.queue, &fourth).await;
        assert_eq!(results(&bed.queue, &fourth).await, []);
    }

    async fn dead_first_attempt_keeps_successful_results(bed) {
        publish(&bed.queue, "t").await;
        let report = Report::dead("no").handler_results(vec![succeeded("a"), failed("b", "x")]);
        finish(&bed.queue, &claim_one(&bed.queue).await, report).await;
        assert_eq!(results(&bed.queue, &redrive_and_claim(&bed.queue).await).await, [succeeded("a")]);
    }

    // Q12, Q4
    async fn abandoned_or_reset_attempt_keeps_earlier_results(bed) {
        let event = publish(&bed.queue, "t").await;
        retry_and_claim(bed, &claim_one(&bed.queue).await, &[succeeded("a")]).await;
        bed.advance(LEASE);
        assert_eq!(bed.queue.release_expired_once().await, Ok(1));
        let third = claim_one(&bed.queue).await;
        assert_eq!(results(&bed.queue, &third).await, [succeeded("a")]);
        bed.queue.reset(event.id, "main", "stuck").await.unwrap();
        let fourth = claim_one(&bed.queue).await;
        assert_eq!(results(&bed.queue, &fourth).await, [succeeded("a")]);
        finish(&bed.queue, &fourth, snooze(MINUTE).handler_results(vec![succeeded("b")])).await;
        bed.advance(MINUTE);
        let fifth = claim_one(&bed.queue).await;
        assert_eq!(results(&bed.queue, &fifth).await, [succeeded("a"), succeeded("b")]);
        finish(&bed.queue, &fifth, release()).await;
        assert_eq!(results(&bed.queue, &claim_one(&bed.queue).await).await, [succeeded("a"), succeeded("b")]);
    }

    // The event waits for its retry. Canceling it deletes the results of its only attempt.
    async fn canceled_event_deletes_its_results(bed) {
        let event = publish(&bed.queue, "t").await;
        finish(&bed.queue, &claim_one(&bed.queue).await, fail_with(&[succeeded("a")])).await;
        assert_eq!(bed.queue.cancel(event.id, None).await, Ok(1));
        assert_eq!(bed.queue.prune_once().await, Ok(0));
    }

    // Q4
    async fn lost_lease_writes_no_results(bed) {
        publish(&bed.queue, "t").await;
        let first = claim_one(&bed.queue).await;
        bed.advance(LEASE);
        assert_eq!(bed.queue.release_expired_once().await, Ok(1));
        let second = claim_one(&bed.queue).await;
        assert_eq!(bed.queue.finish(&first, fail_with(&[succeeded("a")])).await, Ok(Finished::Lost));
        assert_eq!(results(&bed.queue, &second).await, []);
        let third = retry_and_claim(bed, &second, &[succeeded("b")]).await;
        let report = Report::done().handler_results(vec![succeeded("c")]);
        assert_eq!(bed.queue.finish(&second, report).await, Ok(Finished::Lost));
        assert_eq!(results(&bed.queue, &third).await, [succeeded("b")]);
    }

    // C1
    async fn results_are_separate_per_subscription_and_namespace(bed) {
        let other = bed.namespace(Policy::default()).await;
        bed.queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        publish(&bed.queue, "t").await;
        publish(&other, "t").await;
        let second = ClaimRequest::new("w").subscription("second");
        finish(&bed.queue, &claim_one(&bed.queue).await, fail_with(&[succeeded("a")])).await;
        finish(&bed.queue, &claim(&bed.queue, second.clone()).await[0], fail_with(&[succeeded("b")])).await;
        finish(&other, &claim_one(&other).await, fail_with(&[])).await;
        bed.advance(BACKOFF);
        let (main, second) = (claim_one(&bed.queue).await, claim(&bed.queue, second).await.remove(0));
        let of_other = claim_one(&other).await;
        assert_eq!(bed.queue.handler_results(&[&second, &main]).await.unwrap(), [[succeeded("b")], [succeeded("a")]]);
        assert_eq!(results(&other, &of_other).await, []);
        assert_eq!(results(&other, &main).await, []);
        done(&bed.queue, &main).await;
        assert_eq!(results(&bed.queue, &second).await, [succeeded("b")]);
        bed.queue.remove_subscription("second").await.unwrap();
        assert_eq!(results(&bed.queue, &second).await, []);
    }

    async fn results_are_returned_in_delivery_order(bed) {
        publish_many(&bed.queue, "t", 3).await;
        let reports = claim_all(&bed.queue).await;
        let reports = reports.iter().enumerate().map(|(n, delivery)| (delivery.into(), fail_with(&vec![succeeded("a"), succeeded("b")][..n])));
        assert!(bed.queue.finish_all(reports.collect()).await.unwrap().iter().all(Result::is_ok));
        bed.advance(BACKOFF);
        let mut deliveries = claim_all(&bed.queue).await;
        deliveries.sort_by_key(|delivery| delivery.event.id);
        let new = publish(&bed.queue, "t").await;
        deliveries.insert(1, claim_one(&bed.queue).await);
        assert_eq!(deliveries[1].event.id, new.id);
        let found = bed.queue.handler_results(&deliveries.iter().collect::<Vec<_>>()).await.unwrap();
        assert_eq!(found, [vec![], vec![], vec![succeeded("a")], vec![succeeded("a"), succeeded("b")]]);
        assert_eq!(bed.queue.handler_results(&[]).await, Ok(vec![]));
    }

    async fn invalid_results_are_refused(bed) {
        publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        for name in ["", " a", "a\nb", &"x".repeat(201)] {
            let results = vec![succeeded("a"), succeeded(name)];
            assert_eq!(refused_field(&bed.queue, &delivery, results).await, "handler", "{name:?}");
        }
        let twice = vec![succeeded("a"), succeeded("b"), failed("a", "x")];
        assert_eq!(refused_field(&bed.queue, &delivery, twice).await, "handler");
        let many: Vec<_> = (0..101).map(|n| succeeded(&n.to_string())).collect();
        assert_eq!(refused_field(&bed.queue, &delivery, many.clone()).await, "handler_results");
        let long = failed("long", &("ä".repeat(40_000) + "\0"));
        let second = retry_and_claim(bed, &delivery, &[&many[..99], &[long]].concat()).await;
        let stored = results(&bed.queue, &second).await;
        assert_eq!((stored.len(), stored[99].error.as_ref().unwrap().len()), (100, bed.queue.limits().error_bytes_max));
    }
}
