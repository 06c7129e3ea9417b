//! A web application that publishes events and handles them in one process, with a graceful shutdown.
//!
//! ```sh
//! cargo run -p windlass --example web_app
//! curl http://127.0.0.1:3000/orders -H 'content-type: application/json' -d '{"customer": "Ada"}'
//! ```
//!
//! Set `LISTEN` to use another address and `DATABASE_URL` to use a persistent database. Ctrl-C or SIGTERM stops it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use windlass::{Context, EventType, Handled, Node, Queue};

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
}

impl EventType for OrderPlaced {
    const NAME: &'static str = "order.placed";
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = std::env::var("DATABASE_URL").unwrap_or("sqlite::memory:".to_owned());
    let queue = Queue::open(&database).await?;
    let node = Node::new(&queue, "web-app").on_type(confirm).start().await?;

    let app = Router::new().route("/orders", post(place_order)).with_state(queue.clone());
    let address = std::env::var("LISTEN").unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);

    // Shut down in this order: requests, which may publish; handlers; the queue.
    axum::serve(listener, app).with_graceful_shutdown(windlass::shutdown_signal()).await?;
    println!("stopping");
    node.stop().await;
    queue.close().await;
    Ok(())
}

/// Responds after the event is stored. In a persistent database, the event is handled even if this process crashes.
async fn place_order(State(queue): State<Queue>, Json(order): Json<OrderPlaced>) -> (StatusCode, String) {
    match queue.publish_as(&order).await {
        Ok(published) => (StatusCode::ACCEPTED, format!("event {}\n", published.event.id)),
        Err(error) if error.is_temporary() => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

async fn confirm(order: OrderPlaced, _cx: Context) -> Handled {
    println!("confirmed the order of {}", order.customer);
    Ok(())
}
