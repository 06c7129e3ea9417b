//! Groups: events of one account are handled one at a time and in order; accounts are handled concurrently.
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

    let (sender, mut handled) = mpsc::unbounded_channel();
    let node = Node::new(&queue, "ledger")
        .concurrency(10)
        .on("account.entry", move |event, _cx| {
            let sender = sender.clone();
            async move {
                let entry: u32 = event.payload()?;
                // Later entries are faster. Without groups, they would overtake earlier ones.
                tokio::time::sleep(Duration::from_millis(10 * u64::from(ENTRIES - entry))).await;
                // Entry 2 fails once. Its account waits for the retry; the other accounts do not.
                if entry == 2 && event.attempt() == 1 {
                    return Err(HandlerError::retry_after(Duration::from_millis(100), "the ledger is locked"));
                }
                let account = event.group_id.clone().unwrap_or_default();
                sender.send((account, entry))?;
                Ok(())
            }
        })
        .start()
        .await?;

    let mut entries = Vec::new();
    while entries.len() < ACCOUNTS.len() * ENTRIES as usize {
        entries.extend(handled.recv().await);
    }
    node.stop().await;

    for account in ACCOUNTS {
        let of_account = entries.iter().filter(|(name, _)| name == account);
        println!("{account}: {:?}", of_account.map(|(_, entry)| *entry).collect::<Vec<u32>>());
    }
    Ok(())
}
