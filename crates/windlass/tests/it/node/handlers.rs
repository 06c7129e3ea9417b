//! Who handles what, and what they see.

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass::{EventType, Handler, NewEvent, Node, Policy, Status, SubscriptionSpec};

use super::*;

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct OrderPaid {
    order_id: u64,
}

impl EventType for OrderPaid {
    const NAME: &'static str = "order.paid";
}

conformance! {
    // Q10, C5
    async fn an_event_reaches_every_handler_of_its_type_and_no_other(bed) {
        let (queue, ledger) = (real(bed, brisk()).await, Ledger::default());
        let note = |name: &'static str| {
            let ledger = ledger.clone();
            move |event: windlass::Envelope, _cx| {
                let ledger = ledger.clone();
                async move {
                    ledger.write(format!("{name} {}", event.event_type));
                    Ok(())
                }
            }
        };
        let node = start(
            Node::new(&queue, "n")
                .on("order.paid", note("first"))
                .handler(Handler::new("order.paid", note("second")).id("second"))
                .on("order.*", note("any order"))
                .on("user.created", note("user"))
                .on_others(note("others")),
        )
        .await;
        for event_type in ["order.paid", "order.sent", "user.created", "unknown"] {
            let event = publish(&queue, event_type).await;
            until(&queue, event.id, Status::Completed).await;
        }
        let lines = sorted(ledger.lines());
        assert_eq!(
            lines,
            ["any order order.paid", "any order order.sent", "first order.paid", "others unknown", "second order.paid", "user user.created"]
        );
        node.stop().await;
    }

    // C4
    async fn a_handler_sees_the_envelope(bed) {
        let (queue, ledger) = (real(bed, brisk()).await, Ledger::default());
        let written = ledger.clone();
        let node = start(Node::new(&queue, "consumer").on("t", move |event, cx| {
            let ledger = written.clone();
            async move {
                assert_eq!((event.subscription(), event.attempt()), ("main", 1 + event.retry_count()));
                assert_eq!(event.redelivery_count(), event.attempt());
                assert_eq!((cx.node_id(), cx.event().id, cx.is_cancelled()), ("consumer", event.id, false));
                ledger.write(serde_json::to_string(&event)?);
                if event.attempt() == 1 { fail() } else { Ok(()) }
            }
        }))
        .await;
        let event = publish_new(&queue, NewEvent::new("t").payload(&json!({ "n": 1 })).unwrap().producer("api")).await;
        until(&queue, event.id, Status::Completed).await;
        let envelope = |redelivery_count| {
            json!({
                "namespace": "ns", "eventType": "t", "payload": { "n": 1 }, "emittedAt": event.created_at,
                "producerNodeId": "api", "messageId": event.id, "redeliveryCount": redelivery_count
            })
        };
        let seen: Vec<serde_json::Value> =
            ledger.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(seen, [envelope(1), envelope(2)]);
        node.stop().await;
    }

    async fn typed_events_arrive_as_their_type(bed) {
        let (queue, ledger) = (real(bed, Policy { max_retries: Some(1), ..brisk() }).await, Ledger::default());
        let written = ledger.clone();
        let node = start(Node::new(&queue, "n").on_type(move |order: OrderPaid, cx| {
            let ledger = written.clone();
            async move {
                ledger.write(format!("{} {}", order.order_id, cx.event().event_type));
                Ok(())
            }
        }))
        .await;
        let paid = queue.publish_as(&OrderPaid { order_id: 7 }).await.unwrap().event;
        until(&queue, paid.id, Status::Completed).await;
        assert_eq!(ledger.lines(), ["7 order.paid"]);
        // Something else under that name is a failure that says what is missing.
        let odd = publish_new(&queue, NewEvent::new("order.paid").payload(&json!({})).unwrap()).await;
        until(&queue, odd.id, Status::Failed).await;
        let log = queue.log(odd.id).await.unwrap();
        let error = log.last().unwrap().error_message.clone().unwrap();
        assert!(error.contains("missing field `order_id`"), "{error}");
        node.stop().await;
    }

    // C5
    async fn a_handler_added_to_a_running_node_is_used(bed) {
        let (queue, ledger) = (real(bed, brisk()).await, Ledger::default());
        let event = publish(&queue, "late").await;
        // Without a handler a node takes nothing.
        let node = start(Node::new(&queue, "n")).await;
        let written = ledger.clone();
        node.on("late", move |_, _| {
            let ledger = written.clone();
            async move {
                ledger.write("handled");
                Ok(())
            }
        })
        .await
        .unwrap();
        until(&queue, event.id, Status::Completed).await;
        assert_eq!(trail(&queue, event.id).await.len(), 2);
        let again = node.on("late", |_, _| async { Ok(()) }).await.unwrap_err();
        assert_eq!(again.to_string(), "handler: 'late' is there already; give this one an id of its own");
        node.stop().await;
    }

    // C3, C4
    async fn what_a_node_publishes_names_it_as_the_producer(bed) {
        let (queue, ledger) = (real(bed, brisk()).await, Ledger::default());
        let written = ledger.clone();
        let node = start(
            Node::new(&queue, "api-1")
                .on("first", |_, cx| async move {
                    cx.emit("second", &json!({ "n": 2 })).await?;
                    cx.publish(NewEvent::new("second").producer("somebody else")).await?;
                    Ok(())
                })
                .on("second", move |event, _| {
                    let ledger = written.clone();
                    async move {
                        ledger.write(event.producer.clone().unwrap());
                        Ok(())
                    }
                }),
        )
        .await;
        let id = node.emit("first", &json!(1)).await.unwrap();
        assert_eq!(queue.get(id).await.unwrap().event.producer.as_deref(), Some("api-1"));
        ledger.wait(2).await;
        assert_eq!(sorted(ledger.lines()), ["api-1", "somebody else"]);
        node.stop().await;
    }

    // Fan-out: each subscription gets its own delivery.
    async fn handlers_of_other_subscriptions_get_their_own_delivery(bed) {
        let (queue, ledger) = (real(bed, brisk()).await, Ledger::default());
        queue.add_subscription(SubscriptionSpec::new("audit").types(["order.*"])).await.unwrap();
        queue.add_subscription(SubscriptionSpec::new("search")).await.unwrap();
        let note = |name: &'static str| {
            let ledger = ledger.clone();
            Handler::new("order.*", move |event, _| {
                let ledger = ledger.clone();
                async move {
                    assert_eq!(event.subscription(), name);
                    ledger.write(name);
                    Ok(())
                }
            })
            .id(name)
            .subscription(name)
        };
        let both = start(Node::new(&queue, "a").handler(note("main")).handler(note("audit"))).await;
        let other = start(Node::new(&queue, "b").handler(note("search"))).await;
        let event = publish(&queue, "order.paid").await;
        ledger.wait(3).await;
        assert_eq!(sorted(ledger.lines()), ["audit", "main", "search"]);
        eventually("all three are done", async || {
            queue.get(event.id).await.unwrap().deliveries.iter().all(|delivery| delivery.status == Status::Completed)
        })
        .await;
        both.stop().await;
        other.stop().await;
    }

    async fn a_handler_for_a_subscription_that_is_not_there_is_refused(bed) {
        let queue = real(bed, brisk()).await;
        let handler = Handler::new("t", |_, _| async { Ok(()) }).subscription("nobody");
        let refused = Node::new(&queue, "n").handler(handler).start().await.err().unwrap();
        assert_eq!(refused.to_string(), "subscription 'nobody' does not exist in namespace 'ns'");
    }
}
