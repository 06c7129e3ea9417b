//! Commits by other connections are detected, with and without the file watch.

use std::process::Command;
use std::sync::mpsc::{self, Receiver};

use super::*;
use crate::queue::wake::Registration;
use crate::store::sqlite::connection::{in_memory, open_writer};

/// Longer than any test waits: what is detected was not detected by a poll.
const NEVER: Duration = Duration::from_secs(3600);
/// A failure if it takes longer. Nothing else depends on it.
const DETECTED_WITHIN: Duration = Duration::from_secs(60);

const DATABASE: &str = "WINDLASS_COMMIT_TO";

/// A database with a watch on it, as the writer thread has it.
struct Bed {
    folder: tempfile::TempDir,
    conn: Connection,
    commits: CommitWatch,
    wakes: Arc<WakeRegistry>,
    /// Keeps a claim waiting, for whom the commits are detected.
    _registration: Registration,
    reports: Receiver<Unchecked>,
}

impl Bed {
    fn new(settings: impl FnOnce(&Path) -> Settings) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("test.db");
        let conn = open_writer(&database, true).unwrap();
        conn.execute_batch("CREATE TABLE numbers (n INTEGER PRIMARY KEY)").unwrap();
        let wakes = Arc::new(WakeRegistry::default());
        let registration = wakes.register("any", Box::new(|_| true));
        registration.wait(0, false);
        let mut commits = CommitWatch::new(settings(&database));
        let (report, reports) = mpsc::channel();
        commits.start(wakes.clone(), move |unchecked| report.send(unchecked).unwrap_or_default());
        let mut bed = Bed { folder, conn, commits, wakes, _registration: registration, reports };
        bed.commits.check_if_due(Some(&bed.conn));
        assert!(bed.is_notified(), "the first check notifies");
        bed
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("test.db")
    }

    fn report(&self) -> Unchecked {
        self.reports.recv_timeout(DETECTED_WITHIN).expect("a write is reported")
    }

    /// Whether there was a notification since the last call.
    fn is_notified(&self) -> bool {
        let (_, look_by) = self.wakes.watch("any").expect("a claim is waiting");
        self.wakes.begin_poll("any");
        look_by.is_some()
    }

    /// Does what the writer thread does until there is a notification.
    fn wait_for_notification(&mut self) {
        let begun = Instant::now();
        while !self.is_notified() {
            assert!(begun.elapsed() < DETECTED_WITHIN, "the commit is not detected");
            let wait = self.commits.next_check_in().expect("somebody is notified").min(Duration::from_secs(1));
            if let Ok(unchecked) = self.reports.recv_timeout(wait) {
                self.commits.wal_written(unchecked);
            }
            self.commits.check_if_due(Some(&self.conn));
        }
    }
}

fn watch_only(database: &Path) -> Settings {
    Settings { poll_watched: NEVER, poll: NEVER, ..Settings::of(database) }
}

fn poll_only(database: &Path) -> Settings {
    Settings { watched: None, poll_watched: NEVER, ..Settings::of(database) }
}

fn insert(conn: &Connection) {
    conn.execute_batch("INSERT INTO numbers DEFAULT VALUES").unwrap();
}

/// Not a test of its own: the body of the process that commits.
#[test]
fn committing_process() {
    if let Some(database) = std::env::var_os(DATABASE) {
        insert(&open_writer(Path::new(&database), false).unwrap());
    }
}

fn commit_in_another_process(database: &Path) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "store::sqlite::commit_watch::tests::committing_process"]);
    assert!(command.env(DATABASE, database).output().unwrap().status.success());
}

#[test]
fn watch_detects_commit_of_another_connection() {
    let mut bed = Bed::new(watch_only);
    let other = open_writer(&bed.database(), false).unwrap();
    for _ in 0..3 {
        insert(&other);
        bed.wait_for_notification();
    }
}

#[test]
fn watch_detects_commit_of_another_process() {
    let mut bed = Bed::new(watch_only);
    for _ in 0..2 {
        commit_in_another_process(&bed.database());
        bed.wait_for_notification();
    }
}

#[test]
fn watch_outlasts_checkpoints_and_truncation() {
    let mut bed = Bed::new(watch_only);
    let other = open_writer(&bed.database(), false).unwrap();
    for _ in 0..2 {
        insert(&other);
        bed.wait_for_notification();
        other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    }
    drop(other);
    commit_in_another_process(&bed.database());
    bed.wait_for_notification();
}

