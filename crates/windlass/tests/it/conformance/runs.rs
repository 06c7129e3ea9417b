//! Runs: consecutive deliveries of one group under one lease.

use windlass::{
    Action, ClaimRequest, DeadLetterFilter, Delivery, GroupFailurePolicy, NewEvent, Policy, Queue, Report, Status,
    SubscriptionSpec,
};

use crate::open_transaction::OpenTransaction;
use crate::support::*;

async fn publish_members(queue: &Queue, group: &str, count: usize) -> Vec<i64> {
    let events = (0..count).map(|_| NewEvent::new("t").group(group)).collect();
    queue.publish_all(events).await.unwrap().iter().map(|published| published.event.id).collect()
}

/// Claims up to ten single deliveries or runs; a run has up to `group_run` deliveries.
async fn claim_runs(queue: &Queue, group_run: usize) -> Vec<Delivery> {
    claim(queue, ClaimRequest::new("w").max(10).group_run(group_run)).await
}

async fn complete_all(queue: &Queue, deliveries: &[Delivery]) {
    let reports = deliveries.iter().map(|delivery| (delivery.into(), Report::done())).collect();
    for finished in queue.finish_all(reports).await.unwrap() {
        assert!(!finished.unwrap().is_lost());
    }
}

conformance! {
    // O4
    async fn run_contains_consecutive_members_in_order(bed) {
        let members = publish_members(&bed.queue, "g", 5).await;
        let run = claim_runs(&bed.queue, 3).await;
        assert_eq!(ids(&run), members[..3]);
        assert!(run.iter().all(|delivery| delivery.lease == run[0].lease && delivery.attempts == 1));
        assert!(claim_runs(&bed.queue, 3).await.is_empty());
        // The group stays in progress until the last delivery of the run is finished.
        for delivery in &run {
            assert!(poll(&bed.queue).await.is_none());
            done(&bed.queue, delivery).await;
        }
        let rest = claim_runs(&bed.queue, 3).await;
        assert_eq!(ids(&rest), members[3..]);
        complete_all(&bed.queue, &rest).await;
        assert!(poll(&bed.queue).await.is_none());
        for member in members {
            assert_eq!(status(&bed.queue, member).await, Status::Completed);
            assert_eq!(trail(&bed.queue, member).await, [Action::Picked, Action::Completed]);
        }
    }

    async fn claim_can_mix_runs_and_single_deliveries(bed) {
        let (a, b) = (publish_members(&bed.queue, "a", 3).await, publish_members(&bed.queue, "b", 3).await);
        let ungrouped = publish_many(&bed.queue, "t", 2).await;
        let got = claim_runs(&bed.queue, 2).await;
        assert_eq!(ids(&got), [a[0], a[1], b[0], b[1], ungrouped[0], ungrouped[1]]);
        complete_all(&bed.queue, &got).await;
        assert_eq!(ids(&claim_runs(&bed.queue, 2).await), [a[2], b[2]]);
    }

    // A run counts as one delivery.
    async fn max_counts_runs(bed) {
        let (a, _) = (publish_members(&bed.queue, "a", 3).await, publish_members(&bed.queue, "b", 3).await);
        let got = claim(&bed.queue, ClaimRequest::new("w").max(1).group_run(10)).await;
        assert_eq!(ids(&got), a);
    }

    async fn failure_releases_the_rest_of_the_run(bed) {
        for (group, group_failure) in [("a", GroupFailurePolicy::Block), ("b", GroupFailurePolicy::Continue)] {
            let queue = bed.namespace(Policy { group_failure, ..Policy::default() }).await;
            let members = publish_members(&queue, group, 4).await;
            let run = claim_runs(&queue, 4).await;
            done(&queue, &run[0]).await;
            fail(&queue, &run[1]).await;
            for later in &run[2..] {
                assert!(queue.finish(later, Report::done()).await.unwrap().is_lost());
            }
            // Released members look as if they had never been claimed.
            assert_eq!(view(&queue, members[2]).await.attempts, 0);
            assert_eq!(trail(&queue, members[2]).await, []);
            if group_failure == GroupFailurePolicy::Block {
                assert!(poll(&queue).await.is_none());
                bed.advance(BACKOFF);
                assert_eq!(ids(&claim_runs(&queue, 4).await), [members[1]]);
            } else {
                assert_eq!(ids(&claim_runs(&queue, 4).await), members[2..]);
            }
        }
    }

    async fn dead_released_or_snoozed_member_releases_the_rest(bed) {
        // (group, report, position in the run of the delivery that is claimed next)
        let reports = [("a", Report::dead("x"), 1), ("b", release(), 0), ("c", snooze(secs(5)), 0)];
        for (group, report, next) in reports {
            let queue = bed.namespace(Policy::default()).await;
            let members = publish_members(&queue, group, 3).await;
            let run = claim_runs(&queue, 3).await;
            finish(&queue, &run[0], report).await;
            assert!(queue.finish(&run[1], Report::done()).await.unwrap().is_lost());
            bed.advance(secs(5));
            assert_eq!(claim_runs(&queue, 1).await[0].event.id, members[next]);
        }
    }

    // Q16
    async fn only_first_delivery_of_abandoned_run_counts_attempt(bed) {
        let members = publish_members(&bed.queue, "g", 3).await;
        let run = claim_runs(&bed.queue, 3).await;
        done(&bed.queue, &run[0]).await;
        bed.advance(LEASE);
        // A delivery with an earlier attempt is claimed alone: a crash then counts for the delivery that causes it.
        let again = claim_runs(&bed.queue, 3).await;
        assert_eq!(ids(&again), [members[1]]);
        assert_eq!(again[0].attempts, 2);
        assert!(bed.queue.finish(&run[2], Report::done()).await.unwrap().is_lost());
        done(&bed.queue, &again[0]).await;
        let last = claim_runs(&bed.queue, 3).await;
        assert_eq!((ids(&last), last[0].attempts), (vec![members[2]], 1));
        assert_eq!(trail(&bed.queue, members[1]).await[..2], [Action::Picked, Action::Abandoned]);
    }

    async fn run_ends_before_delayed_or_unmatched_member(bed) {
        let first = publish_members(&bed.queue, "g", 2).await;
        let other = publish_new(&bed.queue, NewEvent::new("u").group("g")).await.id;
        let last = publish_members(&bed.queue, "g", 1).await;
        publish_new(&bed.queue, NewEvent::new("t").group("g").delay(secs(60))).await;
        let run = claim(&bed.queue, ClaimRequest::new("w").types(["t"]).group_run(9)).await;
        assert_eq!(ids(&run), first);
        complete_all(&bed.queue, &run).await;
        let run = claim_runs(&bed.queue, 9).await;
        assert_eq!(ids(&run), [other, last[0]]);
    }

    async fn canceled_member_is_not_in_the_run(bed) {
        let members = publish_members(&bed.queue, "g", 4).await;
        assert_eq!(bed.queue.cancel(members[1], None).await, Ok(1));
        let run = claim_runs(&bed.queue, 3).await;
        assert_eq!(ids(&run), [members[0], members[2], members[3]]);
        // A delivery in progress cannot be canceled.
        assert!(bed.queue.cancel(members[2], None).await.is_err());
        complete_all(&bed.queue, &run).await;
    }

    async fn new_members_wait_for_the_whole_run(bed) {
        let queue = bed.namespace(Policy { group_failure: GroupFailurePolicy::Continue, ..Policy::default() }).await;
        let dead = publish_members(&queue, "g", 1).await;
        finish(&queue, &claim_one(&queue).await, Report::dead("x")).await;
        publish_members(&queue, "g", 2).await;
        let run = claim_runs(&queue, 2).await;
        // A redriven member with a smaller id waits too, and so does a member that is canceled while it waits.
        assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        let late = publish_members(&queue, "g", 2).await;
        done(&queue, &run[0]).await;
        assert_eq!(queue.cancel(late[0], None).await, Ok(1));
        assert!(poll(&queue).await.is_none());
        done(&queue, &run[1]).await;
        for expected in [dead[0], late[1]] {
            let delivery = claim_one(&queue).await;
            assert_eq!(delivery.event.id, expected);
            done(&queue, &delivery).await;
        }
    }

    async fn reset_member_stops_its_run(bed) {
        let members = publish_members(&bed.queue, "g", 3).await;
        let run = claim_runs(&bed.queue, 3).await;
        bed.queue.reset(members[0], "main", "by hand").await.unwrap();
        for delivery in &run {
            assert!(bed.queue.finish(delivery, Report::done()).await.unwrap().is_lost());
        }
        assert_eq!(ids(&claim_runs(&bed.queue, 1).await), [members[0]]);
    }

    async fn failure_that_ends_as_completed_releases_the_rest(bed) {
        let queue = bed.namespace(Policy { max_retries: Some(0), ..Policy::preset("queue").unwrap() }).await;
        let members = publish_members(&queue, "g", 3).await;
        let run = claim_runs(&queue, 3).await;
        fail(&queue, &run[0]).await;
        assert_eq!(status(&queue, members[0]).await, Status::CompletedWithErrors);
        assert_eq!(ids(&claim_runs(&queue, 3).await), members[1..]);
        assert!(queue.finish(&run[1], Report::done()).await.unwrap().is_lost());
    }

    // A worker that does not keep the order cannot make two deliveries of the group ready.
    async fn failed_member_waits_for_earlier_member_of_the_run(bed) {
        let members = publish_members(&bed.queue, "g", 3).await;
        let run = claim_runs(&bed.queue, 3).await;
        fail(&bed.queue, &run[1]).await;
        bed.advance(BACKOFF.min(LEASE / 2));
        assert!(poll(&bed.queue).await.is_none());
        done(&bed.queue, &run[0]).await;
        bed.advance(BACKOFF);
        for member in &members[1..] {
            let delivery = claim_one(&bed.queue).await;
            assert_eq!(delivery.event.id, *member);
            done(&bed.queue, &delivery).await;
        }
    }

    async fn heartbeat_extends_the_whole_run(bed) {
        let members = publish_members(&bed.queue, "g", 3).await;
        let run = claim_runs(&bed.queue, 3).await;
        bed.advance(LEASE / 2);
        assert!(bed.queue.extend(&run[0], Some(LEASE)).await.unwrap().is_some());
        bed.advance(LEASE / 2);
        assert!(poll(&bed.queue).await.is_none());
        complete_all(&bed.queue, &run).await;
        assert_eq!(status(&bed.queue, members[2]).await, Status::Completed);
    }

    async fn each_subscription_has_its_own_runs(bed) {
        bed.queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let members = publish_members(&bed.queue, "g", 3).await;
        let request = ClaimRequest::new("w").subscription("second").group_run(2);
        let second = claim(&bed.queue, request).await;
        let main = claim_runs(&bed.queue, 3).await;
        assert_eq!((ids(&second), ids(&main)), (members[..2].to_vec(), members.clone()));
        complete_all(&bed.queue, &second).await;
        fail(&bed.queue, &main[0]).await;
        let rest = claim(&bed.queue, ClaimRequest::new("w").subscription("second").group_run(2)).await;
        assert_eq!(ids(&rest), members[2..]);
    }

    // O4
    async fn long_group_is_processed_in_runs(bed) {
        let mut members = publish_members(&bed.queue, "g", 500).await;
        members.extend(publish_members(&bed.queue, "g", 500).await);
        let mut got = Vec::new();
        while got.len() < members.len() {
            let run = claim_runs(&bed.queue, 100).await;
            assert!(!run.is_empty());
            complete_all(&bed.queue, &run).await;
            got.extend(ids(&run));
        }
        assert_eq!(got, members);
    }
}

on_postgres! {
    // A heartbeat updates the deliveries of a run without locking its group. A failure that stops the run waits for it.
    async fn failure_releases_members_during_a_heartbeat(bed) {
        let members = publish_members(&bed.queue, "g", 3).await;
        let run = claim_runs(&bed.queue, 3).await;
        let mut extending = OpenTransaction::begin(&bed.database).await;
        let extend = format!("UPDATE windlass.event_queue SET lease_expires_at = lease_expires_at + interval '1 second'
                              WHERE event_id = {}", members[1]);
        extending.execute(&extend).await;
        let (queue, first) = (bed.queue.clone(), run[0].clone());
        let failing = tokio::spawn(async move { fail(&queue, &first).await });
        windlass_testkit::postgres::wait_for_blocked_connections(&bed.database.url, 1).await;
        extending.commit().await;
        failing.await.unwrap();
        for later in &run[1..] {
            assert!(bed.queue.finish(later, Report::done()).await.unwrap().is_lost());
        }
        bed.advance(BACKOFF);
        assert_eq!(ids(&claim_runs(&bed.queue, 3).await), [members[0]]);
    }
}
