//! One task for all who wait in a namespace: it looks for them once a second, with one statement, and
//! rings for those whom it concerns. Notifications only make it faster.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Result;
use crate::maintain;
use crate::queue::Core;

/// Without any sign, it looks again this often.
pub(super) const POLL: Duration = Duration::from_secs(1);
/// It never looks again sooner than this by itself.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// Sweeps and looks take at most one part in this many of the time, but for one that is slow alone: also where they have to
/// pass millions of rows that nobody can vacuum, they shall not be felt.
pub(super) const SHARE: u32 = 50;
/// A look that takes no longer may be repeated at will.
const LOOK_CHEAP: Duration = Duration::from_millis(5);

/// When the next look may begin.
pub(super) struct Pace {
    next: Instant,
    /// When the last slow look ended.
    slow: Option<Instant>,
}

impl Pace {
    pub fn new() -> Pace {
        Pace { next: Instant::now(), slow: None }
    }

    pub fn allows(&self) -> bool {
        self.next <= Instant::now()
    }

    /// A look that began then has ended now.
    pub fn note(&mut self, begun: Instant) {
        self.add(begun.elapsed());
    }

    /// One that is slow alone, since it had to connect or somebody else was busy, is not held against the next.
    fn add(&mut self, took: Duration) {
        if took <= LOOK_CHEAP {
            return;
        }
        let (now, pause) = (Instant::now(), took * (SHARE - 1));
        if self.slow.replace(now).is_some_and(|before| now - before < pause) {
            self.next = now + pause;
        }
    }
}

/// Watches for as long as there are claimers in the namespace.
pub(super) async fn watch(core: Arc<Core>, namespace: String) {
    let mut pace = Pace::new();
    let mut poll_at = Instant::now() + POLL;
    while let Some((alarm, look_by)) = core.wakes.watch(&namespace) {
        // Of a lane that is new here somebody in this process may know already: that need not wait for a look.
        if let Some(known) = core.known_topology(&namespace).filter(|known| core.wakes.is_news(&namespace, known)) {
            core.wakes.tell(&namespace, &known);
        }
        let due = look_by.map_or(poll_at, |by| by.min(poll_at)).max(pace.next);
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            // There may be a sooner look to wait for.
            () = alarm.notified() => continue,
        }
        // Processes that started together do not stay together.
        poll_at = Instant::now() + POLL.mul_f64(1.0 - 0.1 * fastrand::f64());
        let Some(lanes) = core.wakes.begin_look(&namespace) else {
            // Who comes to wait rings, if a look is due.
            let _ = tokio::time::timeout(POLL, alarm.notified()).await;
            continue;
        };
        match look(&core, &namespace, &lanes, &mut pace).await {
            Ok(Some(soon)) if soon < POLL => core.wakes.look_by(&namespace, Instant::now() + soon.max(LOOK_MIN)),
            Ok(_) => {}
            Err(error) => core.wakes.fail(&namespace, &error),
        }
    }
}

/// Looks for new lanes, changes, run-out leases, and deliveries that nobody rang for; how long until the
/// next one becomes ready.
async fn look(core: &Arc<Core>, namespace: &str, lanes: &[i64], pace: &mut Pace) -> Result<Option<Duration>> {
    let begun = Instant::now();
    let look = core.store.look(namespace, lanes, core.clock.overridden()).await?;
    pace.note(begun);
    let mut topology = core.topology(namespace).await?;
    if topology.edition() != look.edition() {
        topology = core.reload(namespace).await?;
    }
    core.wakes.tell(namespace, &topology);
    // What a sweep frees, it rings for.
    maintain::sweep_lanes(core, namespace, &look.run_out()).await?;
    let claimable = look.claimable();
    core.store.rewind(&claimable);
    core.wakes.ring_seen(namespace, &claimable);
    Ok(look.next_ready_in())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_slow_look_puts_off_nothing_and_a_second_one_does() {
        let (mut pace, slow) = (Pace::new(), Duration::from_secs(60));
        for took in [LOOK_CHEAP, slow, Duration::ZERO] {
            pace.add(took);
            assert!(pace.allows());
        }
        pace.add(slow);
        assert!(!pace.allows());
    }
}
