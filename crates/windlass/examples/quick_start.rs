//! Publishes an event and handles it.
//!
//! ```sh
//! cargo run -p windlass --example quick_start
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use windlass::{NewEvent, Node, Queue};

#[derive(Serialize, Deserialize)]
struct User {
    name: String,
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A queue in memory. To keep the data, use "sqlite://shop.db" or "postgres://localhost/shop".
    let queue = Queue::open("sqlite::memory:").await?;

    let user = User { name: "Ada".to_owned() };
    let event = queue.publish(NewEvent::new("user.created").payload(&user)?).await?.event;
    println!("published event {}", event.id);

    let welcomed = Arc::new(Notify::new());
    let notify = welcomed.clone();
    Node::new(&queue, "quick-start")
        .on("user.created", move |event, _cx| {
            let notify = notify.clone();
            async move {
                let user: User = event.payload()?;
                println!("welcome, {}", user.name);
                notify.notify_one();
                Ok(())
            }
        })
        // A service runs until `windlass::shutdown_signal()`.
        .run_until(welcomed.notified())
        .await?;

    println!("event {} is {}", event.id, queue.get(event.id).await?.deliveries[0].status);
    Ok(())
}
