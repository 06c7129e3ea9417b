//! Groups: events of one account are handled one at a time and in order, those of different accounts side by side.
//!
//! ```sh
//! cargo run -p windlass --example ordered_groups
//! ```

use std::time::Duration;

use tokio::sync::mpsc;
use windlass::{HandlerError, NewEvent, Node, Queue};

const ACCOUNTS: [&str; 3] = ["ada", "bob", "cleo"];
const ENTRIES: u32 = 5;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let queue = Queue::open("sqlite::memory:").await?;
    for entry in 1..=ENTRIES {
        for account in ACCOUNTS {
            queue.publish(NewEvent::new("account.entry").payload(&entry)?.group(account)).await?;
        }
    }

    let (book, mut booked) = mpsc::unbounded_channel();
    let node = Node::new(&queue, "ledger")
        .concurrency(10)
        .on("account.entry", move |event, _cx| {
            let book = book.clone();
            async move {
                let entry: u32 = event.payload()?;
                // Entries take their time. Without groups, a later one would overtake an earlier one.
                tokio::time::sleep(Duration::from_millis(10 * u64::from(ENTRIES - entry))).await;
                // One fails at first. Its account waits for it; the others do not.
                if entry == 2 && event.attempt() == 1 {
                    return Err(HandlerError::retry_after(Duration::from_millis(100), "the ledger is locked"));
                }
                let account = event.group_id.clone().unwrap_or_default();
                book.send((account, entry))?;
                Ok(())
            }
        })
        .start()
        .await?;

    let mut entries = Vec::new();
    while entries.len() < ACCOUNTS.len() * ENTRIES as usize {
        entries.extend(booked.recv().await);
    }
    node.stop().await;

    for account in ACCOUNTS {
        let of_it: Vec<u32> = entries.iter().filter(|(of, _)| of == account).map(|(_, entry)| *entry).collect();
        println!("{account}: {of_it:?}");
    }
    Ok(())
}
