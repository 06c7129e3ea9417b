//! `windlass::testing`, the test kit for applications.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::testing::TestQueue;
use windlass::{EventType, Handler, HandlerError, NewEvent, Node, Queue, Status, SubscriptionSpec};

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct MailSent {
    to: String,
}

impl EventType for MailSent {
    const NAME: &'static str = "mail.sent";
}

fn mail(to: &str) -> MailSent {
    MailSent { to: to.into() }
}

#[tokio::test]
async fn run_until_idle_handles_all_events() {
    let queue = TestQueue::new().await.unwrap();
    let node = Node::new(&queue, "n")
        .on("order.paid", |event, cx| async move {
            let to: String = event.payload()?;
            cx.publish(NewEvent::of(&mail(&to))?).await?;
            Ok(())
        })
        .on_type(|_: MailSent, _| async { Ok(()) });
    let node = queue.start(node).await.unwrap();
    for to in ["ada", "bob"] {
        queue.publish(NewEvent::new("order.paid").payload(to).unwrap()).await.unwrap();
    }
    assert_eq!(node.run_until_idle().await.unwrap(), 4);
    assert_eq!(node.run_until_idle().await.unwrap(), 0);
    queue.assert_all_completed().await;
    let mut sent: Vec<String> =
        queue.published_as::<MailSent>().await.unwrap().into_iter().map(|mail| mail.to).collect();
    sent.sort();
    assert_eq!(sent, ["ada", "bob"]);
    assert_eq!(queue.completed("order.paid").await.unwrap().len(), 2);
}

// Q9
#[tokio::test]
async fn time_passes_only_by_advance() {
    let queue = TestQueue::new().await.unwrap();
    let node = Node::new(&queue, "n").on("t", |event, _| async move {
        match event.attempt() {
            1 => Err("not yet")?,
            2 => Err(HandlerError::snooze(Duration::from_secs(3600))),
            _ => Ok(()),
        }
    });
    let node = queue.start(node).await.unwrap();
    let event = queue.publish(NewEvent::new("t").delay(Duration::from_secs(10))).await.unwrap().event;
    for (seconds, status, handled) in [
        (0, Status::Pending, 0),
        (10, Status::Pending, 1),
        (299, Status::Pending, 0),
        (1, Status::Pending, 1),
        (3600, Status::Completed, 1),
    ] {
        queue.advance(Duration::from_secs(seconds));
        assert_eq!(node.run_until_idle().await.unwrap(), handled);
        assert_eq!(queue.status(event.id).await.unwrap(), status);
    }
    assert_eq!((queue.now() - event.created_at).num_seconds(), 3910);
}

#[tokio::test]
async fn assert_all_completed_reports_unfinished_events() {
    let queue = TestQueue::new().await.unwrap();
    queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
    let audit = Handler::new("t", |_, _| async { Err(HandlerError::unrecoverable("no space")) });
    let node = Node::new(&queue, "n").on("t", |_, _| async { Ok(()) }).handler(audit.id("audit").subscription("audit"));
    let node = queue.start(node).await.unwrap();
    let event = queue.publish(NewEvent::new("t")).await.unwrap().event;
    node.run_until_idle().await.unwrap();
    assert_eq!(queue.status_of(event.id, "audit").await.unwrap(), Status::Failed);
    let message = tokio::spawn(async move { queue.assert_all_completed().await }).await.unwrap_err().into_panic();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("event 1 't' for audit: FAILED no space"), "{message}");
}

#[tokio::test]
#[should_panic(expected = "published events of type 'mail.sent'")]
async fn assert_published_reports_missing_events() {
    let queue = TestQueue::new().await.unwrap();
    queue.publish_as(&mail("ada")).await.unwrap();
    queue.assert_published(&[mail("ada")]).await;
    queue.assert_published(&[mail("bob")]).await;
}

/// Each queue has its own database, in which transactional handlers work.
#[tokio::test]
async fn in_memory_queues_are_isolated() {
    let (one, two) = (TestQueue::new().await.unwrap(), TestQueue::new().await.unwrap());
    one.publish(NewEvent::new("t")).await.unwrap();
    assert_eq!((one.published("t").await.unwrap().len(), two.published("t").await.unwrap().len()), (1, 0));
    let seen = Arc::new(Mutex::new(0));
    let count = seen.clone();
    let node = Node::new(&one, "n").on_in_sqlite_tx("t", move |event, tx| {
        tx.execute_batch("CREATE TABLE effects (event_id INTEGER)")?;
        *count.lock().unwrap() += tx.execute("INSERT INTO effects VALUES (?1)", [event.id])?;
        Ok(())
    });
    one.start(node).await.unwrap().run_until_idle().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), 1);
    one.assert_all_completed().await;
    drop(Queue::open("sqlite::memory:").await.unwrap());
}
