//! Transactional handler: its writes and the completion of its event are committed together.
//!
//! Uses a temporary SQLite file, or the PostgreSQL database at `DATABASE_URL`, in which it creates the table
//! `example_payments`.
//!
//! ```sh
//! cargo run -p windlass --example transactional_handler
//! DATABASE_URL=postgres://localhost/shop cargo run -p windlass --example transactional_handler
//! ```

use std::error::Error;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use windlass::{Envelope, Handled, Handler, HandlerError, NewEvent, Node, Queue, Status};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS example_payments (event_id bigint, amount bigint)";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    let url = std::env::var("DATABASE_URL").unwrap_or(format!("sqlite://{}", file.display()));
    let queue = Queue::open(&url).await?;
    let handler = if url.starts_with("postgres") {
        sqlx::query(TABLE).execute(&mut PgConnection::connect(&url).await?).await?;
        on_postgres()
    } else {
        rusqlite::Connection::open(url.trim_start_matches("sqlite://"))?.execute(TABLE, [])?;
        on_sqlite()
    };

    let node = Node::new(&queue, "").leave_unhandled().handler(handler).start().await?;
    let event = node.publish(NewEvent::new("example.payment").payload(&100)?).await?.event;
    while queue.get(event.id).await?.deliveries[0].status != Status::Completed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("the payment is {}", Status::Completed);
    node.stop().await;
    queue.close().await;
    Ok(())
}

/// Receives a transaction of sqlx. Its writes and published events are committed with the completion.
fn on_postgres() -> Handler {
    Handler::in_pg_tx("example.payment", |event, mut tx| async move {
        let amount: i64 = event.payload()?;
        let insert = sqlx::query("INSERT INTO example_payments VALUES ($1, $2)").bind(event.id).bind(amount);
        insert.execute(&mut *tx).await?;
        let count = sqlx::query_scalar("SELECT count(*) FROM example_payments WHERE event_id = $1").bind(event.id);
        fail_first_attempt(&event, count.fetch_one(&mut *tx).await?)
    })
}

/// Receives a transaction of rusqlite. The handler is not async: it runs on the queue's writer thread.
fn on_sqlite() -> Handler {
    Handler::in_sqlite_tx("example.payment", |event, tx| {
        let amount: i64 = event.payload()?;
        tx.execute("INSERT INTO example_payments VALUES (?1, ?2)", (event.id, amount))?;
        let count = "SELECT count(*) FROM example_payments WHERE event_id = ?1";
        fail_first_attempt(event, tx.query_row(count, [event.id], |row| row.get(0))?)
    })
}

/// Both attempts see one row, because the row of the first attempt was rolled back.
fn fail_first_attempt(event: &Envelope, rows: i64) -> Handled {
    println!("attempt {}: {rows} row", event.attempt());
    match event.attempt() {
        1 => Err(HandlerError::retry_after(Duration::from_millis(10), "something went wrong after the insert")),
        _ => Ok(()),
    }
}
