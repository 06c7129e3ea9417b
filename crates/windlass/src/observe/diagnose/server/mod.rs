//! Assesses a PostgreSQL server: version, settings, vacuum, sizes, connections, clock, notifications and partitions.
//!
//! Thresholds end in `_WARNING` and `_PROBLEM`, after the level of the finding.

use chrono::TimeDelta;

use super::format::{count, duration, list, number, size};
use super::schema::NamedRemedy;
use super::{Assessment, FindingLevel};
use crate::clock::Timestamp;
use crate::maintenance::months::{self, HistoryPartition, Month};

/// The oldest version that is tested and still supported by the PostgreSQL project.
const VERSION_MIN: i32 = 14;
/// Age of the oldest transaction that keeps vacuum from removing dead rows.
const XMIN_AGE_WARNING: TimeDelta = TimeDelta::minutes(5);
const XMIN_AGE_PROBLEM: TimeDelta = TimeDelta::hours(1);
/// The same in transactions, for replication slots and standbys, which have no start time.
const XMIN_AGE_XIDS_WARNING: i64 = 1_000_000;
const XMIN_AGE_XIDS_PROBLEM: i64 = 100_000_000;
/// Dead rows as a multiple of the number that should have started autovacuum.
const DEAD_RATIO_WARNING: f64 = 10.0;
const DEAD_RATIO_PROBLEM: f64 = 100.0;
/// Smaller tables and indexes are not reported.
const BLOAT_BYTES_MIN: u64 = 64 << 20;
/// Upper bound of the size of a live row in the table, including the free space for updates, and of its index entry.
const ROW_BYTES: u64 = 600;
const INDEX_ENTRY_BYTES: u64 = 80;
const BLOAT_RATIO: u64 = 5;
/// Clock difference beyond the measurement error.
const SKEW_WARNING: TimeDelta = TimeDelta::seconds(2);
const SKEW_PROBLEM: TimeDelta = TimeDelta::minutes(1);
/// Transaction age. The server stops at about two billion.
const XID_AGE_WARNING: i64 = 1_000_000_000;
const XID_AGE_PROBLEM: i64 = 1_500_000_000;

pub(crate) struct ServerVersion {
    /// As in 150004 for version 15.4.
    pub number: i32,
    pub text: String,
}

pub(crate) fn server_version(version: &ServerVersion) -> Assessment {
    let ServerVersion { number, text } = version;
    if number / 10_000 >= VERSION_MIN {
        return Assessment::ok(format!("PostgreSQL {text}"));
    }
    let summary = format!("PostgreSQL {text} is older than {VERSION_MIN}, the oldest that windlass is tested with");
    Assessment::new(
        FindingLevel::Warning,
        summary,
        "upgrade the server: https://www.postgresql.org/support/versioning/",
    )
}

/// Settings that decide whether a commit survives a crash.
pub(crate) struct DurabilitySettings {
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    /// A standby, or configured as read-only.
    pub read_only: bool,
    /// The statements that fix each setting, by the setting's name.
    pub remedies: Vec<NamedRemedy>,
}

pub(crate) fn durability(settings: &DurabilitySettings) -> Assessment {
    let DurabilitySettings { fsync, full_page_writes, synchronous_commit, read_only, remedies } = settings;
    let off = [
        ("fsync", !fsync),
        ("full_page_writes", !full_page_writes),
        ("synchronous_commit", synchronous_commit == "off"),
        ("default_transaction_read_only", *read_only),
    ];
    let off: Vec<&str> = off.into_iter().filter(|(_, off)| *off).map(|(name, _)| name).collect();
    if off.is_empty() {
        return Assessment::ok(format!("fsync is on, synchronous_commit is {synchronous_commit}"));
    }
    let faults = off.iter().map(|name| match *name {
        "default_transaction_read_only" => "the server is read-only",
        "synchronous_commit" => "synchronous_commit is off",
        "fsync" => "fsync is off",
        _ => "full_page_writes is off",
    });
    let faults: Vec<&str> = faults.collect();
    let consequence =
        if *read_only && off.len() == 1 { "" } else { ": a crash may lose or damage acknowledged events" };
    let advice: Vec<&str> = remedies.iter().filter(|fix| off.contains(&&*fix.name)).map(|fix| &*fix.remedy).collect();
    Assessment::new(FindingLevel::Problem, format!("{}{consequence}", faults.join(", ")), advice.join("; "))
}

