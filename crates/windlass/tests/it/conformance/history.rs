//! What is kept of an event that is done.

use sqlx::{Connection, Executor};
use windlass::{
    Backoff, ClaimRequest, Error, History, LeasedEvent, NamespacePolicy, Policy, PolicyOverrides, Report, Status,
    SubscriptionSpec,
};

use crate::bed::Kind;
use crate::postgres as server;
use crate::support::*;

fn gone(event_id: i64) -> Error {
    Error::EventNotFound { namespace: "ns".into(), event_id }
}

conformance! {
    // O1: cleanup of processed events
    async fn without_history_a_completed_event_is_forgotten(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        let event = publish(&queue, "t").await;
        done(&queue, &take(&queue).await).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), gone(event.id));
        assert_eq!(queue.log(event.id).await.unwrap_err(), gone(event.id));
        assert_eq!(total(&queue).await, 0);
    }

    // O2: failed events are kept for inspection
    async fn without_history_a_failed_event_is_kept(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        let failed = publish(&queue, "t").await;
        finish(&queue, &take(&queue).await, Report::dead("x")).await;
        let with_errors = publish(&queue, "t").await;
        queue.finalize(&take(&queue).await, &["e".to_owned()]).await.unwrap().attempt().unwrap();
        assert_eq!(status(&queue, failed.id).await, Status::Failed);
        assert_eq!(status(&queue, with_errors.id).await, Status::CompletedWithErrors);
    }

    // A retried event leaves no trace either once it is done.
    async fn without_history_the_whole_trail_is_forgotten(bed) {
        let queue = bed.namespace(Policy::preset("outbox").unwrap()).await;
        let event = publish(&queue, "t").await;
        fail(&queue, &take(&queue).await).await;
        assert_eq!(trail(&queue, event.id).await.len(), 2);
        done(&queue, &take(&queue).await).await;
        assert_eq!(queue.log(event.id).await.unwrap_err(), gone(event.id));
        let since = bed.now() - chrono::TimeDelta::days(1);
        let live: u64 = queue
            .stats(since)
            .await
            .unwrap()
            .iter()
            .filter(|row| row.status == Status::Pending)
            .map(|row| row.count)
            .sum();
        assert_eq!(live, 0);
    }

    // O9: retention per event type
    async fn the_history_of_a_type_overrides_the_namespace(bed) {
        let keep = PolicyOverrides { history: Some(History::Keep), ..Default::default() };
        let base = Policy { history: History::None, ..Policy::default() };
        let queue = bed.namespace_with(NamespacePolicy { base, types: [("audit.*".into(), keep)].into() }).await;
        let kept = publish(&queue, "audit.login").await;
        let forgotten = publish(&queue, "noise").await;
        for delivery in take_all(&queue).await {
            done(&queue, &delivery).await;
        }
        assert_eq!(status(&queue, kept.id).await, Status::Completed);
        assert_eq!(queue.get(forgotten.id).await.unwrap_err(), gone(forgotten.id));
    }

    async fn an_event_is_forgotten_only_when_nobody_needs_it(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = publish(&queue, "t").await;
        done(&queue, &take(&queue).await).await;
        assert_eq!(view_of(&queue, event.id, "second").await.status, Status::Pending);
        let second = claim(&queue, ClaimRequest::new("w").subscription("second")).await.remove(0);
        assert_eq!(json(&second.event), json(&event));
        done(&queue, &second).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), gone(event.id));
    }

    async fn subscriptions_that_end_in_one_batch_leave_nothing_behind(bed) {
        let queue = bed.namespace(Policy { history: History::None, backoff: Backoff::None, ..Policy::default() }).await;
        for name in ["second", "third"] {
            queue.add_subscription(SubscriptionSpec::new(name)).await.unwrap();
        }
        let event = publish(&queue, "t").await;
        // Each has an attempt on record when they end together.
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
        assert_eq!(queue.get(event.id).await.unwrap_err(), gone(event.id));
        let (attempts, events) = match bed.database.kind {
            Kind::Sqlite => ("SELECT count(*) FROM event_attempts", "SELECT count(*) FROM events"),
            Kind::Postgres => ("SELECT count(*) FROM windlass.event_attempts", "SELECT count(*) FROM windlass.events"),
        };
        assert_eq!((bed.database.ids(attempts).await, bed.database.ids(events).await), (vec![0], vec![0]));
    }

    async fn an_event_with_a_dead_letter_is_not_forgotten(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = publish(&queue, "t").await;
        finish(&queue, &take(&queue).await, Report::dead("x")).await;
        let second = claim(&queue, ClaimRequest::new("w").subscription("second")).await.remove(0);
        done(&queue, &second).await;
        assert_eq!(status(&queue, event.id).await, Status::Failed);
        assert_eq!(queue.redrive(Default::default()).await, Ok(1));
        let again = take(&queue).await;
        assert_eq!(json(&again.event), json(&event));
        done(&queue, &again).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), gone(event.id));
    }

    // Whoever is done last does not decide for the others.
    async fn what_one_subscription_keeps_another_does_not_delete(bed) {
        let queue = bed.namespace(Policy::default()).await;
        let policy = PolicyOverrides { history: Some(History::None), ..Default::default() };
        queue.add_subscription(SubscriptionSpec::new("forgets").policy(policy)).await.unwrap();
        for forgets_last in [true, false] {
            let event = publish(&queue, "t").await;
            let keeps = take(&queue).await;
            let forgets = claim(&queue, ClaimRequest::new("w").subscription("forgets")).await.remove(0);
            let order = if forgets_last { [&keeps, &forgets] } else { [&forgets, &keeps] };
            for delivery in order {
                done(&queue, delivery).await;
            }
            assert_eq!(status(&queue, event.id).await, Status::Completed, "forgets last: {forgets_last}");
        }
    }
}

on_postgres! {
    // A subscription that begins in the past gets the event while `main` is done with it: here, what the backfill does is
    // done by hand, so that it commits only when the other waits.
    async fn what_is_just_being_given_to_another_is_not_forgotten(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
        let event = publish(&queue, "t").await;
        server::execute(
            &bed.database.url,
            "CREATE TABLE aside AS SELECT * FROM windlass.event_queue WHERE subscription = 'second';
             DELETE FROM windlass.event_queue WHERE subscription = 'second'",
        )
        .await;
        let delivery = take(&queue).await;
        let mut connection = server::connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        tx.execute("SELECT FROM windlass.events FOR KEY SHARE").await.unwrap();
        tx.execute("INSERT INTO windlass.event_queue SELECT * FROM aside").await.unwrap();
        let committing = async {
            server::until_waiting(&bed.database.url, 1).await;
            tx.commit().await.unwrap();
        };
        tokio::join!(done(&queue, &delivery), committing);
        let second = claim_soon(&queue, ClaimRequest::new("w").subscription("second")).await;
        assert_eq!(json(&second.event), json(&event));
        done(&queue, &second).await;
        assert_eq!(queue.get(event.id).await.unwrap_err(), gone(event.id));
    }
}
