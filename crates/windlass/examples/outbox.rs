//! Transactional outbox: one transaction of the application stores an order and publishes its event. Both are
//! committed, or neither is.
//!
//! Creates the table `example_orders` in the PostgreSQL database at `DATABASE_URL`.
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/shop cargo run -p windlass --example outbox
//! ```

use std::error::Error;

use sqlx::PgPool;
use tokio::sync::mpsc;
use windlass::{NewEvent, Node, Queue};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL to a postgres:// URL")?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS example_orders (id bigserial PRIMARY KEY, customer text NOT NULL)")
        .execute(&pool)
        .await?;
    let queue = Queue::open(&url).await?;

    let (sender, mut received) = mpsc::unbounded_channel();
    let node = Node::new(&queue, "")
        .on("example.order.placed", move |event, _cx| {
            let sender = sender.clone();
            async move {
                let customer: String = event.payload()?;
                sender.send(customer)?;
                Ok(())
            }
        })
        // Leaves other events in this queue alone.
        .leave_unhandled()
        .start()
        .await?;

    // This transaction is rolled back after it has published, so its event is never delivered.
    if let Err(error) = place_order(&pool, &queue, "Bob", false).await {
        println!("no order of Bob's: {error}");
    }
    place_order(&pool, &queue, "Ada", true).await?;
    println!("an order of Ada's");

    if let Some(customer) = received.recv().await {
        println!("handled: an order of {customer}'s");
    }
    node.stop().await;
    queue.close().await;
    Ok(())
}

async fn place_order(pool: &PgPool, queue: &Queue, customer: &str, in_stock: bool) -> Result<(), Box<dyn Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO example_orders (customer) VALUES ($1)").bind(customer).execute(&mut *tx).await?;
    queue.publish_in(&mut *tx, NewEvent::new("example.order.placed").payload(customer)?).await?;
    if !in_stock {
        return Err("out of stock".into()); // Dropping the transaction rolls it back.
    }
    tx.commit().await?;
    Ok(())
}