#[test]
fn watch_follows_a_new_connection_to_a_new_log() {
    let mut bed = Bed::new(watch_only);
    let database = bed.database();
    // The last connection to be closed deletes the log.
    bed.conn = Connection::open_in_memory().unwrap();
    assert!(!bed.folder.path().join("test.db-wal").exists());
    bed.conn = open_writer(&database, false).unwrap();
    let (report, reports) = mpsc::channel();
    bed.commits.restart(move |unchecked| report.send(unchecked).unwrap_or_default());
    bed.reports = reports;
    bed.wait_for_notification();
    commit_in_another_process(&database);
    bed.wait_for_notification();
}

#[cfg(unix)]
#[test]
fn watch_finds_the_log_behind_a_symbolic_link() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link.db");
    let mut bed = Bed::new(|database| {
        std::os::unix::fs::symlink(database, &link).unwrap();
        watch_only(&link)
    });
    commit_in_another_process(&link);
    bed.wait_for_notification();
}

#[test]
fn poll_detects_commits_without_a_watch() {
    let mut bed = Bed::new(poll_only);
    assert!(bed.commits.wal_watch.is_none());
    commit_in_another_process(&bed.database());
    bed.wait_for_notification();
}

#[test]
fn poll_replaces_a_watch_that_cannot_be_made() {
    let missing =
        |database: &Path| Settings { watched: Some(database.with_file_name("missing")), ..poll_only(database) };
    let mut bed = Bed::new(missing);
    assert!(bed.commits.wal_watch.is_none());
    commit_in_another_process(&bed.database());
    bed.wait_for_notification();
}

#[test]
fn own_commits_do_not_notify() {
    let mut bed = Bed::new(watch_only);
    insert(&bed.conn);
    let unchecked = bed.report();
    bed.commits.wal_written(unchecked);
    bed.commits.check(Some(&bed.conn));
    assert!(!bed.is_notified());
}

#[test]
fn checks_are_rarer_after_own_commits() {
    let mut bed = Bed::new(watch_only);
    for (own, gap) in [(true, COMMIT_GAP), (false, CHECK_GAP)] {
        if own {
            bed.commits.committed();
        }
        let begun = Instant::now();
        bed.commits.check(Some(&bed.conn));
        let (earliest, latest) = (begun + gap, Instant::now() + gap);
        assert!((earliest..=latest).contains(&bed.commits.not_before));
    }
}

#[test]
fn checks_after_a_report_get_rarer() {
    let mut bed = Bed::new(Settings::of);
    insert(&bed.conn);
    let unchecked = bed.report();
    bed.commits.wal_written(unchecked);
    let mut intervals = Vec::new();
    for _ in 0..10 {
        bed.commits.check(Some(&bed.conn));
        intervals.push(bed.commits.interval.as_millis());
    }
    assert_eq!(intervals, [2, 4, 8, 16, 32, 64, 128, 250, 250, 250]);
}

#[test]
fn checks_get_rarer_when_another_process_commits_all_the_time() {
    let mut bed = Bed::new(watch_only);
    let other = open_writer(&bed.database(), false).unwrap();
    // The first check, which always notifies, counts.
    for streak in 2..=STREAK_MAX + 1 {
        insert(&other);
        let begun = Instant::now();
        bed.commits.check(Some(&bed.conn));
        let gap = if streak < STREAK_MAX { COMMIT_GAP } else { bed.commits.settings.poll };
        assert_eq!(bed.commits.streak, streak);
        assert!(bed.commits.not_before >= begun + gap);
    }
    bed.commits.check(Some(&bed.conn));
    assert_eq!(bed.commits.streak, 0);
}

#[test]
fn database_in_memory_is_not_watched() {
    assert!(Settings::of(&in_memory()).watched.is_none());
}

#[test]
fn dropping_the_watch_ends_its_thread() {
    let bed = Bed::new(watch_only);
    let alive = Arc::new(());
    let (held, ended) = (alive.clone(), Arc::downgrade(&alive));
    let watch = WalWatch::start(&bed.database(), move |_| assert_eq!(*held, ())).unwrap();
    drop(alive);
    assert_eq!(ended.strong_count(), 1);
    drop(watch);
    let begun = Instant::now();
    while ended.strong_count() > 0 {
        assert!(begun.elapsed() < DETECTED_WITHIN, "the thread is still there");
        std::thread::yield_now();
    }
}
