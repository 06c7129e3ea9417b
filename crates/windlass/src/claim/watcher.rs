//! Polls the database on behalf of all waiting claims of a namespace, with one statement per poll.
//!
//! The watcher polls on a notification, when a delivery becomes ready, when a lease expires, and at least once per poll
//! interval ([`OpenOptions::idle_poll`](crate::OpenOptions::idle_poll)). It then wakes the claimers that have something
//! to claim. It also detects new lanes and a changed topology, and releases expired leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Result;
use crate::maintenance::release_expired::release_expired;
use crate::queue::Core;

/// The minimum time until a poll that the watcher schedules itself.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);
/// Slow polls take at most 1/50 of the time. A poll that has to skip millions of rows which vacuum cannot remove must
/// not slow down the claims.
const POLL_TIME_DIVISOR: u32 = 50;
/// A poll that takes at most this long may be repeated without a pause.
const FAST_POLL_MAX: Duration = Duration::from_millis(5);

/// Decides when the next poll may begin, so that slow polls do not take too much of the time.
pub(super) struct PollThrottle {
    interval: Duration,
    next_at: Instant,
    /// When the last slow poll ended.
    last_slow_at: Option<Instant>,
}

impl PollThrottle {
    pub fn new(interval: Duration) -> PollThrottle {
        PollThrottle { interval, next_at: Instant::now() + interval, last_slow_at: None }
    }

    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    pub fn is_due(&self) -> bool {
        self.next_at <= Instant::now()
    }

    /// Records that a poll that began at `begun` has ended now.
    pub fn record(&mut self, begun: Instant) {
        self.record_duration(begun.elapsed());
    }

    /// A single slow poll does not delay the next one: it may have had to connect, or the machine was busy.
    fn record_duration(&mut self, took: Duration) {
        let (now, pause) = (Instant::now(), took * (POLL_TIME_DIVISOR - 1));
        self.next_at = now + self.interval;
        if took > FAST_POLL_MAX && self.last_slow_at.replace(now).is_some_and(|before| now - before < pause) {
            self.next_at = now + pause.max(self.interval);
        }
    }
}

/// Runs until the namespace has no claimers left.
pub(super) async fn watch(core: Arc<Core>, namespace: String) {
    let (mut throttle, idle_poll) = (PollThrottle::new(Duration::ZERO), core.idle_poll);
    let (mut idle_poll_at, mut connects) = (Instant::now() + idle_poll, 0);
    while let Some((alarm, poll_by)) = core.wakes.watch(&namespace) {
        let due = poll_by.map_or(idle_poll_at, |by| by.min(idle_poll_at)).max(throttle.next_at());
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            // An earlier poll may be due now.
            () = alarm.notified() => continue,
        }
        // Jitter, so that processes which started together do not poll together.
        idle_poll_at = Instant::now() + idle_poll.mul_f64(1.0 - 0.1 * fastrand::f64());
        match poll(&core, &namespace, &mut throttle, &mut connects).await {
            // No claim waits. A claimer that begins to wait triggers the alarm if a poll is due.
            Ok(None) => drop(tokio::time::timeout(idle_poll, alarm.notified()).await),
            Ok(Some(next)) if next < idle_poll => {
                core.wakes.poll_by(&namespace, Instant::now() + next.max(POLL_PAUSE_MIN))
            }
            Ok(Some(_)) => {}
            Err(error) => core.wakes.fail(&namespace, &error),
        }
    }
}

/// Polls once and notifies the waiters that have something to claim. Returns how long it takes until the next delivery
/// becomes ready; `None` if no claim waits.
async fn poll(
    core: &Arc<Core>,
    namespace: &str,
    throttle: &mut PollThrottle,
    connects: &mut u64,
) -> Result<Option<Duration>> {
    let Some(request) = core.wakes.begin_poll(namespace) else { return Ok(None) };
    let begun = Instant::now();
    let polled = core.store.poll_ready(namespace, &request, core.clock.overridden()).await?;
    throttle.record(begun);
    let (version, newest_lane) = core.wakes.known_lanes(namespace);
    if (polled.version, polled.newest_lane) != (version, newest_lane) {
        announce_changes(core, namespace, polled.version, newest_lane).await?;
    }
    if polled.leases_due {
        // This notifies the waiters of the released deliveries.
        release_expired(core, namespace).await?;
    }
    if std::mem::replace(connects, polled.connects) != polled.connects {
        // The server may have crashed. The next claims forget their positions.
        core.wakes.notify_waiters(namespace);
    }
    core.wakes.notify_ready(namespace, &polled.ready_subscriptions, &polled.ready_lanes);
    Ok(Some(polled.next_in.unwrap_or(core.idle_poll)))
}

/// Notifies the waiters of a changed topology, or of lanes that are newer than `known`.
async fn announce_changes(core: &Arc<Core>, namespace: &str, version: i64, known: i64) -> Result<()> {
    let mut topology = core.topology(namespace).await?;
    if topology.version != version {
        topology = core.reload(namespace).await?;
    }
    let newest = core.list_lanes(&topology).await?;
    // In a new version, all lanes are new.
    let known = if core.wakes.known_lanes(namespace).0 == topology.version { known } else { 0 };
    core.wakes.lanes_changed(namespace, topology.version, &core.lanes.newer_than(&topology, known), newest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_slow_poll_delays_the_next_poll() {
        let (mut throttle, slow) = (PollThrottle::new(Duration::ZERO), Duration::from_secs(60));
        for took in [FAST_POLL_MAX, slow, Duration::ZERO] {
            throttle.record_duration(took);
            assert!(throttle.is_due());
        }
        throttle.record_duration(slow);
        assert!(!throttle.is_due());
    }
}
