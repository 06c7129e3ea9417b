//! Fan-out: each subscription gets its own delivery of every event that it matches, with its own retries.
//!
//! ```sh
//! cargo run -p windlass --example fan_out
//! ```

use std::time::Duration;

use tokio::sync::mpsc;
use windlass::{Handler, HandlerError, NewEvent, Node, Queue, SubscriptionSpec};

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let queue = Queue::open("sqlite::memory:").await?;
    // The subscription `main` always exists and matches every event. These two are added to it.
    queue.add_subscription(SubscriptionSpec::new("mail").types(["order.paid"])).await?;
    queue.add_subscription(SubscriptionSpec::new("audit").types(["order.*"])).await?;

    for event_type in ["order.placed", "order.paid"] {
        queue.publish(NewEvent::new(event_type)).await?;
    }

    // Several nodes in several processes could share these handlers.
    let (sender, mut received) = mpsc::unbounded_channel();
    let node = Node::new(&queue, "shop")
        .handler(report_deliveries("main", &sender))
        .handler(report_deliveries("mail", &sender))
        .handler(report_deliveries("audit", &sender))
        .start()
        .await?;

    let mut lines = Vec::new();
    while lines.len() < 5 {
        lines.extend(received.recv().await);
    }
    node.stop().await;
    lines.sort();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Reports each delivery of one subscription. The first attempt of `audit` fails; its retry does not affect the others.
fn report_deliveries(subscription: &'static str, sender: &mpsc::UnboundedSender<String>) -> Handler {
    let sender = sender.clone();
    let handler = Handler::new("*", move |event, _cx| {
        let sender = sender.clone();
        async move {
            if subscription == "audit" && event.attempt() == 1 {
                return Err(HandlerError::retry_after(Duration::from_millis(50), "audit service unavailable"));
            }
            sender.send(format!("{subscription}: {}, attempt {}", event.event_type, event.attempt()))?;
            Ok(())
        }
    });
    handler.id(subscription).subscription(subscription)
}
