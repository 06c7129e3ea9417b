//! Typed events: publishers and handlers share one Rust type per event type.
//!
//! ```sh
//! cargo run -p windlass --example typed_events
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use windlass::{EventType, NewEvent, Node, Queue};

#[derive(Serialize, Deserialize)]
struct OrderPaid {
    order: u64,
    customer: String,
}

impl EventType for OrderPaid {
    const NAME: &'static str = "order.paid";
}

#[derive(Serialize, Deserialize)]
struct ReceiptSent {
    order: u64,
}

impl EventType for ReceiptSent {
    const NAME: &'static str = "receipt.sent";
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let queue = Queue::open("sqlite::memory:").await?;
    let done = Arc::new(Notify::new());
    let notify = done.clone();

    let node = Node::new(&queue, "shop")
        .on_type(|paid: OrderPaid, cx| async move {
            // The context has the rest of the event.
            println!("event {}: a receipt for order {} goes to {}", cx.event().id, paid.order, paid.customer);
            cx.publish(NewEvent::of(&ReceiptSent { order: paid.order })?).await?;
            Ok(())
        })
        .on_type(move |sent: ReceiptSent, cx| {
            let notify = notify.clone();
            async move {
                println!("event {}: order {} is settled", cx.event().id, sent.order);
                notify.notify_one();
                Ok(())
            }
        })
        .start()
        .await?;

    queue.publish_as(&OrderPaid { order: 7, customer: "Ada".to_owned() }).await?;
    done.notified().await;
    node.stop().await;
    Ok(())
}
