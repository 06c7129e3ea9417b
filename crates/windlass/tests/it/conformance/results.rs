//! Handler results: what need not run again.

use windlass::{
    ClaimRequest, DeadLetterFilter, Delivery, Error, Finished, HandlerResult, Outcome, Policy, Queue, Report,
    SubscriptionSpec,
};

use crate::support::*;

fn ok(handler: &str) -> HandlerResult {
    HandlerResult { handler: handler.into(), succeeded: true, error: None }
}

fn bad(handler: &str, error: &str) -> HandlerResult {
    HandlerResult { handler: handler.into(), succeeded: false, error: Some(error.into()) }
}

fn again(results: &[HandlerResult]) -> Report {
    Report::failed("not all of them").handler_results(results.to_vec())
}

async fn results(queue: &Queue, delivery: &Delivery) -> Vec<HandlerResult> {
    queue.handler_results(&[delivery]).await.expect("results can be read").remove(0)
}

/// Fails the delivery with these results, and takes it again.
async fn retried(bed: &crate::bed::Bed, delivery: &Delivery, reported: &[HandlerResult]) -> Delivery {
    finish(&bed.queue, delivery, again(reported)).await;
    bed.advance(BACKOFF);
    take(&bed.queue).await
}

async fn redriven(queue: &Queue) -> Delivery {
    assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
    take(queue).await
}

/// The field that a report of these results is refused by.
async fn refused(queue: &Queue, delivery: &Delivery, results: Vec<HandlerResult>) -> &'static str {
    match queue.finish(delivery, Report::done().handler_results(results)).await {
        Err(Error::Invalid { field, .. } | Error::TooLarge { field, .. }) => field,
        other => panic!("not refused: {other:?}"),
    }
}

