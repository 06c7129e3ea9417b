//! Fan-out: each subscription gets its own delivery of every event that it wants, with its own retries.
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
    // `main` is always there, and gets everything. These two come on top of it.
    queue.add_subscription(SubscriptionSpec::new("mail").types(["order.paid"])).await?;
    queue.add_subscription(SubscriptionSpec::new("audit").types(["order.*"])).await?;

    for event_type in ["order.placed", "order.paid"] {
        queue.publish(NewEvent::new(event_type)).await?;
    }

    // Any number of nodes, in any number of processes, could share these.
    let (tell, mut told) = mpsc::unbounded_channel();
    let node = Node::new(&queue, "shop")
        .handler(noting("main", &tell))
        .handler(noting("mail", &tell))
        .handler(noting("audit", &tell))
        .start()
        .await?;

    let mut lines = Vec::new();
    while lines.len() < 5 {
        lines.extend(told.recv().await);
    }
    node.stop().await;
    lines.sort();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// A handler for the deliveries of one subscription. The auditor is slow to wake up, which is nobody else's problem.
fn noting(subscription: &'static str, tell: &mpsc::UnboundedSender<String>) -> Handler {
    let tell = tell.clone();
    let handler = Handler::new("*", move |event, _cx| {
        let tell = tell.clone();
        async move {
            if subscription == "audit" && event.attempt() == 1 {
                return Err(HandlerError::retry_after(Duration::from_millis(50), "the auditor is asleep"));
            }
            tell.send(format!("{subscription}: {}, attempt {}", event.event_type, event.attempt()))?;
            Ok(())
        }
    });
    handler.id(subscription).subscription(subscription)
}
