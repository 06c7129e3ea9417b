//! The activity feed: every action of a namespace is reported once and in order, and only in that namespace.

use windlass::{
    Action, Activity, ActivityCursor, Backoff, ClaimRequest, History, NewEvent, Policy, Queue, Report, Status,
};

use crate::support::*;

/// The entries after the cursor, as (event, action, status).
async fn new_entries(queue: &Queue, cursor: &mut ActivityCursor) -> Vec<(i64, Action, Status)> {
    let entries = entries(queue, cursor).await;
    entries.iter().map(|entry| (entry.event_id, entry.action, entry.status)).collect()
}

async fn entries(queue: &Queue, cursor: &mut ActivityCursor) -> Vec<Activity> {
    let page = queue.activity(cursor, 1_000).await.expect("reading the feed succeeds");
    assert_eq!(page.missed, 0);
    page.entries
}

/// A namespace with two retries and no backoff.
async fn namespace_without_backoff(bed: &crate::bed::Bed) -> Queue {
    bed.namespace(Policy { backoff: Backoff::None, max_retries: Some(2), ..Policy::default() }).await
}

conformance! {
    async fn feed_starts_with_entries_after_the_cursor(bed) {
        let queue = &bed.queue;
        done(queue, &{ publish(queue, "t").await; claim_one(queue).await }).await;
        let mut cursor = queue.activity_now().await.unwrap();
        assert!(new_entries(queue, &mut cursor).await.is_empty());
        let event = publish(queue, "t").await.id;
        assert_eq!(new_entries(queue, &mut cursor).await, [(event, Action::Published, Status::Pending)]);
        assert!(new_entries(queue, &mut cursor).await.is_empty());
    }

    async fn each_action_is_reported_with_the_resulting_status(bed) {
        let queue = &namespace_without_backoff(bed).await;
        let mut cursor = queue.activity_now().await.unwrap();
        let event = publish(queue, "t").await.id;
        fail(queue, &claim_one(queue).await).await;
        finish(queue, &claim_one(queue).await, release()).await;
        finish(queue, &claim_one(queue).await, snooze(MICRO)).await;
        bed.advance(MICRO);
        claim_one(queue).await;
        queue.reset(event, "main", "by hand").await.unwrap();
        claim_one(queue).await;
        bed.advance(LEASE);
        fail(queue, &claim_one_soon(queue).await).await;
        assert_eq!(queue.redrive(Default::default()).await, Ok(1));
        done(queue, &claim_one(queue).await).await;
        let expected = [
            (event, Action::Published, Status::Pending),
            (event, Action::Failed, Status::Pending),
            (event, Action::Released, Status::Pending),
            (event, Action::Snoozed, Status::Pending),
            (event, Action::Reset, Status::Pending),
            (event, Action::Abandoned, Status::Pending),
            (event, Action::Failed, Status::Failed),
            (event, Action::Redriven, Status::Pending),
            (event, Action::Completed, Status::Completed),
        ];
        assert_eq!(new_entries(queue, &mut cursor).await, expected);
        assert!(new_entries(queue, &mut cursor).await.is_empty());
    }

    async fn every_end_state_is_reported(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let dead = publish(queue, "dead").await.id;
        finish(queue, &claim_one(queue).await, Report::dead("no use")).await;
        let cancelled = publish(queue, "cancelled").await.id;
        queue.cancel(cancelled, None).await.unwrap();
        let soon = after(bed.now(), millis(1));
        let expired = publish_new(queue, NewEvent::new("expired").expires_at(soon)).await.id;
        bed.advance(millis(2));
        assert_eq!(queue.expire_once().await, Ok(1));
        let erring = publish(queue, "erring").await.id;
        let delivery = claim_one(queue).await;
        assert!(!queue.finalize(&delivery, &["a".to_owned()]).await.unwrap().is_lost());
        let mut reported = new_entries(queue, &mut cursor).await;
        let published = reported.extract_if(.., |(_, action, _)| *action == Action::Published);
        assert_eq!(published.map(|(id, ..)| id).collect::<Vec<_>>(), [dead, cancelled, expired, erring]);
        let expected = [
            (dead, Action::Failed, Status::Failed),
            (cancelled, Action::Cancelled, Status::Cancelled),
            (expired, Action::Expired, Status::Expired),
            (erring, Action::CompletedWithErrors, Status::CompletedWithErrors),
        ];
        assert_eq!(reported, expected);
    }

    async fn entry_describes_event_and_attempt(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let event = publish_new(queue, NewEvent::new("t").title("A title").tags(["b", "a"])).await;
        let delivery = claim_one(queue).await;
        bed.advance(secs(1));
        finish(queue, &delivery, Report::dead("no use")).await;
        let reported = entries(queue, &mut cursor).await;
        let published = Activity {
            event_id: event.id,
            event_type: "t".to_owned(),
            title: Some("A title".to_owned()),
            tags: event.tags.clone(),
            subscription: "main".to_owned(),
            action: Action::Published,
            status: Status::Pending,
            attempt: 0,
            worker_id: None,
            error_message: None,
            created_at: event.created_at,
        };
        let failed = Activity {
            action: Action::Failed,
            status: Status::Failed,
            attempt: 1,
            worker_id: Some("w".to_owned()),
            error_message: Some("no use".to_owned()),
            created_at: bed.now(),
            ..published.clone()
        };
        assert_eq!(reported, [published, failed]);
        assert!(json(&reported[0]).contains("\"action\": \"PUBLISHED\""));
    }

    async fn entries_name_their_subscription(bed) {
        let queue = &bed.queue;
        queue.add_subscription(windlass::SubscriptionSpec::new("audit")).await.unwrap();
        let mut cursor = queue.activity_now().await.unwrap();
        publish(queue, "t").await;
        done(queue, &claim(queue, ClaimRequest::new("w").subscription("audit")).await[0]).await;
        done(queue, &claim_one(queue).await).await;
        let of = |entry: &Activity| (entry.subscription.clone(), entry.action);
        let reported: Vec<_> = entries(queue, &mut cursor).await.iter().map(of).collect();
        let expected = [("main", Action::Published), ("audit", Action::Completed), ("main", Action::Completed)];
        assert_eq!(reported, expected.map(|(name, action)| (name.to_owned(), action)));
    }

    async fn feed_covers_all_processes_of_its_namespace_only(bed) {
        let (queue, other_queue) = (&bed.queue, &namespace_without_backoff(bed).await);
        let other = bed.second_queue().await;
        let (mut cursor, mut other_cursor) =
            (queue.activity_now().await.unwrap(), other_queue.activity_now().await.unwrap());
        let event = publish(&other, "t").await.id;
        let other_event = publish(other_queue, "t").await.id;
        done(&other, &claim_one_soon(&other).await).await;
        let reported = [(event, Action::Published, Status::Pending), (event, Action::Completed, Status::Completed)];
        assert_eq!(new_entries(queue, &mut cursor).await, reported);
        let expected = [(other_event, Action::Published, Status::Pending)];
        assert_eq!(new_entries(other_queue, &mut other_cursor).await, expected);
        assert!(other_queue.in_namespace("nowhere").unwrap().activity_now().await.is_err());
    }

    async fn entries_are_not_repeated_as_time_passes(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let (mut published, mut reported) = (Vec::new(), Vec::new());
        for n in 0..60 {
            published.push(publish(queue, "t").await.id);
            done(queue, &claim_one(queue).await).await;
            if n % 3 == 0 {
                reported.extend(new_entries(queue, &mut cursor).await);
            }
            bed.advance(millis(700));
        }
        reported.extend(new_entries(queue, &mut cursor).await);
        let of = |action| reported.iter().filter(|entry| entry.1 == action).map(|(id, ..)| *id).collect::<Vec<_>>();
        assert_eq!((of(Action::Published), of(Action::Completed)), (published.clone(), published));
    }

    async fn slow_reader_gets_newest_entries_and_missed_count(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let events = publish_many(queue, "t", 50).await;
        let page = queue.activity(&mut cursor, 10).await.unwrap();
        assert_eq!(page.entries.iter().map(|entry| entry.event_id).collect::<Vec<_>>(), events[40..]);
        assert_eq!(page.missed, 40);
        assert!(new_entries(queue, &mut cursor).await.is_empty());
        // More entries than one call reads.
        publish_many(queue, "t", 3_000).await;
        let page = queue.activity(&mut cursor, 10).await.unwrap();
        assert_eq!(page.entries.len(), 10);
        assert!((900..=2_990).contains(&page.missed), "{}", page.missed);
        assert!(new_entries(queue, &mut cursor).await.is_empty());
        let last = publish(queue, "t").await.id;
        assert_eq!(new_entries(queue, &mut cursor).await, [(last, Action::Published, Status::Pending)]);
        assert!(queue.activity(&mut cursor, 1_001).await.is_err());
    }

    async fn without_history_completed_events_are_not_reported(bed) {
        let queue = &bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        let mut cursor = queue.activity_now().await.unwrap();
        publish(queue, "t").await;
        done(queue, &claim_one(queue).await).await;
        let event = publish(queue, "t").await.id;
        finish(queue, &claim_one(queue).await, Report::dead("x")).await;
        let reported = [(event, Action::Published, Status::Pending), (event, Action::Failed, Status::Failed)];
        assert_eq!(new_entries(queue, &mut cursor).await, reported);
    }

    // A new attempt may get the id of a deleted one.
    async fn attempt_after_deleted_attempts_is_reported(bed) {
        let queue = &bed.namespace(Policy { history: History::None, backoff: Backoff::None, ..Policy::default() }).await;
        publish(queue, "t").await;
        fail(queue, &claim_one(queue).await).await;
        let mut cursor = queue.activity_now().await.unwrap();
        bed.advance(MICRO);
        done(queue, &claim_one(queue).await).await;
        let event = publish(queue, "t").await.id;
        fail(queue, &claim_one(queue).await).await;
        let reported = [(event, Action::Published, Status::Pending), (event, Action::Failed, Status::Pending)];
        assert_eq!(new_entries(queue, &mut cursor).await, reported);
    }
}

