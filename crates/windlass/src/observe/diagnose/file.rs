//! Assesses an SQLite file: write-ahead log, integrity, settings, file system, disk space and open processes.

use std::time::Duration;

use super::format::{count, number, size};
use super::{Assessment, FindingLevel};

/// Size of the write-ahead log, as a multiple of its limit, that threatens to fill the disk.
const WAL_PROBLEM_RATIO: u64 = 16;
const DISK_FREE_PROBLEM: u64 = 256 << 20;
const DISK_FREE_WARNING: u64 = 1 << 30;
/// Less free space in the file is not reported.
const FREE_PAGES_BYTES_MIN: u64 = 64 << 20;

/// The size of the write-ahead log, and the size to which SQLite truncates it when no reader needs an old snapshot.
pub(crate) fn wal(bytes: u64, limit_bytes: u64) -> Assessment {
    let summary = format!("the write-ahead log takes {}; it should stay below {}", size(bytes), size(limit_bytes));
    if bytes <= limit_bytes {
        return Assessment::ok(summary);
    }
    let level = if bytes > WAL_PROBLEM_RATIO * limit_bytes { FindingLevel::Problem } else { FindingLevel::Warning };
    let advice = "an open read transaction prevents a checkpoint: end the program that keeps it open (a backup, a database \
                  browser; `processes` lists the processes that have the file open). The log shrinks with the next writes";
    Assessment::new(level, summary, advice)
}

/// The result of an integrity check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Integrity {
    Sound,
    /// The damage, line by line.
    Damaged(Vec<String>),
    /// No damage found before the time limit.
    Unfinished(Duration),
}

pub(crate) fn integrity(result: &Integrity, bytes: u64) -> Assessment {
    match result {
        Integrity::Sound => Assessment::ok(format!("the whole file was read ({}) and is undamaged", size(bytes))),
        Integrity::Unfinished(after) => Assessment {
            level: FindingLevel::Ok,
            summary: format!("no damage in the part of {} that was read within {} ms", size(bytes), after.as_millis()),
            advice: Some("`windlass doctor --full` reads the whole file".to_owned()),
        },
        Integrity::Damaged(lines) => {
            let first = lines.first().map_or("", String::as_str).replace('\n', " ");
            let more = if lines.len() > 1 { format!(" and {} more", lines.len() - 1) } else { String::new() };
            Assessment::new(
                FindingLevel::Problem,
                format!("the file is damaged: {first}{more}"),
                "stop all programs that use it, keep a copy, and restore a backup; without one, \
                 `sqlite3 FILE .recover | sqlite3 NEW` recovers the readable part. Then find the cause: the disk, a \
                 network file system, or a copy made while it was in use",
            )
        }
    }
}

/// Settings of the writer's connection.
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
            "the database is in memory: it is lost when this process ends",
            "for anything but tests use a file, as in sqlite://windlass.db",
        );
    }
    if journal_mode == "wal" && *synchronous >= 2 {
        return Assessment::ok("commits are synced to disk (journal_mode wal, synchronous full)");
    }
    Assessment::new(
        FindingLevel::Problem,
        format!(
            "journal_mode is {journal_mode} and synchronous {synchronous}, not wal and 2: a power cut may lose events"
        ),
        "restart windlass: it sets both when it opens the file; if they do not stay set, the file system does not \
         support them",
    )
}

/// How long the writer waited for the write lock.
pub(crate) fn writable(after: Duration) -> Assessment {
    Assessment::ok(format!("the write lock was free within {} ms", after.as_millis().max(1)))
}

pub(crate) fn locked(detail: &str) -> Assessment {
    Assessment::new(
        FindingLevel::Problem,
        format!("another process holds the write lock: {detail}"),
        "end the transaction that holds it, or its program (`processes` lists the processes that have the file open): \
         until then nothing can be published or finished",
    )
}

pub(crate) fn read_only(detail: &str) -> Assessment {
    Assessment::new(
        FindingLevel::Problem,
        format!("the file cannot be written to: {detail}"),
        "let this process's user write the file and its folder (SQLite creates files next to it), and check that the \
         file system is not mounted read-only",
    )
}

/// Network file systems, on which locks and shared memory are unreliable across machines.
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
/// File systems shared between a host and its virtual machines.
const SHARED: [&str; 3] = ["9p", "virtiofs", "vboxsf"];

/// `kind` is the type of the file system that the file is on; `None` if unknown.
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

/// The type of the file system that a path is on, from `/proc/self/mountinfo`.
pub(crate) fn file_system_kind<'a>(mounts: &'a str, path: &str) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let point = line.split(' ').nth(4)?.replace("\\040", " ");
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        let rest = path.strip_prefix(point.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then_some((point.len(), kind))
    };
    // If two are mounted at the same point, the later one hides the earlier one.
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

