//! When to stop: at the first signal nothing more is taken, at the second, or after the grace time, nothing goes on.

use std::sync::Mutex;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Going,
    /// What runs may finish.
    Finishing,
    /// What runs is ended.
    Now,
}

pub struct Stop {
    phase: watch::Sender<Phase>,
    /// Why it cannot go on, where nobody told it to stop.
    broken: Mutex<Option<String>>,
}

impl Stop {
    /// From here on a signal no longer ends the process by itself.
    pub fn on_signals(grace: Duration) -> Result<Stop> {
        let (phase, _) = watch::channel(Phase::Going);
        tokio::spawn(follow(phase.clone(), Signals::listen()?, grace));
        Ok(Stop { phase, broken: Mutex::new(None) })
    }

    pub fn goes_on(&self) -> bool {
        *self.phase.borrow() == Phase::Going
    }

    pub fn is_now(&self) -> bool {
        *self.phase.borrow() == Phase::Now
    }

    /// Ready once nothing more is to be taken.
    pub async fn begun(&self) {
        self.reached(Phase::Finishing).await;
    }

    /// Ready once nothing is to go on.
    pub async fn now(&self) {
        self.reached(Phase::Now).await;
    }

    async fn reached(&self, phase: Phase) {
        // Its sender is here.
        let _ = self.phase.subscribe().wait_for(|current| *current >= phase).await;
    }

    /// It cannot go on: what runs may finish.
    pub fn break_off(&self, why: String) {
        self.broken.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(why);
        raise(&self.phase, Phase::Finishing);
    }

    pub fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

fn raise(phase: &watch::Sender<Phase>, to: Phase) {
    phase.send_modify(|current| *current = to.max(*current));
}

async fn follow(phase: watch::Sender<Phase>, mut signals: Signals, grace: Duration) {
    signals.next().await;
    tracing::info!(?grace, "stopping: nothing more is taken; a second signal ends what runs");
    raise(&phase, Phase::Finishing);
    tokio::select! {
        () = signals.next() => {}
        () = tokio::time::sleep(grace) => {}
    }
    raise(&phase, Phase::Now);
}

/// Those that tell it to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed. Commands have process groups of their own, and would go on without us.
    hang_up: Option<Signal>,
}

impl Signals {
    fn listen() -> Result<Signals> {
        // Not where `nohup` began us: listening would undo it.
        let heeded = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| heeds_hang_up(&status));
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: heeded.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    async fn next(&mut self) {
        let hung_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = hung_up => {}
        }
    }
}

/// By what Linux says of a process: whether SIGHUP, the first bit, is not among the signals that it ignores.
fn heeds_hang_up(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_respected() {
        assert!(heeds_hang_up("Name:\twindlass\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!heeds_hang_up("SigIgn:\t0000000000000001\n"));
        assert!(!heeds_hang_up(""));
    }
}
