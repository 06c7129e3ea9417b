//! One task per namespace that looks for all waiting claims, with one statement per poll.
//!
//! It looks when it is notified, when a delivery becomes ready or a lease must be checked, and otherwise once per poll
//! interval. It also learns of new lanes and of a changed topology, and releases expired leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Result;
use crate::maintenance::release_expired::release_expired;
use crate::queue::Core;

/// The watcher never looks again sooner than this by itself.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// Looks take at most one part in this many of the time, except a single slow one. A look that has to pass millions of
/// rows that nothing can vacuum must not slow down the work itself.
const SHARE: u32 = 50;
/// A look that takes no longer may be repeated without a pause.
const LOOK_CHEAP: Duration = Duration::from_millis(5);

/// When the next look may begin.
pub(super) struct Pace {
    every: Duration,
    next: Instant,
    /// When the last slow look ended.
    slow: Option<Instant>,
}

impl Pace {
    pub fn every(every: Duration) -> Pace {
        Pace { every, next: Instant::now() + every, slow: None }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    pub fn is_due(&self) -> bool {
        self.next <= Instant::now()
    }

    /// A look that began then has ended now.
    pub fn note(&mut self, begun: Instant) {
        self.add(begun.elapsed());
    }

    /// A single slow look, because it had to connect or the machine was busy, does not delay the next one.
    fn add(&mut self, took: Duration) {
        let (now, pause) = (Instant::now(), took * (SHARE - 1));
        self.next = now + self.every;
        if took > LOOK_CHEAP && self.slow.replace(now).is_some_and(|before| now - before < pause) {
            self.next = now + pause.max(self.every);
        }
    }
}

/// Watches for as long as there are claimers in the namespace.
pub(super) async fn watch(core: Arc<Core>, namespace: String) {
    let (mut pace, idle_poll) = (Pace::every(Duration::ZERO), core.idle_poll);
    let (mut poll_at, mut connects) = (Instant::now() + idle_poll, 0);
    while let Some((alarm, look_by)) = core.wakes.watch(&namespace) {
        let due = look_by.map_or(poll_at, |by| by.min(poll_at)).max(pace.next);
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            // There may be an earlier look to wait for.
            () = alarm.notified() => continue,
        }
        // Processes that started together do not stay together.
        poll_at = Instant::now() + idle_poll.mul_f64(1.0 - 0.1 * fastrand::f64());
        match look(&core, &namespace, &mut pace, &mut connects).await {
            // No claim waits. A claimer that begins to wait sets off the alarm if a look is due.
            Ok(None) => drop(tokio::time::timeout(idle_poll, alarm.notified()).await),
            Ok(Some(next)) if next < idle_poll => core.wakes.look_by(&namespace, Instant::now() + next.max(LOOK_MIN)),
            Ok(Some(_)) => {}
            Err(error) => core.wakes.fail(&namespace, &error),
        }
    }
}

/// Looks once, and notifies the waiters that have something to claim. How long until something becomes ready; `None` if
/// no claim waits.
async fn look(core: &Arc<Core>, namespace: &str, pace: &mut Pace, connects: &mut u64) -> Result<Option<Duration>> {
    let Some(request) = core.wakes.begin_look(namespace) else { return Ok(None) };
    let begun = Instant::now();
    let look = core.store.look(namespace, &request, core.clock.overridden()).await?;
    pace.note(begun);
    let (version, newest_lane) = core.wakes.known_lanes(namespace);
    if (look.version, look.newest_lane) != (version, newest_lane) {
        announce_changes(core, namespace, look.version, newest_lane).await?;
    }
    if look.leases_due {
        // Notifies the waiters of what it releases.
        release_expired(core, namespace).await?;
    }
    if std::mem::replace(connects, look.connects) != look.connects {
        // The server may have crashed. The next claims forget their positions.
        core.wakes.notify_waiters(namespace);
    }
    core.wakes.notify_seen(namespace, &look.ready_subscriptions, &look.ready_lanes);
    Ok(Some(look.next_in.unwrap_or(core.idle_poll)))
}

/// Notifies the waiters of another version, or of lanes that are newer than `known`.
async fn announce_changes(core: &Arc<Core>, namespace: &str, version: i64, known: i64) -> Result<()> {
    let mut topology = core.topology(namespace).await?;
    if topology.version != version {
        topology = core.reload(namespace).await?;
    }
    let newest = core.list_lanes(&topology).await?;
    // The lanes of another version are all new.
    let known = if core.wakes.known_lanes(namespace).0 == topology.version { known } else { 0 };
    core.wakes.lanes_changed(namespace, topology.version, &core.lanes.newer_than(&topology, known), newest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_slow_look_delays_the_next_one() {
        let (mut pace, slow) = (Pace::every(Duration::ZERO), Duration::from_secs(60));
        for took in [LOOK_CHEAP, slow, Duration::ZERO] {
            pace.add(took);
            assert!(pace.is_due());
        }
        pace.add(slow);
        assert!(!pace.is_due());
    }
}
