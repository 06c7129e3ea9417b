//! pgmq: tables and functions in PostgreSQL, and a client that reads and deletes.

use std::sync::Arc;
use std::time::Duration;

use pgmq::{Message, PGMQueueExt};
use sqlx08::postgres::PgPoolOptions;

use crate::board::{Board, Outcome};
use crate::peer::{Opened, Peer, Stopping, Workers};
use crate::protocol::{Payload, Result, Variant};
use crate::version_of;

const QUEUE: &str = "bench";
const CONNECTIONS: u32 = 20;
/// How long a message is invisible to other readers.
const VISIBILITY_SECONDS: i32 = 60;
/// How long a read waits for messages, and how often it looks; 100 ms is pgmq's default.
const POLL_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub struct Pgmq {
    queue: Arc<PGMQueueExt>,
    board: Arc<Board>,
    readers: usize,
    batch: i32,
}

impl Peer for Pgmq {
    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        // Not by the URL alone: pgmq takes none without a password.
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        let queue = PGMQueueExt::new_with_pool(pool).await;
        queue.install_sql_from_embedded().await?;
        queue.create(QUEUE).await?;
        let (readers, batch) = variant.choose((10, 1), (2, 1000));
        let sql = queue.installed_version().await?.map_or("unknown".into(), |version| version.to_string());
        Ok(Opened {
            peer: Self { queue: Arc::new(queue), board, readers, batch },
            version: format!("{} (SQL {sql})", version_of("pgmq")),
            about: format!(
                "{readers} readers of up to {batch} messages, polling every {POLL_INTERVAL:?}; \
                 finished messages are deleted, as many in one call as were read"
            ),
        })
    }

    async fn publish(&self, events: Vec<Payload>) -> Result<()> {
        match events.as_slice() {
            [event] => self.queue.send(QUEUE, event).await.map(|_| ())?,
            events => self.queue.send_batch(QUEUE, events).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn start(&self) -> Result<Workers> {
        let mut workers = Workers::new();
        for _ in 0..self.readers {
            let (queue, board, batch) = (self.queue.clone(), self.board.clone(), self.batch);
            workers.spawn(&self.board, |stopping| read(queue, board, batch, stopping));
        }
        Ok(workers)
    }

    async fn close(self) -> Result<()> {
        self.queue.connection.close().await;
        Ok(())
    }
}

async fn read(queue: Arc<PGMQueueExt>, board: Arc<Board>, batch: i32, stopping: Stopping) -> Result<()> {
    while !stopping.now() {
        let messages = queue
            .read_batch_with_poll(QUEUE, VISIBILITY_SECONDS, batch, Some(POLL_TIMEOUT), Some(POLL_INTERVAL))
            .await?;
        finish(&queue, &board, messages.unwrap_or_default()).await?;
    }
    Ok(())
}

async fn finish(queue: &PGMQueueExt, board: &Board, messages: Vec<Message<Payload>>) -> Result<()> {
    let (done, failed): (Vec<_>, Vec<_>) =
        messages.iter().partition(|message| board.handle(&message.message) == Outcome::Succeed);
    for message in failed {
        queue.set_vt::<Payload>(QUEUE, message.msg_id, 0).await?;
    }
    let ids: Vec<i64> = done.iter().map(|message| message.msg_id).collect();
    let deleted = match ids.as_slice() {
        [] => return Ok(()),
        [id] => usize::from(queue.delete(QUEUE, *id).await?),
        ids => queue.delete_batch(QUEUE, ids).await?,
    };
    if deleted != ids.len() {
        return Err(format!("{} were handled, and {deleted} deleted", ids.len()).into());
    }
    board.finish(deleted as u64);
    Ok(())
}
