//! Connections: one that writes, and a few that read.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{Error, Result};
use crate::queue::wake::lock;

/// How long a statement waits for another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// More than there are statements in this store.
const STATEMENTS_MAX: usize = 256;
/// Reading connections that are kept open while nobody reads.
const IDLE_MAX: usize = 4;

/// Synced means on the disk, also on macOS. Sub-journals of savepoints stay in memory; the write-ahead
/// log is copied back every 16 MiB. There is no mmap: a failing disk shall be an error, not a signal.
const WRITER_SETTINGS: &str = "
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA checkpoint_fullfsync = ON;
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -32768;
PRAGMA wal_autocheckpoint = 4096;
PRAGMA journal_size_limit = 67108864;
";

/// What the write-ahead log is cut back to when it starts over: `journal_size_limit`.
pub(super) const WAL_BYTES_MAX: u64 = 67_108_864;

const READER_SETTINGS: &str = "
PRAGMA query_only = ON;
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -16384;
";

/// The connection that writes.
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

/// Databases in memory, which all connections of this process can share.
const IN_MEMORY: &str = "file:/windlass-in-memory-";

/// The place of a new database in memory. It is gone with its last connection.
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
    // Else a claim is planned anew whenever it is bound to other values, in case these prove that an index will do.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(conn)
}

const USE_WAL: &str = "PRAGMA journal_mode = WAL";

/// SQLite does not wait by itself where two processes switch a new file over at once.
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

/// Reading connections, opened on demand and kept for the next reader.
pub(super) struct Readers {
    path: PathBuf,
    /// `None` once closed.
    idle: Mutex<Option<Vec<Connection>>>,
}

impl Readers {
    pub fn new(path: PathBuf) -> Readers {
        Readers { path, idle: Mutex::new(Some(Vec::new())) }
    }

    /// Runs `work` on one state of the database, however many statements it makes.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let idle = lock(&self.idle).as_mut().ok_or(Error::Closed)?.pop();
        let conn = match idle {
            Some(conn) => conn,
            None => open_reader(&self.path)?,
        };
        let snapshot = conn.unchecked_transaction()?;
        let result = work(&snapshot);
        snapshot.finish()?;
        // One that failed is not used again: the next reader starts afresh.
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

    /// Forgets the connections that are open; the next reader opens a new one.
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
    fn the_limit_of_the_log_is_the_one_that_is_set() {
        assert!(WRITER_SETTINGS.contains(&format!("journal_size_limit = {WAL_BYTES_MAX};")));
    }

    /// As `.cargo/config.toml` has it.
    #[test]
    fn here_connections_share_no_page_cache() {
        let conn = open_writer(&in_memory(), true).unwrap();
        let mut options = conn.prepare("PRAGMA compile_options").unwrap();
        let options =
            options.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<Vec<String>>>().unwrap();
        assert!(!options.iter().any(|option| option == "ENABLE_MEMORY_MANAGEMENT"), "{options:?}");
        assert!(options.iter().any(|option| option == "DEFAULT_MEMSTATUS=0"), "{options:?}");
    }
}
