//! Telling other processes that something is ready, and hearing it from them. Only ever a hint: who
//! hears nothing finds it by looking.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::{mpsc, watch};

use super::connections::Connections;
use super::error::from_sqlx;
use super::group::Freed;
use super::marks::Marks;
use crate::clock::{Timestamp, from_micros};
use crate::error::Result;
use crate::wake::Wakes;

pub(super) const CHANNEL: &str = "windlass";
/// Who tells in somebody else's transaction: everyone has to hear it, also the process it came from.
pub(super) const NOBODY: u64 = 0;
/// At most one notification per namespace in this time.
const EVERY: Duration = Duration::from_millis(5);
/// More lanes than this are not named: who hears it looks at all of his.
const LANES_MAX: usize = 100;
/// After a lost connection.
const RECONNECT: Duration = Duration::from_secs(1);

/// A message that only asks whether its sender gets to hear it: this word and a number.
const PROBE: &str = "probe";
/// So long, and so often, a probe is waited for.
const PROBE_MAX: Duration = Duration::from_secs(3);
const PROBE_EVERY: Duration = Duration::from_millis(250);

/// Something is ready in a namespace.
pub(super) struct Ready {
    pub namespace: String,
    /// Where and since when; anywhere, if empty.
    pub freed: Vec<Freed>,
}

impl Ready {
    /// What to notify everyone of on [`CHANNEL`].
    pub fn into_message(self, sender: u64) -> String {
        let mut news = News::default();
        news.add(self.freed);
        news.to_message(sender, &self.namespace)
    }
}

/// What is to be told of one namespace.
#[derive(Default)]
struct News {
    lanes: BTreeSet<i64>,
    since: Option<Timestamp>,
    anywhere: bool,
}

impl News {
    fn add(&mut self, freed: Vec<Freed>) {
        self.anywhere |= freed.is_empty();
        for (lane, ready_at) in freed {
            self.lanes.insert(lane);
            self.since = Some(self.since.map_or(ready_at, |since| since.min(ready_at)));
        }
    }

    /// `sender namespace since lane,lane…`; a `-` stands for "any".
    fn to_message(&self, sender: u64, namespace: &str) -> String {
        let named = !self.anywhere && self.lanes.len() <= LANES_MAX;
        let lanes = self.lanes.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let since = self.since.filter(|_| !self.anywhere).map(|since| since.timestamp_micros().to_string());
        let (since, lanes) = (since.unwrap_or_else(|| "-".into()), if named { lanes } else { "-".into() });
        format!("{sender:x} {namespace} {since} {lanes}")
    }
}

/// Sends what comes in, gathered; ends with the store.
pub(super) async fn send(mut ready: mpsc::UnboundedReceiver<Ready>, connections: Arc<Connections>, sender: u64) {
    while let Some(first) = ready.recv().await {
        let mut news: BTreeMap<String, News> = BTreeMap::new();
        news.entry(first.namespace).or_default().add(first.freed);
        while let Ok(more) = ready.try_recv() {
            news.entry(more.namespace).or_default().add(more.freed);
        }
        let messages: Vec<String> = news.iter().map(|(namespace, news)| news.to_message(sender, namespace)).collect();
        if let Ok(mut connection) = connections.get().await {
            match notify(&mut connection, messages).await {
                Ok(()) => connection.done(),
                Err(error) => tracing::debug!(%error, "could not notify other processes; they find it by looking"),
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

// Not synced, since it is a hint: what it tells of is committed already.
const NOTIFY: &str = "
SELECT pg_notify($1, message)
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unsynced, unnest($2::text[]) AS message";

async fn notify(connection: &mut PgConnection, messages: Vec<String>) -> sqlx::Result<()> {
    sqlx::query(NOTIFY).bind(CHANNEL).bind(messages).execute(connection).await.map(drop)
}

/// How long a notification takes to come back to this process; `None`: it does not.
pub(super) async fn probe(connections: &Connections, heard: &watch::Sender<u64>) -> Result<Option<Duration>> {
    let (begun, number, mut heard) = (Instant::now(), fastrand::u64(1..), heard.subscribe());
    while begun.elapsed() < PROBE_MAX {
        let mut connection = connections.get().await?;
        notify(&mut connection, vec![format!("{PROBE} {number:x}")]).await.map_err(from_sqlx)?;
        connection.done();
        // Who has only begun to listen hears the next one.
        if tokio::time::timeout(PROBE_EVERY, heard.wait_for(|last| *last == number)).await.is_ok() {
            return Ok(Some(begun.elapsed()));
        }
    }
    Ok(None)
}

/// Passes on what other processes say, until it is aborted.
pub(super) async fn listen(
    options: PgConnectOptions,
    wakes: Arc<Wakes>,
    marks: Arc<Marks>,
    own: u64,
    heard: Arc<watch::Sender<u64>>,
) {
    loop {
        if let Err(error) = listen_once(&options, &wakes, &marks, own, &heard).await {
            tracing::debug!(%error, "not listening for notifications; trying again");
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn listen_once(
    options: &PgConnectOptions,
    wakes: &Wakes,
    marks: &Marks,
    own: u64,
    heard: &watch::Sender<u64>,
) -> sqlx::Result<()> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    // Whatever was said before is found now.
    marks.rewind_all(None);
    wakes.ring_all();
    loop {
        match listener.try_recv().await? {
            Some(message) => match message.payload().split_once(' ') {
                Some((PROBE, number)) => drop(u64::from_str_radix(number, 16).map(|number| heard.send_replace(number))),
                _ => hear(message.payload(), wakes, marks, own),
            },
            // The connection was lost, and with it whatever was said meanwhile.
            None => {
                marks.rewind_all(None);
                wakes.ring_all();
            }
        }
    }
}

fn hear(message: &str, wakes: &Wakes, marks: &Marks, own: u64) {
    let mut words = message.split(' ');
    let (Some(sender), Some(namespace), Some(since), Some(lanes)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return;
    };
    if u64::from_str_radix(sender, 16) == Ok(own) {
        return;
    }
    let since = since.parse().ok().map(from_micros);
    let lanes: Vec<i64> = lanes.split(',').filter_map(|lane| lane.parse().ok()).collect();
    match (since, lanes.is_empty()) {
        (Some(since), false) => lanes.iter().for_each(|lane| marks.rewind(*lane, since)),
        _ => marks.rewind_all(since),
    }
    if lanes.is_empty() {
        wakes.ring_anywhere(namespace);
    } else {
        wakes.ring(namespace, &lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_name_their_lanes_unless_there_are_too_many() {
        let at = |micros| from_micros(micros);
        let mut news = News::default();
        news.add(vec![(7, at(20)), (3, at(10)), (7, at(30))]);
        assert_eq!(news.to_message(0xab, "orders"), "ab orders 10 3,7");
        news.add((0..200).map(|lane| (lane, at(5))).collect());
        assert_eq!(news.to_message(0xab, "orders"), "ab orders 5 -");
        news.add(Vec::new());
        assert_eq!(news.to_message(0xab, "orders"), "ab orders - -");
    }
}
