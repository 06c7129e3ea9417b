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
        let signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::spawn(follow(phase.clone(), signals, grace));
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

async fn follow(phase: watch::Sender<Phase>, mut signals: (Signal, Signal), grace: Duration) {
    either(&mut signals).await;
    tracing::info!(?grace, "stopping: nothing more is taken; a second signal ends what runs");
    raise(&phase, Phase::Finishing);
    tokio::select! {
        () = either(&mut signals) => {}
        () = tokio::time::sleep(grace) => {}
    }
    raise(&phase, Phase::Now);
}

async fn either((terminate, interrupt): &mut (Signal, Signal)) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
