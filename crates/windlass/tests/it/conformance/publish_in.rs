//! Publishing in the application's own transaction: the events commit and roll back with it.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::Connection as _;
use windlass::{
    ClaimRequest, DeadLetterFilter, Delivery, Error, GroupFailurePolicy, NewEvent, Policy, Queue, Report,
    SubscriptionSpec,
};
use windlass_testkit::Kind;

use crate::bed::Bed;
use crate::open_transaction::{OpenTransaction, query_number};
use crate::support::*;

async fn begin(bed: &Bed) -> OpenTransaction {
    OpenTransaction::begin(&bed.database).await
}

fn spawn_waiter(queue: &Queue) -> tokio::task::JoinHandle<Vec<Delivery>> {
    let queue = queue.clone();
    let request = ClaimRequest::new("waiter").wait(secs(30));
    tokio::spawn(async move { queue.claim(request).await.expect("a claim succeeds") })
}

fn assert_names_tx(error: Error) {
    assert!(matches!(&error, Error::Invalid { field: "tx", .. }), "{error}");
}

conformance! {
    // O5
    async fn committed_event_is_stored(bed) {
        let mut tx = begin(bed).await;
        let event = NewEvent::new("order.paid")
            .title("Order paid")
            .description("Somebody paid an order.")
            .tags_text("b, a,b")
            .payload(&serde_json::json!({ "order": 17 }))
            .unwrap()
            .delay(secs(7))
            .expires_at(after(bed.now(), secs(77)))
            .group("customer-5")
            .key("order-17-paid")
            .priority(-3)
            .max_retries(9)
            .metadata(&serde_json::json!({ "traceparent": "00-1" }))
            .unwrap()
            .producer("shop-1");
        let published = tx.publish(&bed.queue, event).await.unwrap();
        assert_eq!((published.duplicate, published.max_retries), (false, Some(9)));
        let event = published.event;
        assert_eq!(event.run_at, Some(after(bed.now(), secs(7))));
        assert_eq!(count_events(&bed.queue).await, 0);
        tx.commit().await;

        let view = bed.queue.get(event.id).await.unwrap();
        assert_eq!(json(&view.event), json(&event));
        assert_eq!((view.deliveries[0].max_retries, view.deliveries[0].ready_at), (Some(9), event.run_at));
        assert!(poll(&bed.queue).await.is_none());
        bed.advance(secs(7));
        assert_eq!(json(&claim_one(&bed.queue).await.event), json(&event));
    }

    // O5
    async fn rolled_back_event_leaves_no_trace(bed) {
        let mut tx = begin(bed).await;
        let event = || NewEvent::new("t").tags(["x"]).key("k").group("g");
        tx.publish(&bed.queue, event()).await.unwrap();
        tx.rollback().await;
        assert_eq!(count_events(&bed.queue).await, 0);
        assert!(poll(&bed.queue).await.is_none());
        // Its key and group are free, and its lane can be created again.
        let event = publish_new(&bed.queue, event()).await;
        assert_eq!(claim_one(&bed.queue).await.event.id, event.id);
    }

    async fn lanes_of_rolled_back_publish_are_not_used(bed) {
        for _ in 0..2 {
            let mut tx = begin(bed).await;
            tx.publish(&bed.queue, NewEvent::new("a")).await.unwrap();
            tx.rollback().await;
        }
        let b = publish(&bed.queue, "b").await;
        let a = publish(&bed.queue, "a").await;
        for (event_type, event) in [("a", a), ("b", b)] {
            let got = claim(&bed.queue, ClaimRequest::new("w").types([event_type]).max(9)).await;
            assert_eq!(ids(&got), [event.id]);
        }
        let mut tx = begin(bed).await;
        let event = tx.publish(&bed.queue, NewEvent::new("a")).await.unwrap().event;
        tx.commit().await;
        let got = claim_soon(&bed.queue, ClaimRequest::new("w").types(["a"])).await;
        assert_eq!(got.event.id, event.id);
    }

    // O5
    async fn waiting_claim_gets_event_after_commit(bed) {
        let other = bed.second_queue().await;
        for (claiming, publishing) in [(&bed.queue, &bed.queue), (&other, &bed.queue), (&bed.queue, &other)] {
            for event in [NewEvent::new("t"), NewEvent::new("t"), NewEvent::new("new").group("g")] {
                let waiter = spawn_waiter(claiming);
                tokio::task::yield_now().await;
                let mut tx = begin(bed).await;
                let event = tx.publish(publishing, event).await.unwrap().event;
                assert!(!waiter.is_finished());
                tx.commit().await;
                let got = waiter.await.unwrap();
                assert_eq!(ids(&got), [event.id]);
                done(claiming, &got[0]).await;
            }
        }
    }

    async fn waiting_claim_gets_event_after_commit_in_real_time(bed) {
        let queue = bed.real_time_queue().await;
        for event_type in ["t", "t", "new"] {
            let waiter = spawn_waiter(&queue);
            tokio::task::yield_now().await;
            let mut tx = begin(bed).await;
            let event = tx.publish(&queue, NewEvent::new(event_type)).await.unwrap().event;
            tx.commit().await;
            let got = waiter.await.unwrap();
            assert_eq!(ids(&got), [event.id]);
            done(&queue, &got[0]).await;
        }
    }

    async fn event_commits_with_application_data(bed) {
        bed.database.execute("CREATE TABLE orders (id integer)").await;
        for (commits, expected) in [(false, 0), (true, 1)] {
            let mut tx = begin(bed).await;
            tx.execute("INSERT INTO orders VALUES (1)").await;
            tx.publish(&bed.queue, NewEvent::new("order.placed")).await.unwrap();
            tx.execute("INSERT INTO orders VALUES (2)").await;
            if commits { tx.commit().await } else { tx.rollback().await }
            assert_eq!(query_number(&bed.database, "SELECT count(*) / 2 FROM orders").await, expected);
            assert_eq!(count_events(&bed.queue).await, expected as u64);
        }
    }

    async fn key_is_known_within_and_after_the_transaction(bed) {
        let event = |n: i32| NewEvent::new("t").key("k").title(n.to_string());
        let mut tx = begin(bed).await;
        let first = tx.publish(&bed.queue, event(1)).await.unwrap();
        let second = tx.publish(&bed.queue, event(2)).await.unwrap();
        assert_eq!((first.duplicate, second.duplicate), (false, true));
        // The duplicate returns the first event, although it is not committed.
        assert_eq!(json(&second.event), json(&first.event));
        let both = tx.publish_all(&bed.queue, vec![event(3), NewEvent::new("u").key("l")]).await.unwrap();
        assert_eq!(both.iter().map(|published| published.duplicate).collect::<Vec<_>>(), [true, false]);
        tx.commit().await;
        let third = bed.queue.publish(event(4)).await.unwrap();
        assert!(third.duplicate);
        assert_eq!(json(&third.event), json(&first.event));

        let mut tx = begin(bed).await;
        let known = tx.publish(&bed.queue, event(5)).await.unwrap();
        assert_eq!((known.duplicate, known.event.id), (true, first.event.id));
        tx.commit().await;
        assert_eq!(count_events(&bed.queue).await, 2);
    }

    async fn group_keeps_its_order(bed) {
        let member = |n: i32| NewEvent::new("t").group("g").payload(&n).unwrap();
        publish_new(&bed.queue, member(0)).await;
        let mut tx = begin(bed).await;
        tx.publish_all(&bed.queue, vec![member(1), member(2)]).await.unwrap();
        tx.publish(&bed.queue, member(3)).await.unwrap();
        tx.commit().await;
        publish_new(&bed.queue, member(4)).await;
        for expected in 0..5 {
            let mut got = claim_all(&bed.queue).await;
            assert_eq!(got.len(), 1);
            let delivery = got.remove(0);
            assert_eq!(delivery.event.payload::<i32>().unwrap(), expected);
            done(&bed.queue, &delivery).await;
        }
        assert_eq!(query_number(&bed.database, &count_sql(bed, "event_groups")).await, 0);
    }

    // O4
    async fn redriven_member_goes_behind_committed_events(bed) {
        let other = bed.second_queue().await;
        let redriven = publish_new(&other, NewEvent::new("t").group("g")).await.id;
        finish(&other, &claim_one(&other).await, Report::dead("x")).await;
        // No process claims from here on, so nothing is routed.
        other.close().await;
        let mut tx = begin(bed).await;
        let published = tx.publish(&bed.queue, NewEvent::new("t").group("g")).await.unwrap().event.id;
        tx.commit().await;
        assert_eq!(bed.queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        for expected in [published, redriven] {
            let delivery = claim_one_soon(&bed.queue).await;
            assert_eq!(delivery.event.id, expected);
            done(&bed.queue, &delivery).await;
        }
    }

    async fn new_member_goes_before_members_waiting_for_retry(bed) {
        let queue = bed.namespace(Policy { group_failure: GroupFailurePolicy::Continue, ..Policy::default() }).await;
        publish_new(&queue, NewEvent::new("t").group("g")).await;
        fail(&queue, &claim_one(&queue).await).await;
        assert!(poll(&queue).await.is_none());
        let mut tx = begin(bed).await;
        let event = tx.publish(&queue, NewEvent::new("t").group("g")).await.unwrap().event;
        tx.commit().await;
        assert_eq!(claim_one_soon(&queue).await.event.id, event.id);
    }

    async fn subscription_added_by_another_process_gets_event(bed) {
        publish(&bed.queue, "t").await;
        let mut tx = begin(bed).await;
        // The publishing process has not read this subscription.
        bed.second_queue().await.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let events = vec![NewEvent::new("t").key("k").group("g"), NewEvent::new("t")];
        let published = tx.publish_all(&bed.queue, events).await.unwrap();
        assert!(published.iter().all(|published| !published.duplicate));
        tx.commit().await;
        let got = claim(&bed.queue, ClaimRequest::new("w").subscription("audit").max(9)).await;
        assert_eq!(ids(&got), published.iter().map(|published| published.event.id).collect::<Vec<_>>());
    }

    async fn subscription_added_during_transaction_gets_its_events(bed) {
        let mut tx = begin(bed).await;
        let before = tx.publish(&bed.queue, NewEvent::new("before")).await.unwrap().event;
        if bed.database.kind == Kind::Sqlite {
            // SQLite allows one write transaction at a time.
            return;
        }
        let mut earlier = begin(bed).await;
        earlier.publish(&bed.queue, NewEvent::new("t")).await.unwrap();
        earlier.commit().await;
        // Adding a subscription does not wait for open transactions.
        bed.second_queue().await.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let event = tx.publish(&bed.queue, NewEvent::new("t")).await.unwrap().event;
        tx.commit().await;
        let later = publish(&bed.queue, "t").await;
        let got = claim(&bed.queue, ClaimRequest::new("w").subscription("audit").max(9)).await;
        assert_eq!(sorted(ids(&got)), [before.id, event.id, later.id]);
    }

    // The event is older than the subscription, but commits after it was added.
    async fn late_commit_is_delivered_once_during_a_backfill(bed) {
        let mut tx = begin(bed).await;
        let late = tx.publish(&bed.queue, NewEvent::new("t")).await.unwrap().event.id;
        bed.advance(secs(1));
        let past = SubscriptionSpec::new("past").since(bed.now() - secs(3_600));
        // On SQLite, an open write transaction blocks other writers.
        if bed.database.kind == Kind::Sqlite {
            tx.commit().await;
            bed.queue.add_subscription(past).await.unwrap();
        } else {
            bed.queue.add_subscription(past).await.unwrap();
            tx.commit().await;
        }
        bed.queue.maintain_once().await.unwrap();
        let got = claim(&bed.queue, ClaimRequest::new("w").subscription("past").max(10)).await;
        assert_eq!(ids(&got), [late]);
        done(&bed.queue, &got[0]).await;
        bed.queue.maintain_once().await.unwrap();
        assert!(claim(&bed.queue, ClaimRequest::new("w").subscription("past")).await.is_empty());
    }

    async fn refused_event_leaves_transaction_unchanged(bed) {
        let mut tx = begin(bed).await;
        tx.publish(&bed.queue, NewEvent::new("t")).await.unwrap();
        let error = tx.publish(&bed.queue, NewEvent::new("")).await.unwrap_err();
        assert_eq!(error.to_string(), "type: must not be empty");
        let events = vec![NewEvent::new("t"), NewEvent::new("t").priority(1).group("")];
        let error = tx.publish_all(&bed.queue, events).await.unwrap_err();
        assert_eq!(error.to_string(), "events[1]: group_id: must not be empty");
        let nowhere = bed.queue.in_namespace("nowhere").unwrap();
        let error = tx.publish(&nowhere, NewEvent::new("t")).await.unwrap_err();
        assert_eq!(error, Error::NamespaceNotFound { namespace: "nowhere".into() });
        assert!(tx.publish_all(&bed.queue, Vec::new()).await.unwrap().is_empty());
        tx.commit().await;
        assert_eq!(count_events(&bed.queue).await, 1);
    }

    async fn connection_without_transaction_is_refused(bed) {
        let error = match bed.database.kind {
            Kind::Sqlite => {
                let connection = rusqlite::Connection::open(bed.database.file()).unwrap();
                bed.queue.publish_in(&connection, NewEvent::new("t")).unwrap_err()
            }
            Kind::Postgres => {
                let mut connection = windlass_testkit::postgres::connect(&bed.database.url).await;
                bed.queue.publish_in(&mut connection, NewEvent::new("t")).await.unwrap_err()
            }
        };
        assert_names_tx(error);
        assert_eq!(count_events(&bed.queue).await, 0);
    }

    async fn transaction_of_another_database_is_refused(bed) {
        let elsewhere = bed.database.folder.path().join("elsewhere.db");
        let mut sqlite = rusqlite::Connection::open(elsewhere).unwrap();
        let tx = sqlite.transaction().unwrap();
        assert_names_tx(bed.queue.publish_in(&tx, NewEvent::new("t")).unwrap_err());
        if bed.database.kind == Kind::Sqlite {
            let mut postgres = windlass_testkit::postgres::connect(&windlass_testkit::postgres::server_url()).await;
            let mut tx = postgres.begin().await.unwrap();
            assert_names_tx(bed.queue.publish_in(&mut *tx, NewEvent::new("t")).await.unwrap_err());
        }
    }

    async fn driver_transactions_are_accepted(bed) {
        match bed.database.kind {
            Kind::Sqlite => {
                let mut connection = rusqlite::Connection::open(bed.database.file()).unwrap();
                let tx = connection.transaction().unwrap();
                bed.queue.publish_in(&tx, NewEvent::new("t")).unwrap();
                bed.queue.publish_all_in(&tx, vec![NewEvent::new("t")]).unwrap();
                tx.commit().unwrap();
            }
            Kind::Postgres => {
                let mut connection = windlass_testkit::postgres::connect(&bed.database.url).await;
                let mut tx = connection.begin().await.unwrap();
                bed.queue.publish_in(&mut *tx, NewEvent::new("t")).await.unwrap();
                bed.queue.publish_all_in(&mut tx, vec![NewEvent::new("t")]).await.unwrap();
                tx.commit().await.unwrap();
            }
        }
        assert_eq!(count_events(&bed.queue).await, 2);
    }
}

fn count_sql(bed: &Bed, table: &str) -> String {
    let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
    format!("SELECT count(*) FROM {schema}{table}")
}

/// Publishing in a deferred transaction waits for a concurrent writer.
#[test]
fn new_transaction_waits_for_concurrent_writer() {
    static BUSY_HANDLER_CALLED: AtomicBool = AtomicBool::new(false);
    fn give_up(_: i32) -> bool {
        BUSY_HANDLER_CALLED.store(true, Ordering::SeqCst);
        false
    }
    crate::bed::run(Kind::Sqlite, async |bed: &Bed| {
        publish(&bed.queue, "t").await;
        let mut other = OpenTransaction::begin(&bed.database).await;
        other.publish(&bed.queue, NewEvent::new("t")).await.unwrap();
        let connection = rusqlite::Connection::open(bed.database.file()).unwrap();
        connection.busy_handler(Some(give_up)).unwrap();
        connection.execute_batch("BEGIN").unwrap();
        let error = bed.queue.publish_in(&connection, NewEvent::new("t")).unwrap_err();
        assert!(matches!(error, Error::DatabaseLocked { .. }), "{error}");
        assert!(BUSY_HANDLER_CALLED.load(Ordering::SeqCst));
        // The failed publish left the transaction usable.
        other.commit().await;
        bed.queue.publish_in(&connection, NewEvent::new("t")).unwrap();
        connection.execute_batch("COMMIT").unwrap();
        assert_eq!(count_events(&bed.queue).await, 3);
    });
}

/// The future of `publish_in` is `Send`.
#[test]
fn publish_in_future_is_send() {
    fn publishing(queue: Queue, mut tx: sqlx::PgConnection) -> impl Future + Send {
        async move { queue.publish_in(&mut tx, NewEvent::new("t")).await }
    }
    let _ = publishing;
}
