//! Finishing an attempt: recorded once, and only with the current lease.

use windlass::{
    Action, Attempt, ClaimRequest, Error, Finished, LeasedEvent, NewEvent, Outcome, Policy, Report, Status,
    SubscriptionSpec,
};

use crate::support::*;

fn dead_with(reason: &str) -> Report {
    Report::new(Outcome::Dead { reason: reason.into() })
}

conformance! {
    // Q7, B1, H3
    async fn completed_event_leaves_queue_and_is_logged(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = bed.queue.poll("host:17").await.unwrap().unwrap();
        bed.advance(secs(4));
        let attempt = finish(&bed.queue, &delivery, Report::done().status_code(204).execution_time_ms(3_999)).await;
        let expected = Attempt {
            event_id: event.id,
            subscription: "main".into(),
            attempt: 1,
            worker_id: Some("host:17".into()),
            action: Action::Completed,
            status_code: Some(204),
            execution_time_ms: Some(3_999),
            error_message: None,
            next_retry_at: None,
            retry_count: 0,
            max_retries: Some(3),
            finished_at: bed.now(),
        };
        assert_eq!(attempt, expected);
        let view = view(&bed.queue, event.id).await;
        assert_eq!((view.status, view.attempts, view.updated_at), (Status::Completed, 1, bed.now()));
        assert_eq!((view.ready_at, view.worker_id, view.lease_expires_at), (None, None, None));
        assert_eq!(trail(&bed.queue, event.id).await, [Action::Picked, Action::Completed]);
        bed.advance(LEASE * 100);
        assert!(poll(&bed.queue).await.is_none());
    }

    // Q7
    async fn errors_of_finalized_event_are_kept(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        let errors = ["first".to_owned(), "second".to_owned()];
        let attempt = bed.queue.finalize(&delivery, &errors).await.unwrap();
        assert_eq!(attempt.attempt().unwrap().action, Action::CompletedWithErrors);
        assert_eq!(attempt.attempt().unwrap().error_message.as_deref(), Some("first; second"));
        let view = view(&bed.queue, event.id).await;
        assert_eq!(view.status, Status::CompletedWithErrors);
        assert_eq!(view.error_message.as_deref(), Some("first; second"));
        bed.advance(LEASE * 100);
        assert!(poll(&bed.queue).await.is_none());
        assert!(dead_letter_ids(&bed.queue).await.is_empty());
    }

    // Q7, H10, H11
    async fn batch_is_matched_by_event_subscription_and_lease(bed) {
        bed.queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let types = ["a", "b", "a", "a", "b", "a", "b", "a"];
        let published = bed.queue.publish_all(types.map(NewEvent::new).into()).await.unwrap();
        let events: Vec<i64> = published.iter().map(|published| published.event.id).collect();
        let of = async |subscription: &str, worker: &str| {
            claim(&bed.queue, ClaimRequest::new(worker).subscription(subscription).max(4)).await
        };
        let mut leased = Vec::new();
        for (subscription, worker) in [("main", "m1"), ("audit", "a1"), ("main", "m2"), ("audit", "a2")] {
            leased.extend(of(subscription, worker).await);
        }
        assert_eq!(leased.len(), 16);
        leased.sort_by_key(|delivery| std::cmp::Reverse(delivery.event.id));
        // Sixth event: no report for `main`, and another delivery's lease for `audit`. Third event: done with errors.
        let other_lease = leased[0].lease;
        let mut reports = Vec::new();
        for delivery in &leased {
            let at = events.iter().position(|id| *id == delivery.event.id).unwrap();
            let main = delivery.subscription == "main";
            let report = match (at, main) {
                (5, true) => continue,
                (2, _) => Report::new(Outcome::DoneWithErrors).error("half"),
                (at, true) => Report::done().status_code(200 + at as i32),
                (at, false) => Report::done().execution_time_ms(at as u64),
            };
            let leased = match (at, main) {
                (5, false) => LeasedEvent::by_lease(delivery.event.id, other_lease).of_subscription("audit"),
                _ => LeasedEvent::from(delivery),
            };
            reports.push(((at, main, delivery.worker_id.clone()), (leased, report)));
        }
        let (sent, reports): (Vec<_>, Vec<_>) = reports.into_iter().unzip();
        let finished = bed.queue.finish_all(reports).await.unwrap();
        for ((at, main, worker), finished) in sent.into_iter().zip(finished) {
            let finished = finished.unwrap();
            let Some(attempt) = finished.attempt() else {
                assert_eq!((at, main, finished.is_lost()), (5, false, true));
                continue;
            };
            let subscription = if main { "main" } else { "audit" };
            assert_eq!((attempt.event_id, &*attempt.subscription), (events[at], subscription));
            assert_eq!((attempt.attempt, attempt.worker_id.as_deref()), (1, Some(&*worker)));
            let (code, took) = (attempt.status_code, attempt.execution_time_ms);
            match (at, main) {
                (2, _) => assert_eq!(attempt.action, Action::CompletedWithErrors),
                (_, true) => assert_eq!((code, took), (Some(200 + at as i32), None)),
                (_, false) => assert_eq!((code, took), (None, Some(at as u64))),
            }
        }
        for (at, id) in events.into_iter().enumerate() {
            let expected = match at {
                2 => Status::CompletedWithErrors,
                5 => Status::Processing,
                _ => Status::Completed,
            };
            for subscription in ["main", "audit"] {
                assert_eq!(view_of(&bed.queue, id, subscription).await.status, expected, "{at} {subscription}");
            }
        }
    }

    // B1
    async fn failed_event_of_bus_preset_leaves_queue(bed) {
        let queue = bed.namespace(Policy::preset("bus").unwrap()).await;
        let event = publish(&queue, "t").await;
        fail(&queue, &claim_one(&queue).await).await;
        assert_eq!(status(&queue, event.id).await, Status::Failed);
        bed.advance(LEASE * 100);
        assert!(poll(&queue).await.is_none());
        assert_eq!(trail(&queue, event.id).await, [Action::Picked, Action::Failed]);
    }

    // Q8, H10
    async fn repeated_report_returns_recorded_attempt(bed) {
        let reports =
            [Report::done().status_code(1), Report::failed("no luck"), dead_with("why"), snooze(secs(5)), release()];
        for report in reports {
            let event = publish(&bed.queue, "t").await;
            let delivery = claim_one(&bed.queue).await;
            let first = finish(&bed.queue, &delivery, report.clone()).await;
            let before = event_snapshot(&bed.queue, event.id).await;
            bed.advance(MICRO);
            for lease in
                [LeasedEvent::from(&delivery), LeasedEvent::by_lease(event.id, delivery.lease), LeasedEvent::by_worker(event.id, "w")]
            {
                let again = bed.queue.finish(lease, report.clone()).await.unwrap();
                assert_eq!(again, Finished::Repeated(first.clone()));
            }
            assert_eq!(event_snapshot(&bed.queue, event.id).await, before);
            bed.queue.cancel(event.id, None).await.ok();
        }
    }

    // Q8
    async fn concurrent_identical_reports_log_one_attempt(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        let other = bed.second_queue().await;
        let tasks = (0..10).map(|n| {
            let queue = if n % 2 == 0 { bed.queue.clone() } else { other.clone() };
            let delivery = delivery.clone();
            tokio::spawn(async move { queue.finish(&delivery, Report::done()).await.unwrap() })
        });
        let mut applied = 0;
        for task in tasks.collect::<Vec<_>>() {
            match task.await.unwrap() {
                Finished::Applied(_) => applied += 1,
                Finished::Repeated(attempt) => assert_eq!(attempt.action, Action::Completed),
                Finished::Lost => panic!("a repeated report is not a lost one"),
            }
        }
        assert_eq!(applied, 1);
        assert_eq!(trail(&bed.queue, event.id).await, [Action::Picked, Action::Completed]);
    }

    // Q8
    async fn same_report_twice_in_one_call_counts_once(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        let twice = vec![(LeasedEvent::from(&delivery), Report::done()), (LeasedEvent::by_worker(event.id, "w"), Report::done())];
        let finished = bed.queue.finish_all(twice).await.unwrap();
        let attempt = finished[0].as_ref().unwrap().attempt().unwrap().clone();
        assert_eq!(finished, [Ok(Finished::Applied(attempt.clone())), Ok(Finished::Repeated(attempt))]);
        assert_eq!(trail(&bed.queue, event.id).await, [Action::Picked, Action::Completed]);
    }

    async fn first_of_two_conflicting_reports_counts(bed) {
        let event = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        let both = vec![(LeasedEvent::from(&delivery), Report::failed("x")), (LeasedEvent::from(&delivery), Report::done())];
        let finished = bed.queue.finish_all(both).await.unwrap();
        assert!(matches!(finished[..], [Ok(Finished::Applied(_)), Ok(Finished::Lost)]), "{finished:?}");
        assert_eq!(trail(&bed.queue, event.id).await, [Action::Picked, Action::Failed]);
    }

    // Q10. Reports of several callers are applied in one batch, and the stale report may come first.
    async fn stale_report_does_not_displace_valid_one(bed) {
        let event = publish(&bed.queue, "t").await;
        let old = claim_one(&bed.queue).await;
        bed.advance(LEASE);
        let older = claim_one(&bed.queue).await;
        bed.advance(LEASE);
        let current = claim_one(&bed.queue).await;
        let deliveries = [&old, &current, &older, &current];
        let reports = deliveries.map(|delivery| (delivery.into(), Report::done())).to_vec();
        let finished: Vec<Finished> =
            bed.queue.finish_all(reports).await.unwrap().into_iter().map(Result::unwrap).collect();
        assert!(finished[0].is_lost() && finished[2].is_lost(), "{finished:?}");
        assert!(matches!(&finished[1], Finished::Applied(attempt) if attempt.attempt == 3), "{finished:?}");
        assert!(matches!(&finished[3], Finished::Repeated(_)), "{finished:?}");
        assert_eq!(status(&bed.queue, event.id).await, Status::Completed);
    }

    // Q8
    async fn finishing_unknown_event_is_an_error(bed) {
        let event = publish(&bed.queue, "t").await;
        let lease = claim_one(&bed.queue).await.lease;
        let unknown = Error::EventNotFound { namespace: "default".into(), event_id: event.id + 1 };
        for leased in [LeasedEvent::by_worker(event.id + 1, "w"), LeasedEvent::by_lease(event.id + 1, lease)] {
            assert_eq!(bed.queue.finish(leased.clone(), Report::done()).await, Err(unknown.clone()));
            assert_eq!(bed.queue.start(leased.clone()).await, Err(unknown.clone()));
            assert_eq!(bed.queue.extend(leased, None).await, Err(unknown.clone()));
        }
        assert_eq!(unknown.to_string(), format!("event {} does not exist in namespace 'default'", event.id + 1));
    }

    async fn one_bad_report_does_not_fail_the_others(bed) {
        let events = publish_many(&bed.queue, "t", 3).await;
        let got = claim_all(&bed.queue).await;
        done(&bed.queue, &got[1]).await;
        let reports = vec![
            (LeasedEvent::from(&got[0]), Report::done()),
            (LeasedEvent::by_worker(999_999, "w"), Report::done()),
            (LeasedEvent::from(&got[1]), Report::failed("late")),
            (LeasedEvent::by_worker(events[2], "somebody else"), Report::done()),
            (LeasedEvent::from(&got[2]), Report::failed("no luck")),
        ];
        let finished = bed.queue.finish_all(reports).await.unwrap();
        assert!(matches!(finished[0], Ok(Finished::Applied(_))));
        assert!(matches!(finished[1], Err(Error::EventNotFound { event_id: 999_999, .. })));
        assert_eq!(finished[2], Ok(Finished::Lost));
        assert_eq!(finished[3], Ok(Finished::Lost));
        assert!(matches!(finished[4], Ok(Finished::Applied(_))));
        let statuses = [status(&bed.queue, events[0]).await, status(&bed.queue, events[2]).await];
        assert_eq!(statuses, [Status::Completed, Status::Pending]);
    }

    // H11
    async fn stale_worker_changes_nothing(bed) {
        let event = publish(&bed.queue, "t").await;
        let stale = bed.queue.poll("w1").await.unwrap().unwrap();
        bed.advance(LEASE);
        let current = bed.queue.poll("w2").await.unwrap().unwrap();
        let before = event_snapshot(&bed.queue, event.id).await;
        bed.advance(secs(1));
        let other = bed.second_queue().await;
        for queue in [&bed.queue, &other] {
            for leased in [LeasedEvent::from(&stale), LeasedEvent::by_lease(event.id, stale.lease), LeasedEvent::by_worker(event.id, "w1")] {
                for report in [Report::done(), Report::failed("x"), dead_with("x"), snooze(secs(1)), release()] {
                    assert_eq!(queue.finish(leased.clone(), report).await, Ok(Finished::Lost));
                }
                assert_eq!(queue.start(leased.clone()).await, Ok(None));
                assert_eq!(queue.extend(leased, None).await, Ok(None));
            }
        }
        assert_eq!(event_snapshot(&bed.queue, event.id).await, before);
        done(&bed.queue, &current).await;
    }

    // H11: the same worker claimed the event again after its lease expired. The old lease is no longer valid.
    async fn old_lease_of_same_worker_is_lost(bed) {
        let event = publish(&bed.queue, "t").await;
        let stale = claim_one(&bed.queue).await;
        bed.advance(LEASE);
        let current = claim_one(&bed.queue).await;
        assert_eq!(bed.queue.finish(&stale, Report::done()).await, Ok(Finished::Lost));
        assert_eq!(status(&bed.queue, event.id).await, Status::Processing);
        done(&bed.queue, &current).await;
    }

    async fn late_report_counts_until_event_is_redelivered(bed) {
        publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(LEASE * 2);
        done(&bed.queue, &delivery).await;
        assert!(poll(&bed.queue).await.is_none());
    }

    // H10
    async fn different_report_after_finish_is_lost(bed) {
        let completed = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        done(&bed.queue, &delivery).await;
        assert_eq!(bed.queue.finish(&delivery, Report::failed("x")).await, Ok(Finished::Lost));
        assert_eq!(status(&bed.queue, completed.id).await, Status::Completed);

        let failed = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        fail(&bed.queue, &delivery).await;
        assert_eq!(bed.queue.finish(&delivery, Report::done()).await, Ok(Finished::Lost));
        assert_eq!(status(&bed.queue, failed.id).await, Status::Pending);
        assert_eq!(trail(&bed.queue, failed.id).await, [Action::Picked, Action::Failed]);
    }

    // H10
    async fn second_failure_with_same_message_counts(bed) {
        let event = publish(&bed.queue, "t").await;
        for retry_count in 1..=2 {
            let delivery = claim_one(&bed.queue).await;
            assert_eq!((delivery.attempts, delivery.retry_count), (retry_count, retry_count - 1));
            let failed = bed.queue.finish(LeasedEvent::by_worker(event.id, "w"), Report::failed("same words")).await.unwrap();
            assert!(matches!(&failed, Finished::Applied(attempt) if attempt.retry_count == retry_count), "{failed:?}");
            let again = bed.queue.finish(LeasedEvent::by_worker(event.id, "w"), Report::failed("same words")).await.unwrap();
            assert_eq!(again, Finished::Repeated(failed.attempt().unwrap().clone()));
            bed.advance(BACKOFF);
        }
        use Action::*;
        assert_eq!(trail(&bed.queue, event.id).await, [Picked, Failed, Picked, Failed]);
    }

    async fn worker_can_finish_by_worker_id(bed) {
        let event = publish(&bed.queue, "t").await;
        claim_one(&bed.queue).await;
        let other = bed.second_queue().await;
        assert_eq!(other.finish(LeasedEvent::by_worker(event.id, "w2"), Report::done()).await, Ok(Finished::Lost));
        let finished = other.finish(LeasedEvent::by_worker(event.id, "w"), Report::done().status_code(7)).await.unwrap();
        assert_eq!(finished.attempt().unwrap().status_code, Some(7));
        assert_eq!(status(&bed.queue, event.id).await, Status::Completed);
    }

    async fn lease_token_text_finishes_from_another_process(bed) {
        let event = publish(&bed.queue, "t").await;
        let token = claim_one(&bed.queue).await.lease.to_string();
        let other = bed.second_queue().await;
        let wrong = LeasedEvent::by_lease(event.id, "00000000000000ff".parse().unwrap());
        assert_eq!(other.finish(wrong, Report::done()).await, Ok(Finished::Lost));
        let leased = LeasedEvent::by_lease(event.id, token.parse().unwrap());
        assert!(matches!(other.finish(leased, Report::done()).await, Ok(Finished::Applied(_))));
    }

    // H11
    async fn unclaimed_event_cannot_be_finished(bed) {
        let event = publish(&bed.queue, "t").await;
        assert_eq!(bed.queue.finish(LeasedEvent::by_worker(event.id, "w"), Report::done()).await, Ok(Finished::Lost));
        assert_eq!(bed.queue.start(LeasedEvent::by_worker(event.id, "w")).await, Ok(None));
        assert_eq!(status(&bed.queue, event.id).await, Status::Pending);
        assert_eq!(trail(&bed.queue, event.id).await, []);
    }

    // O10
    async fn snoozed_event_returns_on_time_without_failure(bed) {
        let event = publish(&bed.queue, "t").await;
        let attempt = finish(&bed.queue, &claim_one(&bed.queue).await, snooze(secs(30)).error("not yet")).await;
        assert_eq!((attempt.action, attempt.retry_count), (Action::Snoozed, 0));
        let view = view(&bed.queue, event.id).await;
        assert_eq!((view.status, view.retry_count), (Status::Pending, 0));
        assert_eq!(view.ready_at, Some(after(bed.now(), secs(30))));
        bed.advance(secs(30) - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(MICRO);
        let again = claim_one(&bed.queue).await;
        assert_eq!((again.event.id, again.attempts, again.retry_count), (event.id, 2, 0));
        assert_eq!(trail(&bed.queue, event.id).await, [Action::Picked, Action::Snoozed, Action::Picked]);
    }

    async fn released_event_keeps_its_position(bed) {
        let first = publish(&bed.queue, "t").await;
        bed.advance(secs(1));
        let second = publish(&bed.queue, "t").await;
        let delivery = claim_one(&bed.queue).await;
        bed.advance(secs(1));
        assert_eq!(finish(&bed.queue, &delivery, release()).await.action, Action::Released);
        assert_eq!(view(&bed.queue, first.id).await.ready_at, Some(first.created_at));
        let other = bed.second_queue().await;
        assert_eq!(claim_one(&other).await.event.id, first.id);
        assert_eq!(claim_one(&bed.queue).await.event.id, second.id);
    }

    async fn unrecoverable_event_becomes_dead_letter(bed) {
        let event = publish(&bed.queue, "t").await;
        let report = dead_with("no such user").error("user 5 is gone");
        let attempt = finish(&bed.queue, &claim_one(&bed.queue).await, report).await;
        assert_eq!((attempt.action, attempt.next_retry_at, attempt.retry_count), (Action::Failed, None, 1));
        let page = bed.queue.dead_letters(Default::default()).await.unwrap();
        assert_eq!(page.items[0].event.id, event.id);
        assert_eq!(page.items[0].reason, "no such user");
        assert_eq!(page.items[0].error.as_deref(), Some("user 5 is gone"));
        assert_eq!(status(&bed.queue, event.id).await, Status::Failed);
    }

    async fn error_message_is_sanitized_and_truncated(bed) {
        let event = publish(&bed.queue, "t").await;
        let long = format!("a\0b{}", "ä".repeat(100_000));
        let attempt = finish(&bed.queue, &claim_one(&bed.queue).await, Report::failed(long)).await;
        let kept = attempt.error_message.unwrap();
        assert!(kept.starts_with("a\u{fffd}bä"), "{}", &kept[..20]);
        assert!(kept.len() <= (64 << 10) + 2, "{} bytes", kept.len());
        assert_eq!(view(&bed.queue, event.id).await.error_message.unwrap(), kept);
    }

    async fn largest_report_values_are_stored(bed) {
        for code in [i32::MIN, i32::MAX] {
            publish(&bed.queue, "t").await;
            let report = Report::done().status_code(code).execution_time_ms(i64::MAX as u64);
            let attempt = finish(&bed.queue, &claim_one(&bed.queue).await, report).await;
            let log = bed.queue.log(attempt.event_id).await.unwrap();
            assert_eq!((log[1].status_code, log[1].execution_time_ms), (Some(code), Some(i64::MAX as u64)));
        }
    }

    async fn many_attempts_finish_in_one_call(bed) {
        let events = publish_many(&bed.queue, "t", 600).await;
        let got = claim_all(&bed.queue).await;
        let reports = got.iter().enumerate().map(|(n, delivery)| {
            let report = [Report::done(), Report::failed("x"), dead_with("y")][n % 3].clone();
            (LeasedEvent::from(delivery), report.status_code(n as i32))
        });
        let finished = bed.queue.finish_all(reports.collect()).await.unwrap();
        for (n, finished) in finished.iter().enumerate() {
            let attempt = finished.as_ref().unwrap().attempt().unwrap();
            assert_eq!((attempt.event_id, attempt.status_code), (events[n], Some(n as i32)));
        }
        for (n, expected) in [(3, Status::Completed), (4, Status::Pending), (5, Status::Failed)] {
            assert_eq!(status(&bed.queue, events[n]).await, expected);
        }
        assert_eq!(dead_letter_ids(&bed.queue).await.len(), 200);
    }
}
