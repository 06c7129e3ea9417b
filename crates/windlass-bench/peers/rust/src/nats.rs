//! NATS JetStream: a stream in files, and a durable pull consumer.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, AckKind, Context, Message};
use futures_util::StreamExt;

use crate::board::{Board, Outcome};
use crate::peer::{Opened, Peer, Stopping, Workers};
use crate::protocol::{Payload, Result, Variant};
use crate::version_of;

const STREAM: &str = "bench";
/// How long a pull waits for messages.
const EXPIRES: Duration = Duration::from_secs(1);

pub struct Nats {
    client: Client,
    context: Context,
    consumer: PullConsumer,
    board: Arc<Board>,
    pullers: usize,
    batch: usize,
}

impl Peer for Nats {
    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        let client = async_nats::connect(url).await?;
        let context = jetstream::new(client.clone());
        let config = Config {
            name: STREAM.into(),
            storage: StorageType::File,
            // The retention of a queue: what is acknowledged is removed.
            retention: RetentionPolicy::WorkQueue,
            ..Config::default()
        };
        let stream = context.create_stream(config).await?;
        let (pullers, batch) = variant.choose((10, 10), (2, 500));
        let config = pull::Config {
            durable_name: Some(STREAM.into()),
            max_ack_pending: variant.choose(0, 20_000),
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await?;
        let server = client.server_info().version;
        Ok(Opened {
            peer: Self { client, context, consumer, board, pullers, batch },
            version: format!("{server} (async-nats {})", version_of("async-nats")),
            about: format!(
                "file storage, acknowledged before it is synced (the server syncs every 2 minutes); {pullers} pullers of \
                 up to {batch} messages, plain acks, which the server does not confirm; acknowledged messages are removed"
            ),
        })
    }

    /// All are sent before the first acknowledgement is awaited.
    async fn publish(&self, events: Vec<Payload>) -> Result<()> {
        let mut acks = Vec::with_capacity(events.len());
        for event in &events {
            acks.push(self.context.publish(STREAM, serde_json::to_vec(event)?.into()).await?);
        }
        for ack in acks {
            ack.await?;
        }
        Ok(())
    }

    async fn start(&self) -> Result<Workers> {
        let mut workers = Workers::new();
        for _ in 0..self.pullers {
            let (consumer, board, batch) = (self.consumer.clone(), self.board.clone(), self.batch);
            workers.spawn(&self.board, |stopping| pull(consumer, board, batch, stopping));
        }
        Ok(workers)
    }

    async fn unfinished(&self) -> Result<Option<u64>> {
        let info = self.consumer.get_info().await?;
        Ok(Some(info.num_pending + info.num_ack_pending as u64))
    }

    async fn close(self) -> Result<()> {
        self.client.drain().await?;
        Ok(())
    }
}

async fn pull(consumer: PullConsumer, board: Arc<Board>, batch: usize, stopping: Stopping) -> Result<()> {
    while !stopping.now() {
        let mut messages = consumer.batch().max_messages(batch).expires(EXPIRES).messages().await?;
        while let Some(message) = messages.next().await {
            handle(&message?, &board).await?;
        }
    }
    Ok(())
}

async fn handle(message: &Message, board: &Board) -> Result<()> {
    match board.handle(&serde_json::from_slice(&message.payload)?) {
        Outcome::Succeed => {
            message.ack().await?;
            board.finish(1);
        }
        Outcome::Fail => message.ack_with(AckKind::Nak(None)).await?,
    }
    Ok(())
}
