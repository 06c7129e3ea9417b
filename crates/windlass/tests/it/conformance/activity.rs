//! The feed tells what happens, in order, once, and to the right people.

use windlass::{
    Action, Activity, ActivityCursor, Backoff, ClaimRequest, History, NewEvent, Policy, Queue, Report, Status,
};

use crate::support::*;

/// What is new, as (event, action, status).
async fn news(queue: &Queue, cursor: &mut ActivityCursor) -> Vec<(i64, Action, Status)> {
    let entries = entries(queue, cursor).await;
    entries.iter().map(|entry| (entry.event_id, entry.action, entry.status)).collect()
}

async fn entries(queue: &Queue, cursor: &mut ActivityCursor) -> Vec<Activity> {
    let page = queue.activity(cursor, 1_000).await.expect("the feed can be read");
    assert_eq!(page.missed, 0);
    page.entries
}

/// A namespace in which failures are tried again at once, three times.
async fn eager(bed: &crate::bed::Bed) -> Queue {
    bed.namespace(Policy { backoff: Backoff::None, max_retries: Some(2), ..Policy::default() }).await
}

conformance! {
    async fn a_feed_begins_with_what_comes(bed) {
        let queue = &bed.queue;
        done(queue, &{ publish(queue, "t").await; take(queue).await }).await;
        let mut cursor = queue.activity_now().await.unwrap();
        assert!(news(queue, &mut cursor).await.is_empty());
        let event = publish(queue, "t").await.id;
        assert_eq!(news(queue, &mut cursor).await, [(event, Action::Published, Status::Pending)]);
        assert!(news(queue, &mut cursor).await.is_empty());
    }

    async fn what_happens_is_told_with_where_it_led_to(bed) {
        let queue = &eager(bed).await;
        let mut cursor = queue.activity_now().await.unwrap();
        let event = publish(queue, "t").await.id;
        fail(queue, &take(queue).await).await;
        finish(queue, &take(queue).await, release()).await;
        finish(queue, &take(queue).await, snooze(MICRO)).await;
        bed.advance(MICRO);
        take(queue).await;
        queue.reset(event, "main", "by hand").await.unwrap();
        take(queue).await;
        bed.advance(LEASE);
        fail(queue, &take_soon(queue).await).await;
        assert_eq!(queue.redrive(Default::default()).await, Ok(1));
        done(queue, &take(queue).await).await;
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
        assert_eq!(news(queue, &mut cursor).await, expected);
        assert!(news(queue, &mut cursor).await.is_empty());
    }

    async fn every_end_is_told(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let dead = publish(queue, "dead").await.id;
        finish(queue, &take(queue).await, Report::dead("no use")).await;
        let cancelled = publish(queue, "cancelled").await.id;
        queue.cancel(cancelled, None).await.unwrap();
        let soon = after(bed.now(), millis(1));
        let expired = publish_new(queue, NewEvent::new("expired").expires_at(soon)).await.id;
        bed.advance(millis(2));
        assert_eq!(queue.expire_once().await, Ok(1));
        let erring = publish(queue, "erring").await.id;
        let held = take(queue).await;
        assert!(!queue.finalize(&held, &["a".to_owned()]).await.unwrap().is_lost());
        let mut told = news(queue, &mut cursor).await;
        let published = told.extract_if(.., |(_, action, _)| *action == Action::Published);
        assert_eq!(published.map(|(id, ..)| id).collect::<Vec<_>>(), [dead, cancelled, expired, erring]);
        let expected = [
            (dead, Action::Failed, Status::Failed),
            (cancelled, Action::Cancelled, Status::Cancelled),
            (expired, Action::Expired, Status::Expired),
            (erring, Action::CompletedWithErrors, Status::CompletedWithErrors),
        ];
        assert_eq!(told, expected);
    }

    async fn an_entry_says_what_it_is_about(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let event = publish_new(queue, NewEvent::new("t").title("A title").tags(["b", "a"])).await;
        let delivery = take(queue).await;
        bed.advance(secs(1));
        finish(queue, &delivery, Report::dead("no use")).await;
        let told = entries(queue, &mut cursor).await;
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
        assert_eq!(told, [published, failed]);
        assert!(json(&told[0]).contains("\"action\": \"PUBLISHED\""));
    }

    async fn each_subscription_is_told_of_by_its_name(bed) {
        let queue = &bed.queue;
        queue.add_subscription(windlass::SubscriptionSpec::new("audit")).await.unwrap();
        let mut cursor = queue.activity_now().await.unwrap();
        publish(queue, "t").await;
        done(queue, &claim(queue, ClaimRequest::new("w").subscription("audit")).await[0]).await;
        done(queue, &take(queue).await).await;
        let of = |entry: &Activity| (entry.subscription.clone(), entry.action);
        let told: Vec<_> = entries(queue, &mut cursor).await.iter().map(of).collect();
        let expected = [("main", Action::Published), ("audit", Action::Completed), ("main", Action::Completed)];
        assert_eq!(told, expected.map(|(name, action)| (name.to_owned(), action)));
    }

    async fn every_process_is_told_of_and_no_other_namespace(bed) {
        let (queue, elsewhere) = (&bed.queue, &eager(bed).await);
        let other = bed.other().await;
        let (mut cursor, mut apart) =
            (queue.activity_now().await.unwrap(), elsewhere.activity_now().await.unwrap());
        let event = publish(&other, "t").await.id;
        let foreign = publish(elsewhere, "t").await.id;
        done(&other, &take_soon(&other).await).await;
        let told = [(event, Action::Published, Status::Pending), (event, Action::Completed, Status::Completed)];
        assert_eq!(news(queue, &mut cursor).await, told);
        assert_eq!(news(elsewhere, &mut apart).await, [(foreign, Action::Published, Status::Pending)]);
        assert!(elsewhere.in_namespace("nowhere").unwrap().activity_now().await.is_err());
    }

    async fn nothing_is_told_twice_as_time_goes_by(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let (mut published, mut told) = (Vec::new(), Vec::new());
        for n in 0..60 {
            published.push(publish(queue, "t").await.id);
            done(queue, &take(queue).await).await;
            if n % 3 == 0 {
                told.extend(news(queue, &mut cursor).await);
            }
            bed.advance(millis(700));
        }
        told.extend(news(queue, &mut cursor).await);
        let of = |action| told.iter().filter(|(_, done, _)| *done == action).map(|(id, ..)| *id).collect::<Vec<_>>();
        assert_eq!((of(Action::Published), of(Action::Completed)), (published.clone(), published));
    }

    async fn who_cannot_keep_up_gets_the_newest_and_is_told_how_many_it_missed(bed) {
        let queue = &bed.queue;
        let mut cursor = queue.activity_now().await.unwrap();
        let events = publish_many(queue, "t", 50).await;
        let page = queue.activity(&mut cursor, 10).await.unwrap();
        assert_eq!(page.entries.iter().map(|entry| entry.event_id).collect::<Vec<_>>(), events[40..]);
        assert_eq!(page.missed, 40);
        assert!(news(queue, &mut cursor).await.is_empty());
        // More than is ever looked at.
        publish_many(queue, "t", 3_000).await;
        let page = queue.activity(&mut cursor, 10).await.unwrap();
        assert_eq!(page.entries.len(), 10);
        assert!((900..=2_990).contains(&page.missed), "{}", page.missed);
        assert!(news(queue, &mut cursor).await.is_empty());
        let last = publish(queue, "t").await.id;
        assert_eq!(news(queue, &mut cursor).await, [(last, Action::Published, Status::Pending)]);
        assert!(queue.activity(&mut cursor, 1_001).await.is_err());
    }

    async fn without_history_only_failures_stay_to_be_told(bed) {
        let queue = &bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        let mut cursor = queue.activity_now().await.unwrap();
        publish(queue, "t").await;
        done(queue, &take(queue).await).await;
        let event = publish(queue, "t").await.id;
        finish(queue, &take(queue).await, Report::dead("x")).await;
        let told = [(event, Action::Published, Status::Pending), (event, Action::Failed, Status::Failed)];
        assert_eq!(news(queue, &mut cursor).await, told);
    }

    // The numbers of deleted attempts may be given to new ones.
    async fn an_attempt_after_a_forgotten_one_is_told(bed) {
        let queue = &bed.namespace(Policy { history: History::None, backoff: Backoff::None, ..Policy::default() }).await;
        publish(queue, "t").await;
        fail(queue, &take(queue).await).await;
        let mut cursor = queue.activity_now().await.unwrap();
        bed.advance(MICRO);
        done(queue, &take(queue).await).await;
        let event = publish(queue, "t").await.id;
        fail(queue, &take(queue).await).await;
        let told = [(event, Action::Published, Status::Pending), (event, Action::Failed, Status::Pending)];
        assert_eq!(news(queue, &mut cursor).await, told);
    }
}

