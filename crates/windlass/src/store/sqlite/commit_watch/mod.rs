//! Detects commits by other connections: by other processes, and by callers that publish in their own transaction.
//!
//! `PRAGMA data_version` changes when another connection has committed, and does not when this one has. The writer
//! thread checks it after each write to the write-ahead log, which [`WalWatch`] reports, and polls it in case no report
//! arrives.
//!
//! A write is reported before its commit is visible: SQLite writes the log, syncs it, and then updates an index in
//! shared memory, which causes no event. Therefore checks follow a report at doubling intervals, from [`CHECK_GAP`] up
//! to the poll interval.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::connection::is_in_memory;
use super::wal_watch::{Unchecked, WalWatch};
use crate::queue::wake::WakeRegistry;

/// The least time between two checks.
const CHECK_GAP: Duration = Duration::from_millis(1);
/// The same after a check that follows a commit, by another connection or by this one, whose writes are reported too.
const COMMIT_GAP: Duration = Duration::from_millis(5);
/// After this many checks in a row that each detected a commit, the next one waits for the poll interval. So next to a
/// process that commits all the time, waiting claims query no more often than if the log were not watched.
const STREAK_MAX: u32 = 10;

const DATA_VERSION: &str = "PRAGMA data_version";

pub(super) struct Settings {
    /// The database whose log is watched; `None` to poll only.
    pub watched: Option<PathBuf>,
    /// Poll interval while the log is watched.
    pub poll_watched: Duration,
    /// Poll interval otherwise.
    pub poll: Duration,
}

impl Settings {
    /// A database in memory has no log.
    pub fn of(database: &Path) -> Settings {
        Settings {
            watched: (!is_in_memory(database)).then(|| database.to_owned()),
            poll_watched: Duration::from_millis(250),
            poll: Duration::from_millis(50),
        }
    }
}

pub(super) struct CommitWatch {
    settings: Settings,
    /// Notified of commits. Without it, nothing is watched or checked.
    wakes: Option<Arc<WakeRegistry>>,
    wal_watch: Option<WalWatch>,
    /// As of the last check; `None` before the first one on a connection.
    data_version: Option<i64>,
    next_check: Instant,
    /// From the next check to the one after it.
    interval: Duration,
    /// A report does not bring the next check forward to before this.
    not_before: Instant,
    /// Whether this connection has committed since the last check.
    own_commits: bool,
    /// How many checks in a row have detected a commit.
    streak: u32,
    /// Dropped at the next check, which is what the watching thread waits for before it reports another write.
    unchecked: Option<Unchecked>,
    warned: bool,
}

impl CommitWatch {
    pub fn new(settings: Settings) -> CommitWatch {
        let now = Instant::now();
        CommitWatch {
            settings,
            wakes: None,
            wal_watch: None,
            data_version: None,
            next_check: now,
            interval: CHECK_GAP,
            not_before: now,
            own_commits: false,
            streak: 0,
            unchecked: None,
            warned: false,
        }
    }

    /// Notifies `wakes` from now on. The watching thread calls `on_write`, which has to lead to a call of
    /// [`CommitWatch::wal_written`].
    pub fn start(&mut self, wakes: Arc<WakeRegistry>, on_write: impl Fn(Unchecked) + Send + 'static) {
        self.wakes = Some(wakes);
        self.restart(on_write);
    }

    /// Starts over on a new connection: versions are not comparable between connections, and the log may be a new file.
    /// The first check notifies in any case.
    pub fn restart(&mut self, on_write: impl Fn(Unchecked) + Send + 'static) {
        self.data_version = None;
        self.wal_watch = self.watch_wal(on_write);
        self.next_check = Instant::now();
        self.interval = self.poll();
    }

    fn watch_wal(&mut self, on_write: impl Fn(Unchecked) + Send + 'static) -> Option<WalWatch> {
        let database = self.settings.watched.as_ref().filter(|_| self.wakes.is_some())?;
        let error = match WalWatch::start(database, on_write) {
            Ok(watch) => return Some(watch),
            Err(error) => error,
        };
        if !self.warned {
            self.warned = true;
            let (database, poll) = (database.display(), self.settings.poll);
            tracing::warn!(
                "cannot watch the write-ahead log of {database}: {error}. Commits by other processes are polled for \
                 every {poll:?} instead. On Linux, check fs.inotify.max_user_watches and fs.inotify.max_user_instances"
            );
        }
        None
    }

    fn poll(&self) -> Duration {
        if self.wal_watch.is_some() { self.settings.poll_watched } else { self.settings.poll }
    }

    /// The log was written to, by this process or another.
    pub fn wal_written(&mut self, unchecked: Unchecked) {
        self.unchecked = Some(unchecked);
        self.interval = CHECK_GAP;
        self.next_check = self.next_check.min(self.not_before.max(Instant::now()));
    }

    /// This connection has committed.
    pub fn committed(&mut self) {
        self.own_commits = true;
    }

    /// How long until the next check is due; `None` if no claimer waits.
    pub fn next_check_in(&self) -> Option<Duration> {
        self.wakes.as_ref()?;
        Some(self.next_check.saturating_duration_since(Instant::now()))
    }

    /// Without a connection, nothing is detected until there is one again.
    pub fn check_if_due(&mut self, conn: Option<&Connection>) {
        if self.next_check_in().is_some_and(|wait| wait.is_zero()) {
            self.check(conn);
        }
    }

    fn check(&mut self, conn: Option<&Connection>) {
        // Before the version is read: a write from here on leads to another report, and that to another check.
        self.unchecked = None;
        // An error shows in the next write. Until then, waiting claims poll.
        let version =
            conn.and_then(|conn| conn.prepare_cached(DATA_VERSION).ok()?.query_row([], |row| row.get(0)).ok());
        let detected = version.is_some() && version != self.data_version;
        if detected {
            self.data_version = version;
            self.wakes.iter().for_each(|wakes| wakes.notify_all());
        }
        self.streak = if detected { self.streak.saturating_add(1) } else { 0 };
        let gap = match self.streak {
            0 if !self.own_commits => CHECK_GAP,
            0..STREAK_MAX => COMMIT_GAP,
            _ => self.settings.poll,
        };
        self.own_commits = false;
        let now = Instant::now();
        self.not_before = now + gap;
        self.next_check = now + gap.max(self.interval);
        self.interval = self.poll().min(self.interval * 2);
    }
}

#[cfg(test)]
mod tests;