/// A session, prepared transaction, replication slot or standby that keeps vacuum from removing dead rows.
#[derive(Debug, Clone)]
pub(crate) struct XminHolder {
    /// For people, as in `pid 42 (psql, user app)`.
    pub description: String,
    /// When its transaction started, if known.
    pub since: Option<Timestamp>,
    /// How many transactions have started since.
    pub xids: i64,
    pub remedy: String,
}

impl XminHolder {
    fn level(&self, now: Timestamp) -> FindingLevel {
        let (age, xids) = (self.since.map(|since| now - since), self.xids);
        let by_age = |max: TimeDelta| age.is_some_and(|age| age > max);
        let by_xids = |max: i64| age.is_none() && xids > max;
        if by_age(XMIN_AGE_PROBLEM) || by_xids(XMIN_AGE_XIDS_PROBLEM) {
            FindingLevel::Problem
        } else if by_age(XMIN_AGE_WARNING) || by_xids(XMIN_AGE_XIDS_WARNING) {
            FindingLevel::Warning
        } else {
            FindingLevel::Ok
        }
    }

    fn described(&self, now: Timestamp) -> String {
        match self.since {
            Some(since) => format!("{} for {}", self.description, duration(now - since)),
            None => format!("{} for {}", self.description, count(self.xids.unsigned_abs(), "transaction")),
        }
    }
}

/// All holders that the role can see. `grant` is the statement that lets it see the rest.
pub(crate) struct XminHolders {
    pub holders: Vec<XminHolder>,
    pub grant: Option<String>,
}

pub(crate) fn pinned_xmin(holders: &XminHolders, now: Timestamp) -> Assessment {
    let mut old: Vec<(&XminHolder, FindingLevel)> =
        holders.holders.iter().map(|holder| (holder, holder.level(now))).collect();
    old.retain(|(_, level)| *level > FindingLevel::Ok);
    old.sort_by_key(|(holder, level)| (std::cmp::Reverse(*level), holder.since));
    let Some((first, level)) = old.first() else {
        return match &holders.grant {
            None => Assessment::ok(format!("no transaction is open for more than {}", duration(XMIN_AGE_WARNING))),
            Some(grant) => Assessment::new(
                FindingLevel::Notice,
                "transactions of other roles cannot be seen",
                format!("to see them: {grant}"),
            ),
        };
    };
    let summary =
        format!("vacuum cannot remove dead rows: {}", list(old.iter().map(|(holder, _)| holder.described(now))));
    let advice = format!("end it: {}; `idle_in_transaction_session_timeout` ends forgotten transactions", first.remedy);
    Assessment::new(*level, summary, advice)
}

/// Dead rows of one table.
#[derive(Debug, Clone)]
pub(crate) struct TableDeadRows {
    pub name: String,
    pub live: u64,
    pub dead: u64,
    /// The number of dead rows that starts autovacuum.
    pub starts_at: f64,
    /// Autovacuum is off for this table.
    pub off: bool,
    /// The statement that vacuums the table, and switches autovacuum on if it is off.
    pub remedy: String,
}

pub(crate) struct DeadRows {
    pub tables: Vec<TableDeadRows>,
    /// If autovacuum is off for the whole server: the statement that switches it on.
    pub all_off: Option<String>,
}

