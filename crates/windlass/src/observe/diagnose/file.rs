//! What to think of an SQLite file.

use std::time::Duration;

use super::say::{count, number, size};
use super::{Assessment, FindingLevel};

/// A write-ahead log so many times its limit fills the disk.
const WAL_BAD_TIMES: u64 = 16;
const SPACE_BAD: u64 = 256 << 20;
const SPACE_MIN: u64 = 1 << 30;
/// Fewer free pages are not worth a word.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// The write-ahead log, and what it is cut back to when nobody reads an old state.
pub(crate) fn wal(bytes: u64, limit: u64) -> Assessment {
    let summary = format!("the write-ahead log takes {}; it should stay below {}", size(bytes), size(limit));
    if bytes <= limit {
        return Assessment::ok(summary);
    }
    let level = if bytes > WAL_BAD_TIMES * limit { FindingLevel::Problem } else { FindingLevel::Warning };
    let advice = "somebody reads an old state, so that it cannot be copied back: end the program that keeps a read \
                  transaction open (a backup, a database browser; `processes` names who has the file open). It shrinks \
                  with the next writes";
    Assessment::new(level, summary, advice)
}

/// What reading the file through came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Integrity {
    Sound,
    /// What is wrong, line by line.
    Damaged(Vec<String>),
    /// Nothing wrong until time was up.
    Unfinished(Duration),
}

pub(crate) fn integrity(found: &Integrity, bytes: u64) -> Assessment {
    match found {
        Integrity::Sound => Assessment::ok(format!("all of it was read ({}), and nothing is damaged", size(bytes))),
        Integrity::Unfinished(after) => Assessment {
            level: FindingLevel::Ok,
            summary: format!("no damage in what could be read of {} within {} ms", size(bytes), after.as_millis()),
            advice: Some("`windlass doctor --full` reads all of it".to_owned()),
        },
        Integrity::Damaged(lines) => {
            let first = lines.first().map_or("", String::as_str).replace('\n', " ");
            let more = if lines.len() > 1 { format!(" and {} more", lines.len() - 1) } else { String::new() };
            Assessment::new(
                FindingLevel::Problem,
                format!("the file is damaged: {first}{more}"),
                "stop everything that uses it, keep a copy, and restore a backup; without one, \
                 `sqlite3 FILE .recover | sqlite3 NEW` saves what can be read. Then find out what damaged it: the disk, \
                 a network file system, or a copy made while it was in use",
            )
        }
    }
}

/// What the connection that writes goes by.
pub(crate) struct Settings {
    pub journal_mode: String,
    /// 2 is FULL.
    pub synchronous: i64,
    pub in_memory: bool,
}

pub(crate) fn settings(settings: &Settings) -> Assessment {
    let Settings { journal_mode, synchronous, in_memory } = settings;
    if *in_memory {
        return Assessment::new(
            FindingLevel::Notice,
            "the database is in memory: it is gone with this process",
            "give a file, as in sqlite://windlass.db, for anything but tests",
        );
    }
    if journal_mode == "wal" && *synchronous >= 2 {
        return Assessment::ok("what is acknowledged is synced to disk (journal_mode wal, synchronous full)");
    }
    Assessment::new(
        FindingLevel::Problem,
        format!(
            "journal_mode is {journal_mode} and synchronous {synchronous}, not wal and 2: a power cut may lose events"
        ),
        "start windlass again: it sets both when it opens the file; if that does not last, the file system does not \
         support it",
    )
}

/// Whether the writer got to write.
pub(crate) fn writable(after: Duration) -> Assessment {
    Assessment::ok(format!("the write lock was free within {} ms", after.as_millis().max(1)))
}

pub(crate) fn locked(detail: &str) -> Assessment {
    Assessment::new(
        FindingLevel::Problem,
        format!("another process holds the write lock: {detail}"),
        "end the transaction that keeps it, or the program (`processes` names who has the file open): until then \
         nothing can be published or finished",
    )
}

pub(crate) fn read_only(detail: &str) -> Assessment {
    Assessment::new(
        FindingLevel::Problem,
        format!("the file cannot be written to: {detail}"),
        "give this process's user the right to write the file and its folder (SQLite makes files beside it), and see \
         that the file system is not mounted read-only",
    )
}

/// File systems on which locks or shared memory between machines cannot be relied on.
const NETWORKED: [&str; 16] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ceph",
    "fuse.ceph",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.rclone",
    "lustre",
    "beegfs",
    "ocfs2",
];
/// Those between a machine and its guests.
const SHARED: [&str; 3] = ["9p", "virtiofs", "vboxsf"];

