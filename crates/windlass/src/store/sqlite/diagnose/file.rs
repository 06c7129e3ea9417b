//! Facts about the database file and its file system for `windlass diagnose`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use super::super::connection::{WAL_BYTES_MAX, is_in_memory, open_reader};
use super::super::writer::Durability;
use super::super::{SqliteStore, blocking};
use crate::error::Result;
use crate::observe::diagnose::file::{Integrity, Pages, Settings, file_system_kind, lock_holders};
use crate::store::Checked;

const JOURNAL_MODE: &str = "PRAGMA journal_mode";
const SYNCHRONOUS: &str = "PRAGMA synchronous";
const FREE_PAGES: &str = "PRAGMA freelist_count";
const ALL_PAGES: &str = "PRAGMA page_count";
const PAGE_BYTES: &str = "PRAGMA page_size";
/// Limited to 20 lines.
const CHECK: &str = "PRAGMA quick_check(20)";

fn pragma<T: rusqlite::types::FromSql>(conn: &Connection, sql: &str) -> Result<T> {
    Ok(conn.query_row(sql, [], |row| row.get(0))?)
}

impl SqliteStore {
    /// The path of the file with this suffix; `None` for a database in memory.
    fn beside(&self, end: &str) -> Option<PathBuf> {
        let mut path = OsString::from(&self.file);
        path.push(end);
        (!is_in_memory(&self.file)).then(|| path.into())
    }

    /// The size of the write-ahead log in bytes, and the size to which it is truncated.
    pub(crate) fn wal_bytes(&self) -> (u64, u64) {
        (bytes(self.beside("-wal").as_deref()), WAL_BYTES_MAX)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        bytes(self.beside("").as_deref())
    }

    /// The settings of the writer's connection, and how long it took to get the write lock.
    pub(crate) async fn write_settings(&self) -> Checked<(Settings, Duration)> {
        let (begun, in_memory) = (Instant::now(), is_in_memory(&self.file));
        let look = move |conn: &Connection, _| {
            let (journal_mode, synchronous) = (pragma(conn, JOURNAL_MODE)?, pragma(conn, SYNCHRONOUS)?);
            Ok(Settings { journal_mode, synchronous, in_memory })
        };
        // An empty write takes only the lock.
        let settings = self.writer.write(Durability::Full, None, look).await?;
        Ok((settings, begun.elapsed()))
    }

    /// Reads the whole file, within this time if one is given.
    pub(crate) async fn integrity(&self, within: Option<Duration>) -> Checked<Integrity> {
        let path = self.file.clone();
        Ok(blocking(move || check(&open_reader(&path)?, within)).await?)
    }

    pub(crate) async fn pages(&self) -> Checked<Pages> {
        let remedy = format!("sqlite3 '{}' VACUUM", self.file.display());
        let look = move |conn: &Connection| {
            let (free, all, each): (i64, i64, i64) =
                (pragma(conn, FREE_PAGES)?, pragma(conn, ALL_PAGES)?, pragma(conn, PAGE_BYTES)?);
            let (free, all, bytes_each) = (free.unsigned_abs(), all.unsigned_abs(), each.unsigned_abs());
            Ok(Pages { free, all, bytes_each, remedy })
        };
        Ok(self.read(look).await?)
    }

    /// The type of the file system, if the operating system reports it.
    pub(crate) fn file_system(&self) -> Option<String> {
        let path = self.beside("")?.canonicalize().ok()?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        file_system_kind(&mounts, path.to_str()?).map(str::to_owned)
    }

    /// The bytes available to this user on the file system, if the operating system reports them.
    #[cfg(unix)]
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let place = rustix::fs::statvfs(&self.beside("")?).ok()?;
        Some(place.f_bavail.saturating_mul(place.f_frsize))
    }

    #[cfg(not(unix))]
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// The processes that have the file open, if the operating system reports them: each has a lock on the shared
    /// memory.
    #[cfg(target_os = "linux")]
    pub(crate) fn processes(&self) -> Option<Vec<u32>> {
        use std::os::linux::fs::MetadataExt;

        let shared = std::fs::metadata(self.beside("-shm")?).ok()?;
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let device = shared.st_dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let pids = lock_holders(&locks, (major.into(), minor.into()), shared.st_ino());
        // This process has the file open. If it is not listed, the list is not reliable: some file systems show other
        // inode numbers there.
        pids.contains(&std::process::id()).then_some(pids)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn processes(&self) -> Option<Vec<u32>> {
        None
    }
}

fn bytes(path: Option<&Path>) -> u64 {
    path.and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len())
}

fn check(conn: &Connection, within: Option<Duration>) -> Result<Integrity> {
    let (done, waiting) = mpsc::channel::<()>();
    if let Some(within) = within {
        let interrupt = conn.get_interrupt_handle();
        std::thread::spawn(move || {
            if waiting.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
    }
    let lines = conn.prepare(CHECK).and_then(|mut check| {
        let lines = check.query_map([], |row| row.get::<_, String>(0))?;
        lines.collect::<rusqlite::Result<Vec<String>>>()
    });
    drop(done);
    match lines {
        Ok(lines) if lines == ["ok"] => Ok(Integrity::Sound),
        Ok(lines) => Ok(Integrity::Damaged(lines)),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Ok(Integrity::Unfinished(within.unwrap_or_default())),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Ok(Integrity::Damaged(vec![error.to_string()]))
            }
            _ => Err(error.into()),
        },
    }
}
