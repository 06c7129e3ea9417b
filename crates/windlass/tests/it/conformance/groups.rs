//! Groups: one at a time, in the order of due time and publishing, across all processes.

use windlass::{Action, Backoff, Delivery, GroupFailurePolicy, NewEvent, Policy, Queue, Report, Status};

use crate::support::*;

fn member(group: &str) -> NewEvent {
    NewEvent::new("t").group(group)
}

async fn join(queue: &Queue, group: &str) -> i64 {
    publish_new(queue, member(group)).await.id
}

/// Takes the one that is ready, which must be this and no other.
async fn take_only(queue: &Queue, event_id: i64) -> Delivery {
    let mut got = take_all(queue).await;
    assert_eq!(ids(&got), [event_id]);
    got.remove(0)
}

async fn continuing(bed: &crate::bed::Bed) -> Queue {
    let backoff = Backoff::Fixed { delay_ms: 10_000 };
    bed.namespace(Policy { group_failure: GroupFailurePolicy::Continue, backoff, ..Policy::default() }).await
}

conformance! {
    // O4
    async fn a_group_goes_one_at_a_time_in_order(bed) {
        let mut members = Vec::new();
        for _ in 0..4 {
            members.push(join(&bed.queue, "g").await);
            bed.advance(secs(1));
        }
        assert_eq!(view(&bed.queue, members[1]).await.ready_at, None);
        for member in members {
            let delivery = take_only(&bed.queue, member).await;
            assert!(poll(&bed.queue).await.is_none());
            done(&bed.queue, &delivery).await;
        }
        assert!(poll(&bed.queue).await.is_none());
        // An empty group begins anew.
        let next = join(&bed.queue, "g").await;
        take_only(&bed.queue, next).await;
    }

    // O4
    async fn different_groups_and_loners_go_in_parallel(bed) {
        let a = [join(&bed.queue, "a").await, join(&bed.queue, "a").await];
        let b = [join(&bed.queue, "b").await, join(&bed.queue, "b").await];
        let loners = publish_many(&bed.queue, "t", 2).await;
        let got = take_all(&bed.queue).await;
        assert_eq!(ids(&got), [a[0], b[0], loners[0], loners[1]]);
        done(&bed.queue, &got[1]).await;
        take_only(&bed.queue, b[1]).await;
    }

    // O4
    async fn a_group_is_one_across_processes(bed) {
        let other = bed.other().await;
        let members = [join(&bed.queue, "g").await, join(&other, "g").await, join(&bed.queue, "g").await];
        let first = take_only(&other, members[0]).await;
        assert!(poll(&bed.queue).await.is_none() && poll(&other).await.is_none());
        done(&other, &first).await;
        let second = take_soon(&bed.queue).await;
        assert_eq!(second.event.id, members[1]);
        assert!(poll(&bed.queue).await.is_none() && poll(&other).await.is_none());
        done(&bed.queue, &second).await;
        assert_eq!(take_soon(&other).await.event.id, members[2]);
    }

    // O4
    async fn members_of_other_types_tags_and_priorities_keep_the_order(bed) {
        let events = vec![
            member("g").priority(-1),
            NewEvent::new("u").group("g").priority(9),
            member("g").tags(["x"]),
            NewEvent::new("v").group("g"),
        ];
        let published = bed.queue.publish_all(events).await.unwrap();
        for published in published {
            let delivery = take_only(&bed.queue, published.event.id).await;
            done(&bed.queue, &delivery).await;
        }
    }

    // O4
    async fn a_batch_joins_its_groups_in_order(bed) {
        let events = (0..60).map(|n| member(&format!("g{}", n % 3)).payload(&n).unwrap()).collect();
        bed.queue.publish_all(events).await.unwrap();
        for round in 0..20 {
            let got = take_all(&bed.queue).await;
            let payloads: Vec<i32> = got.iter().map(|delivery| delivery.event.payload().unwrap()).collect();
            assert_eq!(payloads, [3 * round, 3 * round + 1, 3 * round + 2]);
            let reports = got.iter().map(|delivery| (delivery.into(), Report::done())).collect();
            assert!(bed.queue.finish_all(reports).await.unwrap().iter().all(Result::is_ok));
        }
        assert!(poll(&bed.queue).await.is_none());
    }

    async fn groups_belong_to_their_namespace_and_subscription(bed) {
        let ns = bed.namespace(Policy::default()).await;
        bed.queue.add_subscription(windlass::SubscriptionSpec::new("second")).await.unwrap();
        let here = [join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        let there = join(&ns, "g").await;
        take_only(&ns, there).await;
        let main = take_only(&bed.queue, here[0]).await;
        let second = claim(&bed.queue, windlass::ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(ids(&second), [here[0]]);
        done(&bed.queue, &second[0]).await;
        assert!(poll(&bed.queue).await.is_none());
        let second = claim(&bed.queue, windlass::ClaimRequest::new("w").subscription("second").max(9)).await;
        assert_eq!(ids(&second), [here[1]]);
        done(&bed.queue, &main).await;
        take_only(&bed.queue, here[1]).await;
    }

    // O4
    async fn a_blocked_group_waits_for_the_retry_of_its_first(bed) {
        let members = [join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        fail(&bed.queue, &take_only(&bed.queue, members[0]).await).await;
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(BACKOFF - MICRO);
        assert!(poll(&bed.queue).await.is_none());
        assert_eq!(view(&bed.queue, members[1]).await.ready_at, None);
        bed.advance(MICRO);
        let again = take_only(&bed.queue, members[0]).await;
        done(&bed.queue, &again).await;
        take_only(&bed.queue, members[1]).await;
    }

    // O4
    async fn a_continuing_group_passes_a_member_that_waits_for_its_retry(bed) {
        let queue = continuing(bed).await;
        let members = [join(&queue, "g").await, join(&queue, "g").await, join(&queue, "g").await];
        let attempt = fail(&queue, &take_only(&queue, members[0]).await).await;
        assert_eq!(attempt.next_retry_at, Some(after(bed.now(), secs(10))));
        let second = take_only(&queue, members[1]).await;
        // Still one at a time, also when the retry is due.
        bed.advance(secs(10));
        assert!(poll(&queue).await.is_none());
        done(&queue, &second).await;
        // In the order in which they became due.
        for now in [members[2], members[0]] {
            let delivery = take_only(&queue, now).await;
            done(&queue, &delivery).await;
        }
    }

    async fn a_continuing_group_comes_back_to_the_one_it_passed(bed) {
        let queue = continuing(bed).await;
        let members = [join(&queue, "g").await, join(&queue, "g").await];
        fail(&queue, &take_only(&queue, members[0]).await).await;
        let second = take_only(&queue, members[1]).await;
        done(&queue, &second).await;
        bed.advance(secs(10) - MICRO);
        assert!(poll(&queue).await.is_none());
        assert_eq!(view(&queue, members[0]).await.ready_at, Some(after(bed.now(), MICRO)));
        bed.advance(MICRO);
        take_only(&queue, members[0]).await;
    }

    async fn a_continuing_group_takes_a_newcomer_while_all_others_wait(bed) {
        let queue = continuing(bed).await;
        let first = join(&queue, "g").await;
        fail(&queue, &take_only(&queue, first).await).await;
        assert!(poll(&queue).await.is_none());
        let newcomer = join(&queue, "g").await;
        let delivery = take_only(&queue, newcomer).await;
        bed.advance(secs(10));
        assert!(poll(&queue).await.is_none());
        done(&queue, &delivery).await;
        take_only(&queue, first).await;
    }

    // O4
    async fn burying_the_first_frees_the_next(bed) {
        let members = [join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        finish(&bed.queue, &take_only(&bed.queue, members[0]).await, Report::dead("x")).await;
        assert_eq!(status(&bed.queue, members[0]).await, Status::Failed);
        take_only(&bed.queue, members[1]).await;
    }

    async fn a_poisoned_first_frees_the_next(bed) {
        let queue = bed.namespace(Policy { max_attempts: 1, ..Policy::default() }).await;
        let members = [join(&queue, "g").await, join(&queue, "g").await];
        take_only(&queue, members[0]).await;
        bed.advance(LEASE);
        assert_eq!(take_soon(&queue).await.event.id, members[1]);
        assert_eq!(status(&queue, members[0]).await, Status::Failed);
    }

    async fn an_abandoned_first_stays_the_first(bed) {
        let members = [join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        take_only(&bed.queue, members[0]).await;
        bed.advance(LEASE);
        let again = take_only(&bed.queue, members[0]).await;
        assert_eq!(again.attempts, 2);
        assert!(poll(&bed.queue).await.is_none());
    }

    async fn a_released_first_stays_the_first(bed) {
        for policy in [Policy::default(), Policy { group_failure: GroupFailurePolicy::Continue, ..Policy::default() }] {
            let queue = bed.namespace(policy).await;
            let members = [join(&queue, "g").await, join(&queue, "g").await];
            finish(&queue, &take_only(&queue, members[0]).await, release()).await;
            for member in members {
                let delivery = take_only(&queue, member).await;
                done(&queue, &delivery).await;
            }
        }
    }

    // O10
    async fn a_snoozed_first_blocks_its_group_or_is_passed(bed) {
        let blocked = [join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        finish(&bed.queue, &take_only(&bed.queue, blocked[0]).await, snooze(secs(5))).await;
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(secs(5));
        take_only(&bed.queue, blocked[0]).await;

        let queue = continuing(bed).await;
        let passing = [join(&queue, "g").await, join(&queue, "g").await];
        finish(&queue, &take_only(&queue, passing[0]).await, snooze(secs(5))).await;
        take_only(&queue, passing[1]).await;
    }

    async fn a_cancelled_member_is_left_out(bed) {
        let members = [join(&bed.queue, "g").await, join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        assert_eq!(bed.queue.cancel(members[1], None).await, Ok(1));
        let first = take_only(&bed.queue, members[0]).await;
        done(&bed.queue, &first).await;
        take_only(&bed.queue, members[2]).await;
        assert_eq!(trail(&bed.queue, members[1]).await, [Action::Cancelled]);
    }

    async fn cancelling_the_first_frees_the_next(bed) {
        let members = [join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        assert_eq!(bed.queue.cancel(members[0], None).await, Ok(1));
        take_only(&bed.queue, members[1]).await;
    }

    async fn cancelling_a_member_behind_a_held_one_frees_nothing(bed) {
        let members = [join(&bed.queue, "g").await, join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        take_only(&bed.queue, members[0]).await;
        assert_eq!(bed.queue.cancel(members[1], None).await, Ok(1));
        assert!(poll(&bed.queue).await.is_none());
    }

    // O4
    async fn a_delayed_member_takes_its_place_when_it_is_due(bed) {
        for queue in [bed.queue.clone(), continuing(bed).await] {
            let first = join(&queue, "g").await;
            let delayed = publish_new(&queue, member("g").delay(secs(10))).await.id;
            let second = join(&queue, "g").await;
            for now in [first, second] {
                let delivery = take_only(&queue, now).await;
                done(&queue, &delivery).await;
            }
            assert!(poll(&queue).await.is_none());
            assert_eq!(view(&queue, delayed).await.ready_at, Some(after(bed.now(), secs(10))));
            bed.advance(secs(9));
            let third = join(&queue, "g").await;
            bed.advance(secs(2));
            let last = join(&queue, "g").await;
            for now in [third, delayed, last] {
                let delivery = take_only(&queue, now).await;
                done(&queue, &delivery).await;
            }
        }
    }

    // O4
    async fn a_delayed_first_member_blocks_no_other(bed) {
        for queue in [bed.queue.clone(), continuing(bed).await] {
            let delayed = publish_new(&queue, member("g").delay(secs(10))).await.id;
            let others = [join(&queue, "g").await, join(&queue, "g").await];
            assert_eq!(view(&queue, delayed).await.ready_at, None);
            let first = take_only(&queue, others[0]).await;
            bed.advance(secs(10));
            // It is due, and another one of its group is in progress.
            assert!(poll(&queue).await.is_none());
            done(&queue, &first).await;
            for now in [others[1], delayed] {
                let delivery = take_only(&queue, now).await;
                done(&queue, &delivery).await;
            }
        }
    }

    // O4
    async fn members_of_a_batch_are_ordered_by_due_time(bed) {
        let events = vec![member("g").delay(secs(2)), member("g"), member("g").delay(secs(1)), member("g")];
        let published: Vec<i64> =
            bed.queue.publish_all(events).await.unwrap().iter().map(|published| published.event.id).collect();
        for (at, wait) in [(1, 0), (3, 0), (2, 1), (0, 1)] {
            bed.advance(secs(wait));
            let delivery = take_only(&bed.queue, published[at]).await;
            done(&bed.queue, &delivery).await;
        }
    }

    // A retry that has begun to wait keeps its place: what is published or redriven meanwhile does not cut its backoff short.
    async fn a_redriven_member_goes_behind_those_that_are_due(bed) {
        let queue = bed.namespace(Policy { backoff: Backoff::Fixed { delay_ms: 10_000 }, ..Policy::default() }).await;
        let members = [join(&queue, "g").await, join(&queue, "g").await, join(&queue, "g").await];
        finish(&queue, &take_only(&queue, members[0]).await, Report::dead("x")).await;
        fail(&queue, &take_only(&queue, members[1]).await).await;
        assert_eq!(queue.redrive(windlass::DeadLetterFilter::default()).await, Ok(1));
        assert!(poll(&queue).await.is_none());
        assert_eq!(queue.cancel(members[2], None).await, Ok(1));
        bed.advance(secs(10) - MICRO);
        assert!(poll(&queue).await.is_none());
        bed.advance(MICRO);
        for now in [members[1], members[0]] {
            let delivery = take_only(&queue, now).await;
            done(&queue, &delivery).await;
        }
    }

    async fn a_reset_member_stays_the_first(bed) {
        let members = [join(&bed.queue, "g").await, join(&bed.queue, "g").await];
        take_only(&bed.queue, members[0]).await;
        bed.queue.reset(members[0], "main", "by hand").await.unwrap();
        take_only(&bed.queue, members[0]).await;
        assert_eq!(view(&bed.queue, members[1]).await.ready_at, None);
    }

    async fn a_whole_batch_of_heads_ends_together(bed) {
        let events = (0..200).map(|n| member(&format!("g{}", n % 100))).collect();
        bed.queue.publish_all(events).await.unwrap();
        for _ in 0..2 {
            let got = take_all(&bed.queue).await;
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
    async fn a_group_of_two_thousand_goes_in_order(bed) {
        let events = (0..2_000).map(|_| member("g")).collect();
        let published = bed.queue.publish_all(events).await.unwrap();
        for published in &published[..500] {
            let delivery = take(&bed.queue).await;
            assert_eq!(delivery.event.id, published.event.id);
            done(&bed.queue, &delivery).await;
        }
        let got = take_all(&bed.queue).await;
        assert_eq!(ids(&got), [published[500].event.id]);
    }
}
