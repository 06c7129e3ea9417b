//! The shutdown of `windlass work`.
//!
//! Phases: `Running` → `Draining` at the first signal or after a fatal error; `Draining` → `Terminating` at the second
//! signal or after the grace time.

use std::sync::Mutex;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Events are claimed.
    Running,
    /// No event is claimed. Running commands may finish.
    Draining,
    /// Running commands are ended.
    Terminating,
}

/// The current phase, and what caused it if not a signal.
pub struct Shutdown {
    phase: watch::Sender<Phase>,
    /// The fatal error that started the shutdown, if it was not a signal.
    failure: Mutex<Option<String>>,
}

impl Shutdown {
    /// Listens for signals. From here on they no longer end the process directly.
    pub fn on_signals(grace: Duration) -> Result<Shutdown> {
        let (phase, _) = watch::channel(Phase::Running);
        tokio::spawn(advance_on_signals(phase.clone(), Signals::listen()?, grace));
        Ok(Shutdown { phase, failure: Mutex::new(None) })
    }

    pub fn is_running(&self) -> bool {
        *self.phase.borrow() == Phase::Running
    }

    pub fn is_terminating(&self) -> bool {
        *self.phase.borrow() == Phase::Terminating
    }

    /// Completes when no more events may be claimed.
    pub async fn wait_for_draining(&self) {
        self.wait_for(Phase::Draining).await;
    }

    /// Completes when running commands must be ended.
    pub async fn wait_for_terminating(&self) {
        self.wait_for(Phase::Terminating).await;
    }

    async fn wait_for(&self, phase: Phase) {
        // Waiting cannot fail: `self` owns the sender.
        let _ = self.phase.subscribe().wait_for(|current| *current >= phase).await;
    }

    /// Begins the shutdown because of a fatal error. Running commands may finish.
    pub fn fail(&self, reason: String) {
        self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(reason);
        advance(&self.phase, Phase::Draining);
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Phases never go back.
fn advance(phase: &watch::Sender<Phase>, to: Phase) {
    phase.send_modify(|current| *current = to.max(*current));
}

async fn advance_on_signals(phase: watch::Sender<Phase>, mut signals: Signals, grace: Duration) {
    signals.next().await;
    tracing::info!(?grace, "stopping: claiming no more events; a second signal ends the running commands");
    advance(&phase, Phase::Draining);
    tokio::select! {
        () = signals.next() => {}
        () = tokio::time::sleep(grace) => {}
    }
    advance(&phase, Phase::Terminating);
}

/// The signals that begin the shutdown.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP: the terminal was closed. Commands have their own process groups and would otherwise continue.
    hang_up: Option<Signal>,
}

impl Signals {
    fn listen() -> Result<Signals> {
        // Under `nohup`, SIGHUP must stay ignored.
        let handles_hang_up =
            std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_hang_up_enabled(&status));
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: handles_hang_up.then(|| signal(SignalKind::hangup())).transpose()?,
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

/// Whether the process does not ignore SIGHUP, the lowest bit of `SigIgn` in `/proc/self/status`.
fn is_hang_up_enabled(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hang_up_stays_ignored_under_nohup() {
        assert!(is_hang_up_enabled("Name:\twindlass\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!is_hang_up_enabled("SigIgn:\t0000000000000001\n"));
        assert!(!is_hang_up_enabled(""));
    }
}