/// The kind of file system that the file is on; `None`: not known.
pub(crate) fn file_system(kind: Option<&str>) -> Assessment {
    let advice = "put the file on a local disk; for several machines use PostgreSQL";
    match kind {
        None => Assessment::ok("not known on this system"),
        Some(kind) if NETWORKED.contains(&kind) => {
            let summary = format!("the file is on a network file system ({kind}): SQLite's locks do not hold there");
            Assessment::new(FindingLevel::Problem, summary, advice)
        }
        Some(kind) if SHARED.contains(&kind) => {
            let summary = format!("the file is on a folder shared with another system ({kind})");
            Assessment::new(FindingLevel::Warning, summary, advice)
        }
        Some(kind) => Assessment::ok(format!("local ({kind})")),
    }
}

/// The kind of file system that a path is on, from `/proc/self/mountinfo`.
pub(crate) fn kind_of<'a>(mounts: &'a str, path: &str) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let point = line.split(' ').nth(4)?.replace("\\040", " ");
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        let rest = path.strip_prefix(point.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then_some((point.len(), kind))
    };
    // Of two on one place the later one is seen.
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

/// Room on the disk; `None`: not known.
pub(crate) fn space(free: Option<u64>, file_bytes: u64) -> Assessment {
    let Some(free) = free else { return Assessment::ok("not known on this system") };
    let summary = format!("{} free beside a file of {}", size(free), size(file_bytes));
    let level = match free {
        free if free < SPACE_BAD => FindingLevel::Problem,
        free if free < SPACE_MIN.max(file_bytes / 10) => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice = "make room, or keep history for less long (docs/retention.md). A full disk refuses everything that is \
                  published";
    Assessment::new(level, summary, advice)
}

/// Pages of the file that hold nothing.
pub(crate) struct Pages {
    pub free: u64,
    pub all: u64,
    pub bytes_each: u64,
    /// The statement that gives them back.
    pub remedy: String,
}

pub(crate) fn pages(pages: &Pages) -> Assessment {
    let Pages { free, all, bytes_each, remedy } = pages;
    let bytes = free * bytes_each;
    let summary = format!("{} of {} are free for what comes ({})", number(*free), count(*all, "page"), size(bytes));
    if bytes < FREE_BYTES_MIN || free * 2 < *all {
        return Assessment::ok(summary);
    }
    let advice = format!("to give them back to the disk, stop what uses the file and run: {remedy}");
    Assessment::new(FindingLevel::Notice, summary, advice)
}

/// The processes that have the file open, as far as the system tells; `None`: not known.
pub(crate) fn processes(holders: Option<&[u32]>, own: u32) -> Assessment {
    match holders {
        None => Assessment::ok("not known on this system"),
        Some(holders) => {
            let others: Vec<String> = holders.iter().filter(|pid| **pid != own).map(u32::to_string).collect();
            match others.is_empty() {
                true => Assessment::ok("this process alone has the file open"),
                false => {
                    let end = if others.len() == 1 { "" } else { "es" };
                    Assessment::ok(format!("also open in {} process{end}: pid {}", others.len(), others.join(", ")))
                }
            }
        }
    }
}

/// Who has a lock on the file, from `/proc/locks`. The device and the number tell which file it is.
pub(crate) fn holders(locks: &str, device: (u64, u64), inode: u64) -> Vec<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "->").collect();
        (words.get(5) == Some(&&*place)).then(|| words.get(4)?.parse().ok()).flatten()
    };
    let mut pids: Vec<u32> = locks.lines().filter_map(holder).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_log_may_be_as_large_as_its_limit() {
        for (bytes, level) in [
            (0, FindingLevel::Ok),
            (64, FindingLevel::Ok),
            (65, FindingLevel::Warning),
            (1_024, FindingLevel::Warning),
            (1_025, FindingLevel::Problem),
        ] {
            assert_eq!(wal(bytes * MIB, 64 * MIB).level, level, "{bytes}");
        }
        assert_eq!(wal(96 * MIB, 64 * MIB).summary, "the write-ahead log takes 96 MiB; it should stay below 64 MiB");
    }

    #[test]
    fn only_damage_is_a_problem() {
        assert_eq!(integrity(&Integrity::Sound, MIB).level, FindingLevel::Ok);
        let unfinished = integrity(&Integrity::Unfinished(Duration::from_millis(200)), 3 << 30);
        assert_eq!(unfinished.summary, "no damage in what could be read of 3.0 GiB within 200 ms");
        assert_eq!((unfinished.level, unfinished.advice.is_some()), (FindingLevel::Ok, true));
        let damaged = Integrity::Damaged(vec!["*** in database main ***\nTree 9 page 7".into(), "more".into()]);
        let found = integrity(&damaged, MIB);
        assert_eq!(found.summary, "the file is damaged: *** in database main *** Tree 9 page 7 and 1 more");
        assert_eq!(found.level, FindingLevel::Problem);
    }

    #[test]
    fn only_synced_writes_are_good_enough() {
        let of = |mode: &str, synchronous, in_memory| {
            settings(&Settings { journal_mode: mode.to_owned(), synchronous, in_memory }).level
        };
        assert_eq!((of("wal", 2, false), of("wal", 3, false)), (FindingLevel::Ok, FindingLevel::Ok));
        assert_eq!((of("wal", 1, false), of("delete", 2, false)), (FindingLevel::Problem, FindingLevel::Problem));
        assert_eq!(of("memory", 2, true), FindingLevel::Notice);
    }

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /srv rw shared:2 master:1 - xfs /dev/sdb rw
23 22 0:6 / /srv/share rw - nfs4 host:/share rw
24 22 0:7 / /srv/my\\040disk rw - cifs //host/disk rw
25 22 0:8 / /srv/share rw - cifs //host/over rw
broken";

    #[test]
    fn the_file_system_is_that_of_the_innermost_mount() {
        let table = [
            ("/var/windlass.db", Some("ext4")),
            ("/srv/windlass.db", Some("xfs")),
            ("/srvx/windlass.db", Some("ext4")),
            ("/srv/share/a/windlass.db", Some("cifs")),
            ("/srv/shared/windlass.db", Some("xfs")),
            ("/srv/my disk/windlass.db", Some("cifs")),
        ];
        for (path, kind) in table {
            assert_eq!(kind_of(MOUNTS, path), kind, "{path}");
        }
        assert_eq!(kind_of("", "/a"), None);
    }

    #[test]
    fn a_network_file_system_is_a_problem() {
        let table = [
            (None, FindingLevel::Ok),
            (Some("ext4"), FindingLevel::Ok),
            (Some("9p"), FindingLevel::Warning),
            (Some("nfs4"), FindingLevel::Problem),
            (Some("fuse.sshfs"), FindingLevel::Problem),
        ];
        for (kind, level) in table {
            assert_eq!(file_system(kind).level, level, "{kind:?}");
        }
    }

    #[test]
    fn space_is_judged_by_the_size_of_the_file() {
        let table = [
            (None, 0, FindingLevel::Ok),
            (Some(2_048 * MIB), 1_024 * MIB, FindingLevel::Ok),
            (Some(2_048 * MIB), 40_000 * MIB, FindingLevel::Warning),
            (Some(1_023 * MIB), MIB, FindingLevel::Warning),
            (Some(255 * MIB), MIB, FindingLevel::Problem),
        ];
        for (free, bytes, level) in table {
            assert_eq!(space(free, bytes).level, level, "{free:?} {bytes}");
        }
    }

    #[test]
    fn free_pages_are_told_when_they_are_most_of_a_large_file() {
        let of = |free, all| pages(&Pages { free, all, bytes_each: 4096, remedy: "VACUUM".to_owned() }).level;
        assert_eq!(
            (of(0, 0), of(16_383, 16_400), of(16_384, 32_769)),
            (FindingLevel::Ok, FindingLevel::Ok, FindingLevel::Ok)
        );
        assert_eq!(of(16_384, 32_768), FindingLevel::Notice);
    }

    const LOCKS: &str = "\
1: POSIX  ADVISORY  READ 101 08:01:77 128 128
1: -> POSIX  ADVISORY  WRITE 102 08:01:77 120 120
2: POSIX  ADVISORY  READ 101 08:01:77 124 124
3: POSIX  ADVISORY  READ 103 08:02:77 128 128
4: FLOCK  ADVISORY  WRITE 104 08:01:78 0 EOF
odd";

    #[test]
    fn processes_are_known_by_their_locks() {
        assert_eq!(holders(LOCKS, (8, 1), 77), [101, 102]);
        assert_eq!(holders(LOCKS, (8, 1), 79), [0; 0]);
        assert_eq!(processes(None, 1).summary, "not known on this system");
        assert_eq!(processes(Some(&[7]), 7).summary, "this process alone has the file open");
        assert_eq!(processes(Some(&[7, 8, 9]), 7).summary, "also open in 2 processes: pid 8, 9");
        assert_eq!(processes(Some(&[7, 8]), 7).summary, "also open in 1 process: pid 8");
    }
}
