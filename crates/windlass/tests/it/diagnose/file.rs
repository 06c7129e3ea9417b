//! Diagnosis of SQLite files.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};

use windlass::{NewEvent, Report};
use windlass_testkit::Kind;

use super::*;
use crate::bed::{self, Bed};
use crate::support::{claim_all, finish, publish, publish_many};

/// Generates tests that run on SQLite only.
macro_rules! on_sqlite {
    ($(async fn $name:ident($bed:ident) $body:block)*) => {
        $(#[test] fn $name() {
            async fn test($bed: &Bed) $body
            bed::run(Kind::Sqlite, test)
        })*
    };
}

async fn publish_large(queue: &Queue, mebibytes: usize) {
    let payload = "x".repeat((1 << 20) - 100);
    for _ in 0..mebibytes {
        queue.publish(NewEvent::new("large").payload(&payload).unwrap()).await.unwrap();
    }
}

on_sqlite! {
    async fn large_wal_and_free_pages_are_found(bed) {
        publish(&bed.queue, "t").await;
        assert_eq!(level(&bed.queue, "wal").await, FindingLevel::Ok);
        let reader = rusqlite::Connection::open(bed.database.file()).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
        publish_large(&bed.queue, 70).await;
        let found = finding(&bed.queue, "wal").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert!(found.summary.ends_with("it should stay below 64 MiB"), "{found:?}");
        reader.execute_batch("COMMIT").unwrap();
        // The first write checkpoints the WAL, the next one restarts it.
        publish_many(&bed.queue, "t", 1).await;
        publish_many(&bed.queue, "t", 1).await;
        assert_eq!(level(&bed.queue, "wal").await, FindingLevel::Ok);

        // Most pages are free after the events are deleted. The command in the advice shrinks the file.
        assert_eq!(level(&bed.queue, "free_pages").await, FindingLevel::Ok);
        for delivery in claim_all(&bed.queue).await {
            finish(&bed.queue, &delivery, Report::done()).await;
        }
        bed.database.execute("DELETE FROM events").await;
        let found = finding(&bed.queue, "free_pages").await;
        assert_eq!(found.level, FindingLevel::Notice);
        let advice = format!("sqlite3 '{}' VACUUM", bed.database.file().display());
        assert!(found.advice.unwrap().ends_with(&advice));
        bed.database.execute("VACUUM").await;
        assert_eq!(level(&bed.queue, "free_pages").await, FindingLevel::Ok);
    }

    async fn damaged_file_is_found(bed) {
        publish_many(&bed.queue, "t", 2_000).await;
        assert_eq!(level(&bed.queue, "integrity").await, FindingLevel::Ok);
        assert_eq!(bed.queue.check_integrity().await.unwrap().unwrap().level, FindingLevel::Ok);
        bed.queue.close().await;

        let copy = bed.database.folder.path().join("copy.db");
        std::fs::copy(bed.database.file(), &copy).unwrap();
        let length = std::fs::metadata(&copy).unwrap().len();
        let mut file = OpenOptions::new().write(true).open(&copy).unwrap();
        // Overwrites pages in the middle, so that the schema at the beginning can still be read.
        file.seek(SeekFrom::Start(length / 2 / 4096 * 4096)).unwrap();
        file.write_all(&[0xA5; 8 * 4096]).unwrap();
        file.sync_all().unwrap();
        let damaged = Queue::open(&format!("sqlite://{}", copy.display())).await.unwrap();
        for found in [finding(&damaged, "integrity").await, damaged.check_integrity().await.unwrap().unwrap()] {
            assert_eq!((&*found.check, found.level), ("integrity", FindingLevel::Problem));
            assert!(found.summary.starts_with("the file is damaged: "), "{found:?}");
            assert!(found.advice.unwrap().contains(".recover"));
        }
    }

    async fn locked_file_is_found(bed) {
        assert_eq!(level(&bed.queue, "writable").await, FindingLevel::Ok);
        let other = rusqlite::Connection::open(bed.database.file()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let found = finding(&bed.queue, "writable").await;
        assert_eq!(found.level, FindingLevel::Problem);
        assert!(found.summary.starts_with("another process holds the write lock"), "{found:?}");
        other.execute_batch("ROLLBACK").unwrap();
        assert_eq!(level(&bed.queue, "writable").await, FindingLevel::Ok);
    }

    async fn processes_with_open_file_are_reported(bed) {
        let found = finding(&bed.queue, "processes").await;
        assert_eq!(found.level, FindingLevel::Ok);
        let known = ["only this process has the file open", "not known on this system"];
        assert!(known.contains(&&*found.summary), "{found:?}");
    }
}

#[tokio::test]
async fn in_memory_database_is_a_durability_notice() {
    let queue = Queue::open("sqlite::memory:").await.unwrap();
    let findings = queue.diagnose().await.unwrap();
    let problems: Vec<_> = findings.iter().filter(|finding| finding.level > FindingLevel::Ok).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!((&*problems[0].check, problems[0].level), ("durability", FindingLevel::Notice));
}

#[tokio::test]
async fn unavailable_database_is_reported_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let open = async |name: &str| {
        let url = format!("sqlite://{}", path(name).display());
        let error = Queue::options(&url).migrate(false).open().await.map(drop).unwrap_err();
        Finding::database_unavailable(&url, &error)
    };
    let missing = open("missing.db").await;
    assert!(missing.summary.starts_with("there is no file '"), "{missing:?}");
    assert!(!path("missing.db").exists());
    std::fs::write(path("text.db"), "This is a letter, and no database at all.\n".repeat(100)).unwrap();
    let text = open("text.db").await;
    assert!(text.summary.contains("not a database"), "{text:?}");
    assert!(text.advice.unwrap().contains("is not an SQLite file"));
    std::fs::write(path("empty.db"), "").unwrap();
    let empty = open("empty.db").await;
    assert_eq!(empty.summary, "the database has no windlass schema");
    rusqlite::Connection::open(path("old.db")).unwrap().execute_batch(OLD).unwrap();
    let old = open("old.db").await;
    assert!(old.summary.contains("schema version 1,"), "{old:?}");
    assert!(old.advice.unwrap().contains("windlass migrate up"));
}

const OLD: &str = "
CREATE TABLE windlass_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL);
INSERT INTO windlass_migrations VALUES (1, 'engine', 0);";
