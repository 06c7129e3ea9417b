//! Noticing what others commit to the same file: other processes, and callers with a connection of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::wake::Wakes;

/// How often they are looked for.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Others {
    wakes: Option<Arc<Wakes>>,
    looked_at: Option<Instant>,
    seen: Option<i64>,
}

/// Changes only by commits of other connections, whichever process they are in.
const DATA_VERSION: &str = "PRAGMA data_version";

impl Others {
    pub fn tell(&mut self, wakes: Arc<Wakes>) {
        self.wakes = Some(wakes);
    }

    pub fn is_somebody_told(&self) -> bool {
        self.wakes.is_some()
    }

    /// Versions of one connection mean nothing to the next.
    pub fn start_over(&mut self) {
        self.seen = None;
    }

    pub fn look(&mut self, conn: &Connection) {
        let Some(wakes) = &self.wakes else { return };
        if self.looked_at.is_some_and(|at| at.elapsed() < WATCH_EVERY) {
            return;
        }
        self.looked_at = Some(Instant::now());
        let version = conn.prepare_cached(DATA_VERSION).and_then(|mut look| look.query_row([], |row| row.get(0)));
        // An error shows in the next write. Waiting claims also look once a second.
        if let Ok(version) = version
            && self.seen.replace(version) != Some(version)
        {
            wakes.notify_all();
        }
    }
}
