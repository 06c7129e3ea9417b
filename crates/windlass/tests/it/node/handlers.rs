//! Which handlers an event reaches, and what they receive.

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
    async fn event_reaches_every_handler_of_its_type_and_no_other(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
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
            wait_for_status(&queue, event.id, Status::Completed).await;
        }
        let lines = sorted(ledger.lines());
        assert_eq!(
            lines,
            ["any order order.paid", "any order order.sent", "first order.paid", "others unknown", "second order.paid", "user user.created"]
        );
        node.stop().await;
    }

    // C4
    async fn handler_receives_the_envelope(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
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
        wait_for_status(&queue, event.id, Status::Completed).await;
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

    async fn typed_handler_receives_decoded_payload(bed) {
        let (queue, ledger) = (real_time_namespace(bed, Policy { max_retries: Some(1), ..immediate_retries() }).await, Ledger::default());
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
        wait_for_status(&queue, paid.id, Status::Completed).await;
        assert_eq!(ledger.lines(), ["7 order.paid"]);
        // A payload that does not fit the type is a failure that names the missing field.
        let odd = publish_new(&queue, NewEvent::new("order.paid").payload(&json!({})).unwrap()).await;
        wait_for_status(&queue, odd.id, Status::Failed).await;
        let log = queue.log(odd.id).await.unwrap();
        let error = log.last().unwrap().error_message.clone().unwrap();
        assert!(error.contains("missing field `order_id`"), "{error}");
        node.stop().await;
    }

    // C5
    async fn handler_added_to_a_running_node_is_used(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let event = publish(&queue, "late").await;
        // A node without handlers claims nothing.
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
        wait_for_status(&queue, event.id, Status::Completed).await;
        assert_eq!(trail(&queue, event.id).await.len(), 2);
        let again = node.on("late", |_, _| async { Ok(()) }).await.unwrap_err();
        assert_eq!(again.to_string(), "handler: 'late' is already registered; set a different id");
        node.stop().await;
    }

    // C3, C4
    async fn node_is_the_producer_of_events_it_publishes(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
        let written = ledger.clone();
        let node = start(
            Node::new(&queue, "api-1")
                .on("first", |_, cx| async move {
                    cx.emit("second", &json!({ "n": 2 })).await?;
                    cx.publish(NewEvent::new("second").producer("another-producer")).await?;
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
        assert_eq!(sorted(ledger.lines()), ["another-producer", "api-1"]);
        node.stop().await;
    }

    // Fan-out: each subscription gets its own delivery.
    async fn handlers_of_other_subscriptions_get_their_own_delivery(bed) {
        let (queue, ledger) = (real_time_namespace(bed, immediate_retries()).await, Ledger::default());
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
        eventually("all three deliveries are completed", async || {
            queue.get(event.id).await.unwrap().deliveries.iter().all(|delivery| delivery.status == Status::Completed)
        })
        .await;
        both.stop().await;
        other.stop().await;
    }

    async fn handler_for_unknown_subscription_is_refused(bed) {
        let queue = real_time_namespace(bed, immediate_retries()).await;
        let handler = Handler::new("t", |_, _| async { Ok(()) }).subscription("missing");
        let refused = Node::new(&queue, "n").handler(handler).start().await.err().unwrap();
        assert_eq!(refused.to_string(), "subscription 'missing' does not exist in namespace 'ns'");
    }
}
