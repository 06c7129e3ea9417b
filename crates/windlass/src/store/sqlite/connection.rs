//! Opening connections: one writer, and a few readers.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{Error, Result};
use crate::queue::wake::lock;

/// How long a statement waits for another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// More than the number of statements of this store.
const STATEMENTS_MAX: usize = 256;
/// The number of idle readers to keep open.
const IDLE_MAX: usize = 4;

/// A synced write is on the disk, also on macOS. Sub-journals of savepoints stay in memory; a checkpoint runs every 16
/// MiB. Memory mapping is not used: with it, a failing disk raises a signal instead of an error.
const WRITER_SETTINGS: &str = "
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA checkpoint_fullfsync = ON;
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -32768;
PRAGMA wal_autocheckpoint = 4096;
PRAGMA journal_size_limit = 67108864;
";

/// `journal_size_limit`: the size to which the write-ahead log is truncated when it restarts.
pub(super) const WAL_BYTES_MAX: u64 = 67_108_864;

const READER_SETTINGS: &str = "
PRAGMA query_only = ON;
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -16384;
";

/// Opens the writer's connection.
pub(super) fn open_writer(path: &Path, create: bool) -> Result<Connection> {
    let flags = if create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
    let conn = open(path, flags)?;
    if !is_in_memory(path) {
        use_wal(&conn)?;
    }
    conn.execute_batch(WRITER_SETTINGS)?;
    Ok(conn)
}

pub(super) fn open_reader(path: &Path) -> Result<Connection> {
    let conn = open(path, OpenFlags::empty())?;
    conn.execute_batch(READER_SETTINGS)?;
    Ok(conn)
}

/// The prefix of in-memory databases, which all connections of this process can share.
const IN_MEMORY: &str = "file:/windlass-in-memory-";

/// The path of a new in-memory database. It is deleted with its last connection.
pub(super) fn in_memory() -> PathBuf {
    PathBuf::from(format!("{IN_MEMORY}{:016x}?vfs=memdb", fastrand::u64(..)))
}

pub(super) fn is_in_memory(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.starts_with(IN_MEMORY))
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let uri = if is_in_memory(path) { OpenFlags::SQLITE_OPEN_URI } else { OpenFlags::empty() };
    let flags = flags | uri | OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // Otherwise SQLite prepares a statement again if other values are bound, because they might allow another index.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(conn)
}

const USE_WAL: &str = "PRAGMA journal_mode = WAL";

/// SQLite does not wait if two processes switch a new file to WAL concurrently.
fn use_wal(conn: &Connection) -> Result<()> {
    let begun = Instant::now();
    loop {
        let switched = conn.query_row(USE_WAL, [], |row| row.get::<_, String>(0));
        match switched.map_err(Error::from) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let detail = format!("journal mode is '{mode}': the file system does not support 'wal'");
                return Err(Error::Database { detail });
            }
            Err(Error::DatabaseLocked { .. }) if begun.elapsed() < BUSY_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reader connections, opened on demand and kept for the next reader.
pub(super) struct Readers {
    path: PathBuf,
    /// `None` once closed.
    idle: Mutex<Option<Vec<Connection>>>,
}

impl Readers {
    pub fn new(path: PathBuf) -> Readers {
        Readers { path, idle: Mutex::new(Some(Vec::new())) }
    }

    /// Runs `work` on one snapshot of the database.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let idle = lock(&self.idle).as_mut().ok_or(Error::Closed)?.pop();
        let conn = match idle {
            Some(conn) => conn,
            None => open_reader(&self.path)?,
        };
        let snapshot = conn.unchecked_transaction()?;
        let result = work(&snapshot);
        snapshot.finish()?;
        // After an error the connection is closed: the next reader opens a new one.
        if result.is_ok() {
            self.keep(conn);
        }
        result
    }

    fn keep(&self, conn: Connection) {
        if let Some(idle) = lock(&self.idle).as_mut().filter(|idle| idle.len() < IDLE_MAX) {
            idle.push(conn);
        }
    }

    /// Closes the idle connections; the next reader opens a new one.
    pub fn clear(&self) {
        if let Some(idle) = lock(&self.idle).as_mut() {
            idle.clear();
        }
    }

    pub fn close(&self) {
        lock(&self.idle).take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wal_limit_matches_the_writer_settings() {
        assert!(WRITER_SETTINGS.contains(&format!("journal_size_limit = {WAL_BYTES_MAX};")));
    }

    /// The flags are set in `.cargo/config.toml`.
    #[test]
    fn connections_share_no_page_cache() {
        let conn = open_writer(&in_memory(), true).unwrap();
        let mut options = conn.prepare("PRAGMA compile_options").unwrap();
        let options =
            options.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<Vec<String>>>().unwrap();
        assert!(!options.iter().any(|option| option == "ENABLE_MEMORY_MANAGEMENT"), "{options:?}");
        assert!(options.iter().any(|option| option == "DEFAULT_MEMSTATUS=0"), "{options:?}");
    }
}
