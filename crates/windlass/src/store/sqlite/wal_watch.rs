//! Reports writes to a database's write-ahead log, by this process or another.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};

use notify::{Error, Event, RecommendedWatcher, RecursiveMode, Watcher};

/// A reported write. The next one is reported after this is dropped; until then, the kernel merges events. So a
/// transaction does not wake the watching thread once for every page.
pub(super) struct Unchecked(#[allow(dead_code, reason = "dropped, and never read")] Sender<()>);

/// Dropping it ends the watching thread.
pub(super) struct WalWatch(Option<RecommendedWatcher>);

impl WalWatch {
    /// Watches the log of this database, which must be open: the log exists for as long as it is. The watching thread
    /// calls `on_write`.
    pub fn start(database: &Path, on_write: impl Fn(Unchecked) + Send + 'static) -> Result<WalWatch, Error> {
        let report = move |event: Result<Event, Error>| {
            // Connections that open or close the log do not write to it. Any other event may mean a lost one.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                let (unchecked, checked) = mpsc::channel();
                on_write(Unchecked(unchecked));
                let _ = checked.recv();
            }
        };
        let wal = wal_path(database)?;
        let mut watcher = notify::recommended_watcher(report)?;
        // `notify` panics, also when dropped, if its thread could not be started.
        match catch_unwind(AssertUnwindSafe(|| watcher.watch(&wal, RecursiveMode::NonRecursive))) {
            Ok(watched) => watched.map(|()| WalWatch(Some(watcher))),
            Err(_) => {
                std::mem::forget(watcher);
                Err(Error::generic("no thread to watch the file with"))
            }
        }
    }
}

impl Drop for WalWatch {
    fn drop(&mut self) {
        let watcher = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(watcher)));
    }
}

/// If the path is a symbolic link, the log is next to its target.
fn wal_path(database: &Path) -> Result<PathBuf, Error> {
    let mut path = OsString::from(database.canonicalize().map_err(Error::io_watch)?);
    path.push("-wal");
    Ok(path.into())
}