/// `free` is the free disk space; `None` if unknown.
pub(crate) fn disk_space(free: Option<u64>, file_bytes: u64) -> Assessment {
    let Some(free) = free else { return Assessment::ok("not known on this system") };
    let summary = format!("{} free; the file takes {}", size(free), size(file_bytes));
    let level = match free {
        free if free < DISK_FREE_PROBLEM => FindingLevel::Problem,
        free if free < DISK_FREE_WARNING.max(file_bytes / 10) => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice =
        "free disk space, or shorten the retention (docs/retention.md). Nothing can be published once the disk is full";
    Assessment::new(level, summary, advice)
}

/// Unused pages of the file.
pub(crate) struct Pages {
    pub free: u64,
    pub all: u64,
    pub bytes_each: u64,
    /// The command that returns them to the file system.
    pub remedy: String,
}

pub(crate) fn free_pages(pages: &Pages) -> Assessment {
    let Pages { free, all, bytes_each, remedy } = pages;
    let bytes = free * bytes_each;
    let summary = format!("{} of {} are free ({})", number(*free), count(*all, "page"), size(bytes));
    if bytes < FREE_PAGES_BYTES_MIN || free * 2 < *all {
        return Assessment::ok(summary);
    }
    let advice = format!("to return them to the disk, stop all programs that use the file and run: {remedy}");
    Assessment::new(FindingLevel::Notice, summary, advice)
}

/// The processes that have the file open; `None` if unknown.
pub(crate) fn processes(holders: Option<&[u32]>, own: u32) -> Assessment {
    match holders {
        None => Assessment::ok("not known on this system"),
        Some(holders) => {
            let others: Vec<String> = holders.iter().filter(|pid| **pid != own).map(u32::to_string).collect();
            match others.is_empty() {
                true => Assessment::ok("only this process has the file open"),
                false => {
                    let end = if others.len() == 1 { "" } else { "es" };
                    Assessment::ok(format!("also open in {} process{end}: pid {}", others.len(), others.join(", ")))
                }
            }
        }
    }
}

/// The processes that hold a lock on the file, from `/proc/locks`. Device and inode identify the file.
pub(crate) fn lock_holders(locks: &str, device: (u64, u64), inode: u64) -> Vec<u32> {
    let file_id = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "->").collect();
        (words.get(5) == Some(&&*file_id)).then(|| words.get(4)?.parse().ok()).flatten()
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
    fn wal_above_its_limit_is_reported() {
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
        assert_eq!(unfinished.summary, "no damage in the part of 3.0 GiB that was read within 200 ms");
        assert_eq!((unfinished.level, unfinished.advice.is_some()), (FindingLevel::Ok, true));
        let damaged = Integrity::Damaged(vec!["*** in database main ***\nTree 9 page 7".into(), "more".into()]);
        let found = integrity(&damaged, MIB);
        assert_eq!(found.summary, "the file is damaged: *** in database main *** Tree 9 page 7 and 1 more");
        assert_eq!(found.level, FindingLevel::Problem);
    }

    #[test]
    fn unsynced_writes_are_a_problem() {
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
    fn innermost_mount_decides_the_file_system() {
        let table = [
            ("/var/windlass.db", Some("ext4")),
            ("/srv/windlass.db", Some("xfs")),
            ("/srvx/windlass.db", Some("ext4")),
            ("/srv/share/a/windlass.db", Some("cifs")),
            ("/srv/shared/windlass.db", Some("xfs")),
            ("/srv/my disk/windlass.db", Some("cifs")),
        ];
        for (path, kind) in table {
            assert_eq!(file_system_kind(MOUNTS, path), kind, "{path}");
        }
        assert_eq!(file_system_kind("", "/a"), None);
    }

    #[test]
    fn network_file_system_is_a_problem() {
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
    fn required_disk_space_depends_on_the_file_size() {
        let table = [
            (None, 0, FindingLevel::Ok),
            (Some(2_048 * MIB), 1_024 * MIB, FindingLevel::Ok),
            (Some(2_048 * MIB), 40_000 * MIB, FindingLevel::Warning),
            (Some(1_023 * MIB), MIB, FindingLevel::Warning),
            (Some(255 * MIB), MIB, FindingLevel::Problem),
        ];
        for (free, bytes, level) in table {
            assert_eq!(disk_space(free, bytes).level, level, "{free:?} {bytes}");
        }
    }

    #[test]
    fn mostly_free_large_file_is_a_notice() {
        let of = |free, all| free_pages(&Pages { free, all, bytes_each: 4096, remedy: "VACUUM".to_owned() }).level;
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
    fn processes_are_identified_by_their_locks() {
        assert_eq!(lock_holders(LOCKS, (8, 1), 77), [101, 102]);
        assert_eq!(lock_holders(LOCKS, (8, 1), 79), [0; 0]);
        assert_eq!(processes(None, 1).summary, "not known on this system");
        assert_eq!(processes(Some(&[7]), 7).summary, "only this process has the file open");
        assert_eq!(processes(Some(&[7, 8, 9]), 7).summary, "also open in 2 processes: pid 8, 9");
        assert_eq!(processes(Some(&[7, 8]), 7).summary, "also open in 1 process: pid 8");
    }
}