/// PostgreSQL gives out numbers and instants before the commit.
#[test]
fn what_commits_late_is_told() {
    use sqlx::{AssertSqlSafe, Executor};
    crate::bed::run(crate::bed::Kind::Postgres, async |bed: &crate::bed::Bed| {
        let queue = &bed.real_time().await;
        let model = publish(queue, "t").await.id;
        done(queue, &take(queue).await).await;
        let mut late = crate::postgres::connect(&bed.database.url).await;
        let insert = format!(
            "BEGIN;
             CREATE TEMPORARY TABLE event AS SELECT * FROM windlass.events WHERE id = {model};
             UPDATE event SET id = nextval('windlass.events_id_seq'), created_at = now();
             INSERT INTO windlass.events SELECT * FROM event;
             CREATE TEMPORARY TABLE attempt AS SELECT * FROM windlass.event_attempts WHERE event_id = {model};
             UPDATE attempt SET id = nextval('windlass.event_attempts_id_seq'), finished_at = now(),
                                event_id = (SELECT id FROM event);
             INSERT INTO windlass.event_attempts SELECT * FROM attempt;"
        );
        let mut before = queue.activity_now().await.unwrap();
        late.execute(AssertSqlSafe(insert)).await.unwrap();
        let mut meanwhile = queue.activity_now().await.unwrap();
        let newer = publish(queue, "t").await.id;
        done(queue, &take(queue).await).await;
        let of = |id| [(id, Action::Published, Status::Pending), (id, Action::Completed, Status::Completed)];
        assert_eq!(news(queue, &mut before).await, of(newer));
        assert_eq!(news(queue, &mut meanwhile).await, of(newer));
        late.execute("COMMIT").await.unwrap();
        for cursor in [&mut before, &mut meanwhile] {
            assert_eq!(news(queue, cursor).await, of(newer - 1));
            assert!(news(queue, cursor).await.is_empty());
        }
    });
}
