//! The writer keeps its promises when something fails.

use super::*;
use crate::clock::Clock;
use crate::store::sqlite::connection::open_writer;

fn writer(folder: &tempfile::TempDir) -> Writer {
    let path = folder.path().join("test.db");
    let conn = open_writer(&path, true).unwrap();
    let schema = "CREATE TABLE numbers (n INTEGER PRIMARY KEY);
                  CREATE TABLE doubles (n INTEGER REFERENCES numbers DEFERRABLE INITIALLY DEFERRED);
                  PRAGMA foreign_keys = ON;";
    conn.execute_batch(schema).unwrap();
    let clock = Arc::new(MonotonicClock::new(Clock::system()));
    // Commits by other connections are detected by the watch, or not at all.
    let never = Duration::from_secs(3600);
    let settings = Settings { poll_watched: never, poll: never, ..Settings::of(&path) };
    Writer::start(conn, clock, settings, move || open_writer(&path, false)).unwrap()
}

fn insert(conn: &Connection, n: i64) -> Result<i64> {
    conn.execute("INSERT INTO numbers VALUES (?1)", [n])?;
    Ok(n)
}

async fn write<T: Send + 'static>(
    writer: &Writer,
    work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
) -> Result<T> {
    writer.write(Durability::Full, None, |conn, _| work(conn)).await
}

/// Keeps the thread busy until the gate is dropped, so that what follows comes in one batch.
async fn busy(writer: &Writer) -> Sender<()> {
    let (gate, closed) = mpsc::channel::<()>();
    let (running, runs) = oneshot::channel();
    let wait = move |_: &Connection| {
        let _ = running.send(());
        let _ = closed.recv();
        Ok(())
    };
    let call = writer.write(Durability::Full, None, |conn, _| wait(conn));
    // Polled once, the call is queued. Its result is not needed.
    tokio::select! { biased; _ = call => {}, _ = runs => {} }
    gate
}

async fn numbers(writer: &Writer) -> Vec<i64> {
    let select = |conn: &Connection| {
        let mut select = conn.prepare("SELECT n FROM numbers ORDER BY n")?;
        Ok(select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    };
    write(writer, select).await.unwrap()
}

#[tokio::test]
async fn failed_or_panicking_write_is_undone_alone() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(&folder);
    let fails = |conn: &Connection| insert(conn, 2).and(Err::<(), _>(Error::Closed));
    let panics = |conn: &Connection| -> Result<()> {
        insert(conn, 3)?;
        panic!("boo");
    };
    let gate = busy(&writer).await;
    let (one, failed, panicked, four, ()) = tokio::join!(
        write(&writer, |conn| insert(conn, 1)),
        write(&writer, fails),
        write(&writer, panics),
        write(&writer, |conn| insert(conn, 4)),
        async { drop(gate) },
    );
    assert_eq!((one, failed, four), (Ok(1), Err(Error::Closed), Ok(4)));
    assert_eq!(panicked.unwrap_err().to_string(), "database error: a write panicked: boo");
    assert_eq!(numbers(&writer).await, [1, 4]);
    assert_eq!(write(&writer, fails).await, Err(Error::Closed));
    assert!(write(&writer, panics).await.is_err());
    assert_eq!(numbers(&writer).await, [1, 4]);
}

#[tokio::test]
async fn failed_commit_fails_the_batch_and_the_next_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(&folder);
    let dangling = |conn: &Connection| Ok(conn.execute("INSERT INTO doubles VALUES (99)", [])?);
    let gate = busy(&writer).await;
    let (one, dangles, two, ()) = tokio::join!(
        write(&writer, |conn| insert(conn, 1)),
        write(&writer, dangling),
        write(&writer, |conn| insert(conn, 2)),
        async { drop(gate) },
    );
    let error = dangles.unwrap_err();
    assert!(matches!(error, Error::DataRefused { .. }), "{error}");
    assert_eq!((one, two), (Err(error.clone()), Err(error)));
    assert_eq!(write(&writer, |conn| insert(conn, 3)).await, Ok(3));
    assert_eq!(numbers(&writer).await, [3]);
}

#[tokio::test]
async fn writes_queued_before_close_run_and_later_ones_fail() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(&folder);
    let gate = busy(&writer).await;
    let (before, (), after, ()) = tokio::join!(
        write(&writer, |conn| insert(conn, 1)),
        writer.close(),
        write(&writer, |conn| insert(conn, 2)),
        async { drop(gate) },
    );
    assert_eq!((before, after), (Ok(1), Err(Error::Closed)));
    assert_eq!(write(&writer, |conn| insert(conn, 3)).await, Err(Error::Closed));
}

#[tokio::test]
async fn lock_of_another_connection_fails_writes_only_while_held() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(&folder);
    write(&writer, |conn| Ok(conn.busy_timeout(Duration::ZERO)?)).await.unwrap();
    let other = open_writer(&folder.path().join("test.db"), false).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let locked = write(&writer, |conn| insert(conn, 1)).await.unwrap_err();
    assert!(matches!(locked, Error::DatabaseLocked { .. }), "{locked}");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(write(&writer, |conn| insert(conn, 1)).await, Ok(1));
}

#[tokio::test]
async fn commit_of_another_connection_notifies_waiting_claims() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, wakes) = (writer(&folder), Arc::new(WakeRegistry::default()));
    let registration = wakes.register("any", Box::new(|_| true));
    registration.wait(0, false);
    let (alarm, _) = wakes.watch("any").expect("a claim is waiting");
    writer.watch(wakes.clone());
    alarm.notified().await;
    assert!(wakes.begin_poll("any").is_some());
    let other = open_writer(&folder.path().join("test.db"), false).unwrap();
    insert(&other, 1).unwrap();
    tokio::time::timeout(Duration::from_secs(60), alarm.notified()).await.unwrap();
}

#[tokio::test]
async fn dropping_the_writer_ends_its_thread_while_the_log_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, wakes) = (writer(&folder), Arc::new(WakeRegistry::default()));
    writer.watch(wakes.clone());
    write(&writer, |conn| insert(conn, 1)).await.unwrap();
    assert_eq!(Arc::strong_count(&wakes), 2);
    drop(writer);
    let ended = async {
        while Arc::strong_count(&wakes) > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
}
