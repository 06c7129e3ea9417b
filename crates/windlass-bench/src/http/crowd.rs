//! Connections that each wait for an event, and the events that reach them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::api::{Api, Publication, TAG};
use crate::AnyError;

/// As long as the server lets a request wait.
const WAIT_MS: u64 = 30_000;
/// No more connections at once than a listener's queue holds.
const OPENING_MAX: usize = 100;
const ARRIVAL_MAX: Duration = Duration::from_secs(20);
/// So long after the last event, who else got one would have said so.
const DOUBLE_WAIT: Duration = Duration::from_secs(2);

/// All of them.
pub struct Crowd {
    server: SocketAddr,
    pollers: u32,
    distinct_tags: bool,
    tasks: JoinSet<Result<(), AnyError>>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
}

struct Arrival {
    poller: u32,
    event: i64,
    at: Instant,
}

impl Crowd {
    pub async fn gather(server: SocketAddr, pollers: u32, distinct_tags: bool) -> Result<Crowd, AnyError> {
        let (report, arrivals) = mpsc::unbounded_channel();
        let opening = Arc::new(Semaphore::new(OPENING_MAX));
        let mut crowd = Crowd { server, pollers, distinct_tags, tasks: JoinSet::new(), arrivals };
        for n in 0..pollers {
            let place = opening.clone().acquire_owned().await?;
            let (tag, report) = (tag(n, distinct_tags), report.clone());
            crowd.tasks.spawn(async move {
                let api = Api::open(server, format!("poller:{n}")).await?;
                drop(place);
                poll(api, n, &tag, report).await
            });
        }
        // With all places free again, all are open.
        let all_open = async move { opening.acquire_many(OPENING_MAX as u32).await.map(drop) };
        crowd.alive(all_open).await??;
        Ok(crowd)
    }

    /// What `other` returns, unless a poller ends before: none should.
    pub async fn alive<T>(&mut self, other: impl Future<Output = T>) -> Result<T, AnyError> {
        tokio::select! {
            done = other => Ok(done),
            Some(ended) = self.tasks.join_next() => match ended? {
                Ok(()) => Err("a poller ended".into()),
                Err(error) => Err(format!("a poller ended: {error}").into()),
            },
        }
    }

    /// Publishes one event after the other, each once the one before has arrived. Returns how long
    /// each took; an error if one reached nobody, or more than one.
    pub async fn publish(&mut self, events: u32) -> Result<Vec<Duration>, AnyError> {
        let mut api = Api::open(self.server, String::new()).await?;
        let (mut took, mut seen) = (Vec::new(), Vec::new());
        for n in 0..events {
            let poller = n * self.pollers / events;
            let publication = Publication::new(1, &tag(poller, self.distinct_tags));
            let begun = Instant::now();
            api.publish(&publication).await?;
            let arrival = self.arrival(ARRIVAL_MAX).await?;
            let arrival = arrival.ok_or_else(|| format!("event {n} reached nobody within {ARRIVAL_MAX:?}"))?;
            if self.distinct_tags && arrival.poller != poller {
                return Err(format!("the event for poller {poller} reached poller {}", arrival.poller).into());
            }
            took.push(arrival.at - begun);
            seen.push(arrival.event);
        }
        if let Some(Arrival { poller, event, .. }) = self.arrival(DOUBLE_WAIT).await? {
            return Err(format!("event {event} reached one more poller, {poller}").into());
        }
        seen.sort_unstable();
        match seen.windows(2).find(|two| two[0] == two[1]) {
            Some(twice) => Err(format!("event {} reached two pollers", twice[0]).into()),
            None => Ok(took),
        }
    }

    async fn arrival(&mut self, max: Duration) -> Result<Option<Arrival>, AnyError> {
        tokio::select! {
            arrival = timeout(max, self.arrivals.recv()) => Ok(arrival.ok().flatten()),
            Some(ended) = self.tasks.join_next() => {
                ended??;
                Err("a poller ended".into())
            }
        }
    }
}

/// Waits for events, one after the other, until it is dropped.
async fn poll(mut api: Api, n: u32, tag: &str, report: mpsc::UnboundedSender<Arrival>) -> Result<(), AnyError> {
    loop {
        if let Some(taken) = api.wait(tag, WAIT_MS).await? {
            report.send(Arrival { poller: n, event: taken.id, at: Instant::now() })?;
            api.finish(&[taken]).await?;
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
    fn only_distinct_tags_name_the_poller() {
        assert_eq!((tag(7, false).as_str(), tag(7, true).as_str()), ("bench", "bench-7"));
    }
}