conformance! {
    // Q12
    async fn results_survive_a_retry_and_are_renewed(bed) {
        publish(&bed.queue, "t").await;
        let first = take(&bed.queue).await;
        assert_eq!(results(&bed.queue, &first).await, []);
        let second = retried(bed, &first, &[ok("mail"), bad("audit", "no such user")]).await;
        assert_eq!(results(&bed.queue, &second).await, [bad("audit", "no such user"), ok("mail")]);
        let third = retried(bed, &second, &[ok("index"), bad("mail", "bounced"), ok("audit")]).await;
        assert_eq!(results(&bed.queue, &third).await, [ok("audit"), ok("index"), bad("mail", "bounced")]);
        finish(&bed.queue, &third, release()).await;
        assert_eq!(results(&bed.queue, &take(&bed.queue).await).await.len(), 3);
    }

    // Q12
    async fn at_the_end_none_are_left(bed) {
        let ends = [Report::done(), Report::new(Outcome::DoneWithErrors), Report::done().handler_results(vec![ok("b")])];
        for end in ends {
            publish(&bed.queue, "t").await;
            let second = retried(bed, &take(&bed.queue).await, &[ok("a"), bad("c", "x")]).await;
            finish(&bed.queue, &second, end).await;
            assert_eq!(results(&bed.queue, &second).await, []);
        }
        publish(&bed.queue, "t").await;
        let only = take(&bed.queue).await;
        bed.queue.prune_once().await.unwrap();
        finish(&bed.queue, &only, Report::done().handler_results(vec![ok("a")])).await;
        assert_eq!(results(&bed.queue, &only).await, []);
    }

    // Q12, C9
    async fn a_redrive_runs_what_never_succeeded(bed) {
        publish(&bed.queue, "t").await;
        let second = retried(bed, &take(&bed.queue).await, &[ok("a"), bad("b", "x")]).await;
        finish(&bed.queue, &second, Report::dead("no").handler_results(vec![ok("c"), bad("d", "y")])).await;
        let third = redriven(&bed.queue).await;
        assert_eq!(results(&bed.queue, &third).await, [ok("a"), ok("c")]);
        // What nobody says anything about stays as it was.
        finish(&bed.queue, &third, Report::dead("no")).await;
        let fourth = redriven(&bed.queue).await;
        assert_eq!(results(&bed.queue, &fourth).await, [ok("a"), ok("c")]);
        done(&bed.queue, &fourth).await;
        assert_eq!(results(&bed.queue, &fourth).await, []);
    }

    async fn a_first_attempt_that_is_buried_keeps_what_succeeded(bed) {
        publish(&bed.queue, "t").await;
        let report = Report::dead("no").handler_results(vec![ok("a"), bad("b", "x")]);
        finish(&bed.queue, &take(&bed.queue).await, report).await;
        assert_eq!(results(&bed.queue, &redriven(&bed.queue).await).await, [ok("a")]);
    }

    // Q12, Q4
    async fn an_attempt_that_is_abandoned_or_reset_keeps_earlier_results(bed) {
        let event = publish(&bed.queue, "t").await;
        retried(bed, &take(&bed.queue).await, &[ok("a")]).await;
        bed.advance(LEASE);
        assert_eq!(bed.queue.release_expired_once().await, Ok(1));
        let third = take(&bed.queue).await;
        assert_eq!(results(&bed.queue, &third).await, [ok("a")]);
        bed.queue.reset(event.id, "main", "stuck").await.unwrap();
        let fourth = take(&bed.queue).await;
        assert_eq!(results(&bed.queue, &fourth).await, [ok("a")]);
        finish(&bed.queue, &fourth, snooze(MINUTE).handler_results(vec![ok("b")])).await;
        bed.advance(MINUTE);
        let fifth = take(&bed.queue).await;
        assert_eq!(results(&bed.queue, &fifth).await, [ok("a"), ok("b")]);
        finish(&bed.queue, &fifth, release()).await;
        assert_eq!(results(&bed.queue, &take(&bed.queue).await).await, [ok("a"), ok("b")]);
    }

    // It waits after its only attempt: what that reported goes with it.
    async fn what_is_called_off_takes_its_results_along(bed) {
        let event = publish(&bed.queue, "t").await;
        finish(&bed.queue, &take(&bed.queue).await, again(&[ok("a")])).await;
        assert_eq!(bed.queue.cancel(event.id, None).await, Ok(1));
        assert_eq!(bed.queue.prune_once().await, Ok(0));
    }

    // Q4
    async fn a_lost_lease_writes_none(bed) {
        publish(&bed.queue, "t").await;
        let first = take(&bed.queue).await;
        bed.advance(LEASE);
        assert_eq!(bed.queue.release_expired_once().await, Ok(1));
        let second = take(&bed.queue).await;
        assert_eq!(bed.queue.finish(&first, again(&[ok("a")])).await, Ok(Finished::Lost));
        assert_eq!(results(&bed.queue, &second).await, []);
        let third = retried(bed, &second, &[ok("b")]).await;
        assert_eq!(bed.queue.finish(&second, Report::done().handler_results(vec![ok("c")])).await, Ok(Finished::Lost));
        assert_eq!(results(&bed.queue, &third).await, [ok("b")]);
    }

    // C1
    async fn neither_subscriptions_nor_namespaces_see_each_others(bed) {
        let other = bed.namespace(Policy::default()).await;
        bed.queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        publish(&bed.queue, "t").await;
        publish(&other, "t").await;
        let second = ClaimRequest::new("w").subscription("second");
        finish(&bed.queue, &take(&bed.queue).await, again(&[ok("a")])).await;
        finish(&bed.queue, &claim(&bed.queue, second.clone()).await[0], again(&[ok("b")])).await;
        finish(&other, &take(&other).await, again(&[])).await;
        bed.advance(BACKOFF);
        let (main, second) = (take(&bed.queue).await, claim(&bed.queue, second).await.remove(0));
        let foreign = take(&other).await;
        assert_eq!(bed.queue.handler_results(&[&second, &main]).await.unwrap(), [[ok("b")], [ok("a")]]);
        assert_eq!(results(&other, &foreign).await, []);
        assert_eq!(results(&other, &main).await, []);
        done(&bed.queue, &main).await;
        assert_eq!(results(&bed.queue, &second).await, [ok("b")]);
        bed.queue.remove_subscription("second").await.unwrap();
        assert_eq!(results(&bed.queue, &second).await, []);
    }

    async fn those_of_many_deliveries_come_in_their_order(bed) {
        publish_many(&bed.queue, "t", 3).await;
        let reports = take_all(&bed.queue).await;
        let reports = reports.iter().enumerate().map(|(n, delivery)| (delivery.into(), again(&vec![ok("a"), ok("b")][..n])));
        assert!(bed.queue.finish_all(reports.collect()).await.unwrap().iter().all(Result::is_ok));
        bed.advance(BACKOFF);
        let mut tried = take_all(&bed.queue).await;
        tried.sort_by_key(|delivery| delivery.event.id);
        let new = publish(&bed.queue, "t").await;
        tried.insert(1, take(&bed.queue).await);
        assert_eq!(tried[1].event.id, new.id);
        let found = bed.queue.handler_results(&tried.iter().collect::<Vec<_>>()).await.unwrap();
        assert_eq!(found, [vec![], vec![], vec![ok("a")], vec![ok("a"), ok("b")]]);
        assert_eq!(bed.queue.handler_results(&[]).await, Ok(vec![]));
    }

    async fn bad_results_are_refused_by_field(bed) {
        publish(&bed.queue, "t").await;
        let delivery = take(&bed.queue).await;
        for name in ["", " a", "a\nb", &"x".repeat(201)] {
            assert_eq!(refused(&bed.queue, &delivery, vec![ok("a"), ok(name)]).await, "handler", "{name:?}");
        }
        assert_eq!(refused(&bed.queue, &delivery, vec![ok("a"), ok("b"), bad("a", "x")]).await, "handler");
        let many: Vec<_> = (0..101).map(|n| ok(&n.to_string())).collect();
        assert_eq!(refused(&bed.queue, &delivery, many.clone()).await, "handler_results");
        let long = bad("long", &("ä".repeat(40_000) + "\0"));
        let second = retried(bed, &delivery, &[&many[..99], &[long]].concat()).await;
        let kept = results(&bed.queue, &second).await;
        assert_eq!((kept.len(), kept[99].error.as_ref().unwrap().len()), (100, bed.queue.limits().error_bytes_max));
    }
}