pub(crate) fn dead_rows(rows: &DeadRows) -> Assessment {
    if let Some(remedy) = &rows.all_off {
        return Assessment::new(
            FindingLevel::Problem,
            "autovacuum is off: dead rows accumulate and claims get slower",
            remedy,
        );
    }
    if let Some(table) = rows.tables.iter().find(|table| table.off) {
        let summary =
            format!("autovacuum is off for {}: its dead rows ({}) accumulate", table.name, number(table.dead));
        return Assessment::new(FindingLevel::Problem, summary, &table.remedy);
    }
    let ratio = |table: &TableDeadRows| table.dead as f64 / table.starts_at.max(1.0);
    let mut behind: Vec<&TableDeadRows> =
        rows.tables.iter().filter(|table| ratio(table) > DEAD_RATIO_WARNING).collect();
    behind.sort_by(|one, two| ratio(two).total_cmp(&ratio(one)));
    let Some(first) = behind.first() else {
        let dead: u64 = rows.tables.iter().map(|table| table.dead).sum();
        return Assessment::ok(format!("vacuum keeps up; {} dead", count(dead, "row")));
    };
    let level = if ratio(first) > DEAD_RATIO_PROBLEM { FindingLevel::Problem } else { FindingLevel::Warning };
    let named = |table: &&TableDeadRows| {
        format!("{} has {} dead and {} live rows", table.name, number(table.dead), number(table.live))
    };
    let summary = format!("vacuum is far behind: {}", list(behind.iter().map(named)));
    let advice = format!("{}; if that does not help, a transaction keeps them: see `pinned_xmin`", first.remedy);
    Assessment::new(level, summary, advice)
}

/// Sizes of the table `event_queue` and its hot index.
pub(crate) struct QueueSizes {
    pub live: u64,
    pub table_bytes: u64,
    pub index_bytes: u64,
    pub shrink_table: String,
    pub shrink_index: String,
}

pub(crate) fn bloat(sizes: &QueueSizes) -> Assessment {
    let QueueSizes { live, table_bytes, index_bytes, shrink_table, shrink_index } = sizes;
    let too_large = |bytes: u64, row_bytes: u64| bytes > BLOAT_BYTES_MIN.max(BLOAT_RATIO * row_bytes * live);
    let summary = format!(
        "event_queue takes {} and its hot index {} for {}",
        size(*table_bytes),
        size(*index_bytes),
        count(*live, "live row")
    );
    match (too_large(*table_bytes, ROW_BYTES), too_large(*index_bytes, INDEX_ENTRY_BYTES)) {
        (false, false) => Assessment::ok(summary),
        (false, true) => Assessment::new(FindingLevel::Warning, summary, format!("{shrink_index} (does not block)")),
        (true, _) => {
            let advice = format!("{shrink_index} (does not block); {shrink_table} (blocks the queue while it runs)");
            Assessment::new(FindingLevel::Warning, summary, advice)
        }
    }
}

/// Connections in use, and their limits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConnectionCounts {
    pub all: i64,
    pub max: i64,
    pub reserved: i64,
    pub role_used: i64,
    /// Negative for no limit.
    pub role_max: i64,
    pub database_used: i64,
    pub database_max: i64,
    /// How many connections one Windlass process opens at most.
    pub per_process_max: i64,
}

