//! The outbox: an order is stored and its event published in one transaction of your own. Both are there, or neither.
//!
//! It makes the table `example_orders` in the PostgreSQL database that you name.
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

    let (tell, mut told) = mpsc::unbounded_channel();
    let node = Node::new(&queue, "")
        .on("example.order.placed", move |event, _cx| {
            let tell = tell.clone();
            async move {
                let customer: String = event.payload()?;
                tell.send(customer)?;
                Ok(())
            }
        })
        // It touches nothing else that may be in this queue.
        .leave_unhandled()
        .start()
        .await?;

    // This one goes wrong after its event was published: it never was.
    if let Err(error) = place_order(&pool, &queue, "Bob", false).await {
        println!("no order of Bob's: {error}");
    }
    place_order(&pool, &queue, "Ada", true).await?;
    println!("an order of Ada's");

    if let Some(customer) = told.recv().await {
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
        return Err("out of stock".into()); // The transaction is dropped, and so rolled back.
    }
    tx.commit().await?;
    Ok(())
}
