//! Notifies other processes that deliveries are ready, and receives their notifications. A notification is only a hint: a
//! process that misses one finds the deliveries at its next poll.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::{mpsc, watch};

use super::connections::Connections;
use super::error::from_sqlx;
use crate::error::Result;
use crate::queue::wake::{ReadyLane, WakeRegistry};

const CHANNEL: &str = "windlass";

/// The sender of notifications from transactions of the application. All processes receive them.
pub(super) const APPLICATION: u64 = 0;

/// Sent in place of lanes: there are arrivals for the router.
const ARRIVED: &str = "+";

/// At most one notification per namespace in this time.
const EVERY: Duration = Duration::from_millis(5);

/// If there are more lanes than this, the message names none and the receivers check all of theirs.
const LANES_MAX: usize = 100;

/// After a lost connection.
const RECONNECT: Duration = Duration::from_secs(1);

/// A message that checks whether its sender receives its own notifications: this word and a number.
const PROBE: &str = "probe";

/// How long to wait for a probe, and how often to send it.
const PROBE_MAX: Duration = Duration::from_secs(3);

const PROBE_EVERY: Duration = Duration::from_millis(250);

/// Deliveries are ready in a namespace.
pub(super) struct Ready {
    pub namespace: String,
    /// The lanes; empty: any lane.
    pub lanes: Vec<ReadyLane>,
}

/// The notification about one namespace.
#[derive(Default)]
struct Notification {
    lanes: BTreeSet<ReadyLane>,
    anywhere: bool,
}

impl Notification {
    fn add(&mut self, lanes: Vec<ReadyLane>) {
        self.anywhere |= lanes.is_empty();
        self.lanes.extend(lanes);
    }

    /// `sender namespace subscription:lane,subscription:lane…`; a `-` stands for "any", a `!` after a lane for `rewind`.
    fn to_message(&self, sender: u64, namespace: &str) -> String {
        let named = !self.anywhere && self.lanes.len() <= LANES_MAX;
        let lanes = self.lanes.iter().map(|lane| {
            let rewind = if lane.rewind { "!" } else { "" };
            format!("{}:{}{rewind}", lane.subscription_id, lane.lane_id)
        });
        let lanes = if named { lanes.collect::<Vec<_>>().join(",") } else { "-".to_owned() };
        format!("{sender:x} {namespace} {lanes}")
    }
}

/// Sends the queued notifications, combined; ends with the store.
pub(super) async fn send(mut ready: mpsc::UnboundedReceiver<Ready>, connections: Arc<Connections>, sender: u64) {
    while let Some(first) = ready.recv().await {
        let mut notifications: BTreeMap<String, Notification> = BTreeMap::new();
        notifications.entry(first.namespace).or_default().add(first.lanes);
        while let Ok(more) = ready.try_recv() {
            notifications.entry(more.namespace).or_default().add(more.lanes);
        }
        let messages: Vec<String> = notifications
            .iter()
            .map(|(namespace, notifications)| notifications.to_message(sender, namespace))
            .collect();
        if let Ok(mut connection) = connections.get().await {
            match notify(&mut connection, messages).await {
                Ok(()) => connection.done(),
                Err(error) => {
                    tracing::debug!(%error, "could not notify other processes; they find the deliveries by polling")
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

// Not synced: it is only a hint, and the deliveries are committed already.
const NOTIFY: &str = "
SELECT pg_notify($1, message)
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unsynced, unnest($2::text[]) AS message";

async fn notify(connection: &mut PgConnection, messages: Vec<String>) -> sqlx::Result<()> {
    sqlx::query(NOTIFY).bind(CHANNEL).bind(messages).execute(connection).await.map(drop)
}

/// How long a notification takes to come back to this process; `None`: it does not arrive.
pub(super) async fn probe(connections: &Connections, heard: &watch::Sender<u64>) -> Result<Option<Duration>> {
    let (begun, number, mut heard) = (Instant::now(), fastrand::u64(1..), heard.subscribe());
    while begun.elapsed() < PROBE_MAX {
        let mut connection = connections.get().await?;
        notify(&mut connection, vec![format!("{PROBE} {number:x}")]).await.map_err(from_sqlx)?;
        connection.done();
        // A listener that has just connected receives the next probe.
        if tokio::time::timeout(PROBE_EVERY, heard.wait_for(|last| *last == number)).await.is_ok() {
            return Ok(Some(begun.elapsed()));
        }
    }
    Ok(None)
}

/// Passes on notifications of other processes until the task is aborted.
pub(super) async fn listen(
    options: PgConnectOptions,
    wakes: Arc<WakeRegistry>,
    own: u64,
    heard: Arc<watch::Sender<u64>>,
) {
    loop {
        if let Err(error) = listen_once(&options, &wakes, own, &heard).await {
            tracing::debug!(%error, "not listening for notifications; trying again");
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn listen_once(
    options: &PgConnectOptions,
    wakes: &WakeRegistry,
    own: u64,
    heard: &watch::Sender<u64>,
) -> sqlx::Result<()> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    // Notifications that were sent before are lost.
    wakes.notify_all();
    loop {
        match listener.try_recv().await? {
            Some(message) => match message.payload().split_once(' ') {
                Some((PROBE, number)) => drop(u64::from_str_radix(number, 16).map(|number| heard.send_replace(number))),
                _ => receive(message.payload(), wakes, own),
            },
            // The connection was lost, and with it the notifications that were sent meanwhile.
            None => wakes.notify_all(),
        }
    }
}

fn receive(message: &str, wakes: &WakeRegistry, own: u64) {
    let mut words = message.split(' ');
    let (Some(sender), Some(namespace), Some(lanes)) = (words.next(), words.next(), words.next()) else { return };
    if u64::from_str_radix(sender, 16) == Ok(own) {
        return;
    }
    if lanes == ARRIVED {
        return wakes.notify_router(namespace);
    }
    let lanes: Vec<ReadyLane> = lanes.split(',').filter_map(lane).collect();
    match lanes.is_empty() {
        true => wakes.notify_anywhere(namespace),
        false => wakes.notify(namespace, lanes),
    }
}

fn lane(text: &str) -> Option<ReadyLane> {
    let (subscription_id, lane_id) = text.split_once(':')?;
    let (lane_id, rewind) = lane_id.strip_suffix('!').map_or((lane_id, false), |lane_id| (lane_id, true));
    Some(ReadyLane { subscription_id: subscription_id.parse().ok()?, lane_id: lane_id.parse().ok()?, rewind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_their_lanes_unless_there_are_too_many() {
        let at = |lane_id| ReadyLane { subscription_id: 2, lane_id, rewind: lane_id == 7 };
        let mut notifications = Notification::default();
        notifications.add(vec![at(7), at(3), at(7)]);
        assert_eq!(notifications.to_message(0xab, "orders"), "ab orders 2:3,2:7!");
        assert_eq!((lane("2:7!"), lane("2:3")), (Some(at(7)), Some(at(3))));
        notifications.add((0..200).map(at).collect());
        assert_eq!(notifications.to_message(0xab, "orders"), "ab orders -");
        assert_eq!(lane("-"), None);
    }
}
