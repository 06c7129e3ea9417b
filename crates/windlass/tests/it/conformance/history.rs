//! The `history` policy: what is kept of a completed event.

use sqlx::{Connection, Executor};
use windlass::{
    Backoff, ClaimRequest, Error, History, LeasedEvent, NamespacePolicy, Policy, PolicyOverrides, Report, Status,
    SubscriptionSpec,
};

use crate::support::*;
use windlass_testkit::Kind;
use windlass_testkit::postgres as server;

fn not_found(event_id: i64) -> Error {
    Error::EventNotFound { namespace: "ns".into(), event_id }
}

conformance! {
    // O1: cleanup of processed events
    async fn without_history_completed_event_is_deleted(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        let event = publish(&queue, "t").await;
        done(&queue, &claim_one(&queue).await).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), not_found(event.id));
        assert_eq!(queue.log(event.id).await.unwrap_err(), not_found(event.id));
        assert_eq!(count_events(&queue).await, 0);
    }

    // O2: failed events are kept for inspection
    async fn without_history_failed_event_is_kept(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        let failed = publish(&queue, "t").await;
        finish(&queue, &claim_one(&queue).await, Report::dead("x")).await;
        let with_errors = publish(&queue, "t").await;
        queue.finalize(&claim_one(&queue).await, &["e".to_owned()]).await.unwrap().attempt().unwrap();
        assert_eq!(status(&queue, failed.id).await, Status::Failed);
        assert_eq!(status(&queue, with_errors.id).await, Status::CompletedWithErrors);
    }

    // The attempts of a retried event are deleted too.
    async fn without_history_all_attempts_are_deleted(bed) {
        let queue = bed.namespace(Policy::preset("outbox").unwrap()).await;
        let event = publish(&queue, "t").await;
        fail(&queue, &claim_one(&queue).await).await;
        assert_eq!(trail(&queue, event.id).await.len(), 2);
        done(&queue, &claim_one(&queue).await).await;
        assert_eq!(queue.log(event.id).await.unwrap_err(), not_found(event.id));
        let since = bed.now() - chrono::TimeDelta::days(1);
        let pending: u64 = queue
            .stats(since)
            .await
            .unwrap()
            .iter()
            .filter(|row| row.status == Status::Pending)
            .map(|row| row.count)
            .sum();
        assert_eq!(pending, 0);
    }

    // O9: retention per event type
    async fn type_policy_overrides_namespace_history(bed) {
        let keep = PolicyOverrides { history: Some(History::Keep), ..Default::default() };
        let base = Policy { history: History::None, ..Policy::default() };
        let queue = bed.namespace_with(NamespacePolicy { base, types: [("audit.*".into(), keep)].into() }).await;
        let kept = publish(&queue, "audit.login").await;
        let deleted = publish(&queue, "noise").await;
        for delivery in claim_all(&queue).await {
            done(&queue, &delivery).await;
        }
        assert_eq!(status(&queue, kept.id).await, Status::Completed);
        assert_eq!(queue.get(deleted.id).await.unwrap_err(), not_found(deleted.id));
    }

    async fn event_is_deleted_only_after_all_subscriptions_finish(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = publish(&queue, "t").await;
        done(&queue, &claim_one(&queue).await).await;
        assert_eq!(view_of(&queue, event.id, "second").await.status, Status::Pending);
        let second = claim(&queue, ClaimRequest::new("w").subscription("second")).await.remove(0);
        assert_eq!(json(&second.event), json(&event));
        done(&queue, &second).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), not_found(event.id));
    }

    async fn subscriptions_finishing_in_one_batch_leave_no_rows(bed) {
        let queue = bed.namespace(Policy { history: History::None, backoff: Backoff::None, ..Policy::default() }).await;
        for name in ["second", "third"] {
            queue.add_subscription(SubscriptionSpec::new(name)).await.unwrap();
        }
        let event = publish(&queue, "t").await;
        // Every subscription has a recorded attempt when all finish in one batch.
        for report in [Report::failed("x"), Report::done()] {
            let mut reports = Vec::new();
            for name in ["main", "second", "third"] {
                let delivery = claim(&queue, ClaimRequest::new("w").subscription(name)).await.remove(0);
                reports.push((LeasedEvent::from(&delivery), report.clone()));
            }
            for finished in queue.finish_all(reports).await.unwrap() {
                drop(finished.unwrap());
            }
        }
        assert_eq!(queue.get(event.id).await.unwrap_err(), not_found(event.id));
        let (attempts, events) = match bed.database.kind {
            Kind::Sqlite => ("SELECT count(*) FROM event_attempts", "SELECT count(*) FROM events"),
            Kind::Postgres => ("SELECT count(*) FROM windlass.event_attempts", "SELECT count(*) FROM windlass.events"),
        };
        assert_eq!((bed.database.select_numbers(attempts).await, bed.database.select_numbers(events).await), (vec![0], vec![0]));
    }

    async fn event_with_dead_letter_is_kept(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = publish(&queue, "t").await;
        finish(&queue, &claim_one(&queue).await, Report::dead("x")).await;
        let second = claim(&queue, ClaimRequest::new("w").subscription("second")).await.remove(0);
        done(&queue, &second).await;
        assert_eq!(status(&queue, event.id).await, Status::Failed);
        assert_eq!(queue.redrive(Default::default()).await, Ok(1));
        let again = claim_one(&queue).await;
        assert_eq!(json(&again.event), json(&event));
        done(&queue, &again).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), not_found(event.id));
    }

    // The subscription that finishes last does not decide for the others.
    async fn history_kept_by_one_subscription_is_not_deleted(bed) {
        let queue = bed.namespace(Policy::default()).await;
        let policy = PolicyOverrides { history: Some(History::None), ..Default::default() };
        queue.add_subscription(SubscriptionSpec::new("forgets").policy(policy)).await.unwrap();
        for forgets_last in [true, false] {
            let event = publish(&queue, "t").await;
            let of_main = claim_one(&queue).await;
            let of_forgets = claim(&queue, ClaimRequest::new("w").subscription("forgets")).await.remove(0);
            let order = if forgets_last { [&of_main, &of_forgets] } else { [&of_forgets, &of_main] };
            for delivery in order {
                done(&queue, delivery).await;
            }
            assert_eq!(status(&queue, event.id).await, Status::Completed, "forgets last: {forgets_last}");
        }
    }
}

on_postgres! {
    // A backfill adds a delivery while `main` completes the event. The test does the backfill's inserts in its own
    // transaction, which commits only when the other transaction waits for it.
    async fn event_being_backfilled_is_not_deleted(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = publish(&queue, "t").await;
        server::execute(
            &bed.database.url,
            "CREATE TABLE aside AS SELECT * FROM windlass.event_queue WHERE subscription = 'second';
             DELETE FROM windlass.event_queue WHERE subscription = 'second'",
        )
        .await;
        let delivery = claim_one(&queue).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.events FOR KEY SHARE").await.unwrap();
        tx.execute("INSERT INTO windlass.event_queue SELECT * FROM aside").await.unwrap();
        let committing = async {
            server::wait_for_blocked_connections(&bed.database.url, 1).await;
            tx.commit().await.unwrap();
        };
        tokio::join!(done(&queue, &delivery), committing);
        let second = claim_soon(&queue, ClaimRequest::new("w").subscription("second")).await;
        assert_eq!(json(&second.event), json(&event));
        done(&queue, &second).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), not_found(event.id));
    }
}