/// PostgreSQL assigns ids and timestamps before the commit.
#[test]
fn late_commit_is_reported() {
    use sqlx::{AssertSqlSafe, Executor};
    crate::bed::run(windlass_testkit::Kind::Postgres, async |bed: &crate::bed::Bed| {
        let queue = &bed.real_time_queue().await;
        let template = publish(queue, "t").await.id;
        done(queue, &claim_one(queue).await).await;
        let mut late_tx = windlass_testkit::postgres::connect(&bed.database.url).await;
        let insert = format!(
            "BEGIN;
             CREATE TEMPORARY TABLE event AS SELECT * FROM windlass.events WHERE id = {template};
             UPDATE event SET id = nextval('windlass.events_id_seq'), created_at = now();
             INSERT INTO windlass.events SELECT * FROM event;
             CREATE TEMPORARY TABLE attempt AS SELECT * FROM windlass.event_attempts WHERE event_id = {template};
             UPDATE attempt SET id = nextval('windlass.event_attempts_id_seq'), finished_at = now(),
                                event_id = (SELECT id FROM event);
             INSERT INTO windlass.event_attempts SELECT * FROM attempt;"
        );
        let mut before = queue.activity_now().await.unwrap();
        late_tx.execute(AssertSqlSafe(insert)).await.unwrap();
        let mut during = queue.activity_now().await.unwrap();
        let newer = publish(queue, "t").await.id;
        done(queue, &claim_one(queue).await).await;
        let of = |id| [(id, Action::Published, Status::Pending), (id, Action::Completed, Status::Completed)];
        assert_eq!(new_entries(queue, &mut before).await, of(newer));
        assert_eq!(new_entries(queue, &mut during).await, of(newer));
        late_tx.execute("COMMIT").await.unwrap();
        for cursor in [&mut before, &mut during] {
            assert_eq!(new_entries(queue, cursor).await, of(newer - 1));
            assert!(new_entries(queue, cursor).await.is_empty());
        }
    });
}