pub(crate) fn connections(connected: &ConnectionCounts) -> Assessment {
    let ConnectionCounts { all, max, reserved, role_used, role_max, database_used, database_max, per_process_max } =
        *connected;
    let limits = [
        ("the server", all, max - reserved, "max_connections (needs a restart)"),
        ("this role", role_used, role_max, "the role's limit: ALTER ROLE … CONNECTION LIMIT"),
        ("this database", database_used, database_max, "the database's limit: ALTER DATABASE … CONNECTION LIMIT"),
    ];
    let limits = limits.into_iter().filter(|(_, _, limit, _)| *limit >= 0);
    let Some((scope, used, limit, raise)) = limits.min_by_key(|(_, used, limit, _)| limit - used) else {
        return Assessment::ok(format!("{all} in use"));
    };
    let left = (limit - used).max(0);
    let summary =
        format!("{used} of {limit} for {scope} are in use; one windlass process takes up to {per_process_max}");
    let level = match left {
        0..=2 => FindingLevel::Problem,
        _ if left < per_process_max => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice = format!("close unused connections, put a pool in front of other clients, or raise {raise}");
    Assessment::new(level, summary, advice)
}

/// By how much the server's clock is ahead of this process's, within half of the round trip.
pub(crate) struct ClockSkew {
    pub ahead: TimeDelta,
    pub round_trip: TimeDelta,
}

pub(crate) fn clock_skew(skew: &ClockSkew) -> Assessment {
    let ClockSkew { ahead, round_trip } = skew;
    let certain = ahead.abs() - *round_trip / 2;
    let which = if *ahead < TimeDelta::zero() { "behind" } else { "ahead of" };
    let apart = match ahead.abs() {
        apart if apart < TimeDelta::minutes(1) => format!("{} ms", apart.num_milliseconds()),
        apart => duration(apart),
    };
    let summary = format!(
        "the server's clock is {apart} {which} this machine's (measured within {} ms)",
        (*round_trip / 2).num_milliseconds().max(1)
    );
    if certain <= SKEW_WARNING {
        return Assessment::ok(summary);
    }
    let level = if certain > SKEW_PROBLEM { FindingLevel::Problem } else { FindingLevel::Warning };
    let advice = "leases and schedules use the server's clock, logs and tokens this machine's: synchronize both with NTP \
                  (see `timedatectl`)";
    Assessment::new(level, summary, advice)
}

/// `usage` is how full the server's notification queue is, from 0 to 1.
pub(crate) fn notify_queue(usage: f64) -> Assessment {
    let summary = format!("{:.1} % full", usage * 100.0);
    let level = match usage {
        usage if usage > 0.5 => FindingLevel::Problem,
        usage if usage > 0.1 => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice = "a listening session keeps its transaction open and receives nothing: end it (`pinned_xmin` \
                  names it). When the queue is full, every commit that notifies fails";
    Assessment::new(level, summary, advice)
}

/// `received_after` is how long a notification took back to the process that sent it; `None` if it did not arrive.
pub(crate) fn notifications(received_after: Option<TimeDelta>) -> Assessment {
    match received_after {
        Some(after) => Assessment::ok(format!("a notification arrived after {} ms", after.num_milliseconds().max(1))),
        None => Assessment::new(
            FindingLevel::Warning,
            "none arrive: waiting claims poll once a second instead, so events start up to a second late",
            "PgBouncer in transaction mode drops LISTEN: give windlass a pool in session mode or the server itself; \
             otherwise see the log for the reason why it cannot listen",
        ),
    }
}

/// Age of the oldest row that must be frozen, and its table.
pub(crate) struct WraparoundAge {
    pub xids: i64,
    pub multixacts: i64,
    pub oldest: NamedRemedy,
}

pub(crate) fn wraparound(age: &WraparoundAge) -> Assessment {
    let WraparoundAge { xids, multixacts, oldest } = age;
    let age = *xids.max(multixacts);
    let summary = format!(
        "{} of about 2,000,000,000 transactions until the server stops; the oldest table is {}",
        number(age.unsigned_abs()),
        oldest.name
    );
    let level = match age {
        age if age > XID_AGE_PROBLEM => FindingLevel::Problem,
        age if age > XID_AGE_WARNING => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice =
        format!("{}; first end the transactions that `pinned_xmin` names, otherwise it does not help", oldest.remedy);
    Assessment::new(level, summary, advice)
}

/// Whether the partitions of this month and the next two exist.
pub(crate) fn partitions(existing: &[HistoryPartition], now: Timestamp) -> Assessment {
    let missing = months::missing_partitions(existing, now);
    if missing.is_empty() {
        return Assessment::ok("this month and the next two exist");
    }
    let current_missing = missing.iter().any(|(_, month)| *month == Month::of(now));
    let level = if current_missing { FindingLevel::Warning } else { FindingLevel::Notice };
    let names = list(missing.iter().map(|(kept, month)| format!("{}_{month}", kept.as_str())));
    let summary = format!("{} missing: {names}", missing.len());
    let advice = "the default partition stores those rows, but retention deletes them row by row. `windlass serve` creates \
                  partitions every hour: see the task `partitions` in GET /stats/maintenance, and check that the role owns the \
                  tables";
    Assessment::new(level, summary, advice)
}

#[cfg(test)]
mod tests;
