//! Connections that each wait for an event, and a publisher that measures how fast each event reaches one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::api::{Api, Publication, TAG};
use crate::AnyError;

/// The longest wait that the server allows.
const WAIT_MS: u64 = 30_000;
/// At most as many concurrent connection attempts as fit into a listener's backlog.
const CONNECTING_MAX: usize = 100;
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after the last event in which a duplicate delivery would be reported.
const DUPLICATE_WAIT: Duration = Duration::from_secs(2);

/// All pollers, each in a task.
pub struct PollerPool {
    server: SocketAddr,
    pollers: u32,
    distinct_tags: bool,
    tasks: JoinSet<Result<(), AnyError>>,
    received: mpsc::UnboundedReceiver<ReceivedEvent>,
}

struct ReceivedEvent {
    poller: u32,
    event: i64,
    at: Instant,
}

impl PollerPool {
    pub async fn open(server: SocketAddr, pollers: u32, distinct_tags: bool) -> Result<PollerPool, AnyError> {
        let (report, received) = mpsc::unbounded_channel();
        let connecting = Arc::new(Semaphore::new(CONNECTING_MAX));
        let mut pool = PollerPool { server, pollers, distinct_tags, tasks: JoinSet::new(), received };
        for n in 0..pollers {
            let permit = connecting.clone().acquire_owned().await?;
            let (tag, report) = (tag(n, distinct_tags), report.clone());
            pool.tasks.spawn(async move {
                let api = Api::open(server, format!("poller:{n}")).await?;
                drop(permit);
                poll(api, n, &tag, report).await
            });
        }
        // When all permits are free again, all connections are open.
        let all_open = async move { connecting.acquire_many(CONNECTING_MAX as u32).await.map(drop) };
        pool.while_running(all_open).await??;
        Ok(pool)
    }

    /// Awaits `other`; an error if a poller ends before.
    pub async fn while_running<T>(&mut self, other: impl Future<Output = T>) -> Result<T, AnyError> {
        tokio::select! {
            done = other => Ok(done),
            Some(ended) = self.tasks.join_next() => match ended? {
                Ok(()) => Err("a poller ended".into()),
                Err(error) => Err(format!("a poller ended: {error}").into()),
            },
        }
    }

    /// Publishes one event after the other, each when the previous one has been received. Returns the time of each;
    /// an error if an event reached no poller or more than one.
    pub async fn publish(&mut self, events: u32) -> Result<Vec<Duration>, AnyError> {
        let mut api = Api::open(self.server, String::new()).await?;
        let (mut took, mut seen) = (Vec::new(), Vec::new());
        for n in 0..events {
            let poller = n * self.pollers / events;
            let publication = Publication::new(1, &tag(poller, self.distinct_tags));
            let started = Instant::now();
            api.publish(&publication).await?;
            let event = self.receive(RECEIVE_TIMEOUT).await?;
            let event = event.ok_or_else(|| format!("event {n} reached no poller within {RECEIVE_TIMEOUT:?}"))?;
            if self.distinct_tags && event.poller != poller {
                return Err(format!("the event for poller {poller} reached poller {}", event.poller).into());
            }
            took.push(event.at - started);
            seen.push(event.event);
        }
        if let Some(ReceivedEvent { poller, event, .. }) = self.receive(DUPLICATE_WAIT).await? {
            return Err(format!("event {event} reached one more poller, {poller}").into());
        }
        seen.sort_unstable();
        match seen.windows(2).find(|two| two[0] == two[1]) {
            Some(twice) => Err(format!("event {} reached two pollers", twice[0]).into()),
            None => Ok(took),
        }
    }

    async fn receive(&mut self, max: Duration) -> Result<Option<ReceivedEvent>, AnyError> {
        tokio::select! {
            event = timeout(max, self.received.recv()) => Ok(event.ok().flatten()),
            Some(ended) = self.tasks.join_next() => {
                ended??;
                Err("a poller ended".into())
            }
        }
    }
}

/// Waits for events, one after the other, until dropped.
async fn poll(mut api: Api, n: u32, tag: &str, report: mpsc::UnboundedSender<ReceivedEvent>) -> Result<(), AnyError> {
    loop {
        if let Some(claimed) = api.wait(tag, WAIT_MS).await? {
            report.send(ReceivedEvent { poller: n, event: claimed.id, at: Instant::now() })?;
            api.finish(&[claimed]).await?;
        }
    }
}

fn tag(poller: u32, distinct: bool) -> String {
    if distinct { format!("{TAG}-{poller}") } else { TAG.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_tags_name_the_poller() {
        assert_eq!((tag(7, false).as_str(), tag(7, true).as_str()), ("bench", "bench-7"));
    }
}
