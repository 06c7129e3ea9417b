//! Groups: one delivery at a time, ordered by due time and publish order, across all processes.

use windlass::{Action, Backoff, Delivery, GroupFailurePolicy, NewEvent, Policy, Queue, Report, Status};

use crate::support::*;

fn member(group: &str) -> NewEvent {
    NewEvent::new("t").group(group)
}

async fn publish_to(queue: &Queue, group: &str) -> i64 {
    publish_new(queue, member(group)).await.id
}

/// Claims everything that is ready, which must be this event only.
async fn claim_only(queue: &Queue, event_id: i64) -> Delivery {
    let mut got = claim_all(queue).await;
    assert_eq!(ids(&got), [event_id]);
    got.remove(0)
}

async fn namespace_with_continue_policy(bed: &crate::bed::Bed) -> Queue {
    let backoff = Backoff::Fixed { delay_ms: 10_000 };
    bed.namespace(Policy { group_failure: GroupFailurePolicy::Continue, backoff, ..Policy::default() }).await
}

conformance! {
    // O4
    async fn group_is_processed_one_at_a_time_in_order(bed) {
        let mut members = Vec::new();
        for _ in 0..4 {
            members.push(publish_to(&bed.queue, "g").await);
            bed.advance(secs(1));
        }
        assert_eq!(view(&bed.queue, members[1]).await.ready_at, None);
        for member in members {
            let delivery = claim_only(&bed.queue, member).await;
            assert!(poll(&bed.queue).await.is_none());
            done(&bed.queue, &delivery).await;
        }
        assert!(poll(&bed.queue).await.is_none());
        // An empty group accepts new members.
        let next = publish_to(&bed.queue, "g").await;
        claim_only(&bed.queue, next).await;
    }

    // O4
    async fn groups_and_ungrouped_events_run_in_parallel(bed) {
        let a = [publish_to(&bed.queue, "a").await, publish_to(&bed.queue, "a").await];
        let b = [publish_to(&bed.queue, "b").await, publish_to(&bed.queue, "b").await];
        let ungrouped = publish_many(&bed.queue, "t", 2).await;
        let got = claim_all(&bed.queue).await;
        assert_eq!(ids(&got), [a[0], b[0], ungrouped[0], ungrouped[1]]);
        done(&bed.queue, &got[1]).await;
        claim_only(&bed.queue, b[1]).await;
    }

    // O4
    async fn group_order_holds_across_processes(bed) {
        let other = bed.second_queue().await;
        let members =
            [publish_to(&bed.queue, "g").await, publish_to(&other, "g").await, publish_to(&bed.queue, "g").await];
        let first = claim_only(&other, members[0]).await;
        assert!(poll(&bed.queue).await.is_none() && poll(&other).await.is_none());
        done(&other, &first).await;
        let second = claim_one_soon(&bed.queue).await;
        assert_eq!(second.event.id, members[1]);
        assert!(poll(&bed.queue).await.is_none() && poll(&other).await.is_none());
        done(&bed.queue, &second).await;
        assert_eq!(claim_one_soon(&other).await.event.id, members[2]);
    }

    // O4
    async fn order_holds_across_types_tags_and_priorities(bed) {
        let events = vec![
            member("g").priority(-1),
            NewEvent::new("u").group("g").priority(9),
            member("g").tags(["x"]),
            NewEvent::new("v").group("g"),
        ];
        let published = bed.queue.publish_all(events).await.unwrap();
        for published in published {
            let delivery = claim_only(&bed.queue, published.event.id).await;
            done(&bed.queue, &delivery).await;
        }
    }

    // O4
    async fn batch_members_keep_publish_order(bed) {
        let events = (0..60).map(|n| member(&format!("g{}", n % 3)).payload(&n).unwrap()).collect();
        bed.queue.publish_all(events).await.unwrap();
        for round in 0..20 {
            let got = claim_all(&bed.queue).await;
            let payloads: Vec<i32> = got.iter().map(|delivery| delivery.event.payload().unwrap()).collect();
            assert_eq!(payloads, [3 * round, 3 * round + 1, 3 * round + 2]);
            let reports = got.iter().map(|delivery| (delivery.into(), Report::done())).collect();
            assert!(bed.queue.finish_all(reports).await.unwrap().iter().all(Result::is_ok));
        }
        assert!(poll(&bed.queue).await.is_none());
    }

    async fn groups_are_separate_per_namespace_and_subscription(bed) {
        let ns = bed.namespace(Policy::default()).await;
        bed.queue.add_subscription(windlass::SubscriptionSpec::new("second")).await.unwrap();
        let here = [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        let there = publish_to(&ns, "g").await;
        claim_only(&ns, there).await;
        let main = claim_only(&bed.queue, here[0]).await;
        let second = claim(&bed.queue, windlass::ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(ids(&second), [here[0]]);
        done(&bed.queue, &second[0]).await;
        assert!(poll(&bed.queue).await.is_none());
        let second = claim(&bed.queue, windlass::ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(ids(&second), [here[1]]);
        done(&bed.queue, &main).await;
        claim_only(&bed.queue, here[1]).await;
    }

    // O4
    async fn block_policy_waits_for_the_retrying_head(bed) {
        let members = [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        fail(&bed.queue, &claim_only(&bed.queue, members[0]).await).await;
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(BACKOFF - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        assert_eq!(view(&bed.queue, members[1]).await.ready_at, None);
        bed.advance(MICRO);
        let again = claim_only(&bed.queue, members[0]).await;
        done(&bed.queue, &again).await;
        claim_only(&bed.queue, members[1]).await;
    }

    // O4
    async fn continue_policy_skips_member_waiting_for_retry(bed) {
        let queue = namespace_with_continue_policy(bed).await;
        let members = [publish_to(&queue, "g").await, publish_to(&queue, "g").await, publish_to(&queue, "g").await];
        let attempt = fail(&queue, &claim_only(&queue, members[0]).await).await;
        assert_eq!(attempt.next_retry_at, Some(after(bed.now(), secs(10))));
        let second = claim_only(&queue, members[1]).await;
        // When the retry is due, the group still processes one delivery at a time.
        bed.advance(secs(10));
        assert!(poll(&queue).await.is_none());
        done(&queue, &second).await;
        // Ordered by the time when they became due.
        for expected in [members[2], members[0]] {
            let delivery = claim_only(&queue, expected).await;
            done(&queue, &delivery).await;
        }
    }

    async fn continue_policy_returns_to_the_skipped_member(bed) {
        let queue = namespace_with_continue_policy(bed).await;
        let members = [publish_to(&queue, "g").await, publish_to(&queue, "g").await];
        fail(&queue, &claim_only(&queue, members[0]).await).await;
        let second = claim_only(&queue, members[1]).await;
        done(&queue, &second).await;
        bed.advance(secs(10) - MICRO);
        assert!(poll(&queue).await.is_none());
        assert_eq!(view(&queue, members[0]).await.ready_at, Some(after(bed.now(), MICRO)));
        bed.advance(MICRO);
        claim_only(&queue, members[0]).await;
    }

    async fn continue_policy_delivers_new_member_during_retry(bed) {
        let queue = namespace_with_continue_policy(bed).await;
        let first = publish_to(&queue, "g").await;
        fail(&queue, &claim_only(&queue, first).await).await;
        assert!(poll(&queue).await.is_none());
        let new_member = publish_to(&queue, "g").await;
        let delivery = claim_only(&queue, new_member).await;
        bed.advance(secs(10));
        assert!(poll(&queue).await.is_none());
        done(&queue, &delivery).await;
        claim_only(&queue, first).await;
    }

    // O4
    async fn dead_head_frees_the_next_member(bed) {
        let members = [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        finish(&bed.queue, &claim_only(&bed.queue, members[0]).await, Report::dead("x")).await;
        assert_eq!(status(&bed.queue, members[0]).await, Status::Failed);
        claim_only(&bed.queue, members[1]).await;
    }

    async fn head_that_exhausts_attempts_frees_the_next(bed) {
        let queue = bed.namespace(Policy { max_attempts: 1, ..Policy::default() }).await;
        let members = [publish_to(&queue, "g").await, publish_to(&queue, "g").await];
        claim_only(&queue, members[0]).await;
        bed.advance(LEASE);
        assert_eq!(claim_one_soon(&queue).await.event.id, members[1]);
        assert_eq!(status(&queue, members[0]).await, Status::Failed);
    }

    async fn head_with_expired_lease_stays_the_head(bed) {
        let members = [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        claim_only(&bed.queue, members[0]).await;
        bed.advance(LEASE);
        let again = claim_only(&bed.queue, members[0]).await;
        assert_eq!(again.attempts, 2);
        assert!(poll(&bed.queue).await.is_none());
    }

    async fn released_head_stays_the_head(bed) {
        for policy in [Policy::default(), Policy { group_failure: GroupFailurePolicy::Continue, ..Policy::default() }] {
            let queue = bed.namespace(policy).await;
            let members = [publish_to(&queue, "g").await, publish_to(&queue, "g").await];
            finish(&queue, &claim_only(&queue, members[0]).await, release()).await;
            for member in members {
                let delivery = claim_only(&queue, member).await;
                done(&queue, &delivery).await;
            }
        }
    }

    // O10
    async fn snoozed_head_blocks_or_is_skipped_by_policy(bed) {
        let blocked = [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        finish(&bed.queue, &claim_only(&bed.queue, blocked[0]).await, snooze(secs(5))).await;
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(secs(5));
        claim_only(&bed.queue, blocked[0]).await;

        let queue = namespace_with_continue_policy(bed).await;
        let skipped = [publish_to(&queue, "g").await, publish_to(&queue, "g").await];
        finish(&queue, &claim_only(&queue, skipped[0]).await, snooze(secs(5))).await;
        claim_only(&queue, skipped[1]).await;
    }

    async fn canceled_member_is_skipped(bed) {
        let members =
            [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        assert_eq!(bed.queue.cancel(members[1], None).await, Ok(1));
        let first = claim_only(&bed.queue, members[0]).await;
        done(&bed.queue, &first).await;
        claim_only(&bed.queue, members[2]).await;
        assert_eq!(trail(&bed.queue, members[1]).await, [Action::Cancelled]);
    }

    async fn canceling_the_head_frees_the_next(bed) {
        let members = [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        assert_eq!(bed.queue.cancel(members[0], None).await, Ok(1));
        claim_only(&bed.queue, members[1]).await;
    }

    async fn canceling_member_behind_leased_head_frees_nothing(bed) {
        let members =
            [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        claim_only(&bed.queue, members[0]).await;
        assert_eq!(bed.queue.cancel(members[1], None).await, Ok(1));
        assert!(poll(&bed.queue).await.is_none());
    }

    // O4
    async fn delayed_member_joins_the_order_when_due(bed) {
        for queue in [bed.queue.clone(), namespace_with_continue_policy(bed).await] {
            let first = publish_to(&queue, "g").await;
            let delayed = publish_new(&queue, member("g").delay(secs(10))).await.id;
            let second = publish_to(&queue, "g").await;
            for expected in [first, second] {
                let delivery = claim_only(&queue, expected).await;
                done(&queue, &delivery).await;
            }
            assert!(poll(&queue).await.is_none());
            assert_eq!(view(&queue, delayed).await.ready_at, Some(after(bed.now(), secs(10))));
            bed.advance(secs(9));
            let third = publish_to(&queue, "g").await;
            bed.advance(secs(2));
            let last = publish_to(&queue, "g").await;
            for expected in [third, delayed, last] {
                let delivery = claim_only(&queue, expected).await;
                done(&queue, &delivery).await;
            }
        }
    }

    // O4
    async fn delayed_head_does_not_block_others(bed) {
        for queue in [bed.queue.clone(), namespace_with_continue_policy(bed).await] {
            let delayed = publish_new(&queue, member("g").delay(secs(10))).await.id;
            let others = [publish_to(&queue, "g").await, publish_to(&queue, "g").await];
            assert_eq!(view(&queue, delayed).await.ready_at, None);
            let first = claim_only(&queue, others[0]).await;
            bed.advance(secs(10));
            // The delayed member is due while another member is in progress.
            assert!(poll(&queue).await.is_none());
            done(&queue, &first).await;
            for expected in [others[1], delayed] {
                let delivery = claim_only(&queue, expected).await;
                done(&queue, &delivery).await;
            }
        }
    }

    // O4
    async fn batch_members_are_ordered_by_due_time(bed) {
        let events = vec![member("g").delay(secs(2)), member("g"), member("g").delay(secs(1)), member("g")];
        let published: Vec<i64> =
            bed.queue.publish_all(events).await.unwrap().iter().map(|published| published.event.id).collect();
        for (at, wait) in [(1, 0), (3, 0), (2, 1), (0, 1)] {
            bed.advance(secs(wait));
            let delivery = claim_only(&bed.queue, published[at]).await;
            done(&bed.queue, &delivery).await;
        }
    }

    // A member that waits for its retry stays the head: a redrive or cancel in the group does not shorten its backoff.
    async fn redriven_member_goes_behind_due_members(bed) {
        let queue = bed.namespace(Policy { backoff: Backoff::Fixed { delay_ms: 10_000 }, ..Policy::default() }).await;
        let members = [publish_to(&queue, "g").await, publish_to(&queue, "g").await, publish_to(&queue, "g").await];
        finish(&queue, &claim_only(&queue, members[0]).await, Report::dead("x")).await;
        fail(&queue, &claim_only(&queue, members[1]).await).await;
        assert_eq!(queue.redrive(windlass::DeadLetterFilter::default()).await, Ok(1));
        assert!(poll(&queue).await.is_none());
        assert_eq!(queue.cancel(members[2], None).await, Ok(1));
        bed.advance(secs(10) - MICRO);
        assert!(poll(&queue).await.is_none());
        bed.advance(MICRO);
        for expected in [members[1], members[0]] {
            let delivery = claim_only(&queue, expected).await;
            done(&queue, &delivery).await;
        }
    }

    async fn reset_member_stays_the_head(bed) {
        let members = [publish_to(&bed.queue, "g").await, publish_to(&bed.queue, "g").await];
        claim_only(&bed.queue, members[0]).await;
        bed.queue.reset(members[0], "main", "by hand").await.unwrap();
        claim_only(&bed.queue, members[0]).await;
        assert_eq!(view(&bed.queue, members[1]).await.ready_at, None);
    }

    async fn many_group_heads_finish_in_one_batch(bed) {
        let events = (0..200).map(|n| member(&format!("g{}", n % 100))).collect();
        bed.queue.publish_all(events).await.unwrap();
        for _ in 0..2 {
            let got = claim_all(&bed.queue).await;
            assert_eq!(got.len(), 100);
            let reports = got.iter().map(|delivery| (delivery.into(), Report::done())).collect();
            assert!(
                bed.queue
                    .finish_all(reports)
                    .await
                    .unwrap()
                    .iter()
                    .all(|finished| !finished.clone().unwrap().is_lost())
            );
        }
        assert!(poll(&bed.queue).await.is_none());
    }

    // O4
    async fn group_of_two_thousand_is_processed_in_order(bed) {
        let events = (0..2_000).map(|_| member("g")).collect();
        let published = bed.queue.publish_all(events).await.unwrap();
        for published in &published[..500] {
            let delivery = claim_one(&bed.queue).await;
            assert_eq!(delivery.event.id, published.event.id);
            done(&bed.queue, &delivery).await;
        }
        let got = claim_all(&bed.queue).await;
        assert_eq!(ids(&got), [published[500].event.id]);
    }
}
