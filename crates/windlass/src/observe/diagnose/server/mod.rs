//! What to think of a PostgreSQL server.

use chrono::TimeDelta;

use super::say::{count, number, size, some, span};
use super::schema::SchemaProblem;
use super::{Assessment, FindingLevel};
use crate::clock::Timestamp;
use crate::maintenance::months::{self, Month, Part};

/// The oldest that is tested, and that its makers still mend.
const VERSION_MIN: i32 = 14;
/// Vacuum is held up by a transaction that is open for so long.
const PINNED_MAX: TimeDelta = TimeDelta::minutes(5);
const PINNED_BAD: TimeDelta = TimeDelta::hours(1);
/// The same in transactions, for what has no beginning in time.
const PINNED_XIDS_MAX: i64 = 1_000_000;
const PINNED_XIDS_BAD: i64 = 100_000_000;
/// Vacuum is behind by so many times what should have started it.
const DEAD_TIMES_MAX: f64 = 10.0;
const DEAD_TIMES_BAD: f64 = 100.0;
/// Smaller ones are not worth a word.
const BLOAT_BYTES_MIN: u64 = 64 << 20;
/// What a live row takes at most: in the table with the room that updates need, and in the index.
const ROW_BYTES: u64 = 600;
const ENTRY_BYTES: u64 = 80;
const BLOAT_TIMES: u64 = 5;
/// Clocks may differ by so much beyond what cannot be measured.
const SKEW_MAX: TimeDelta = TimeDelta::seconds(2);
const SKEW_BAD: TimeDelta = TimeDelta::minutes(1);
/// Of two thousand million transactions the server stops at.
const FREEZE_MAX: i64 = 1_000_000_000;
const FREEZE_BAD: i64 = 1_500_000_000;

pub(crate) struct Release {
    /// As in 150004.
    pub number: i32,
    pub text: String,
}

pub(crate) fn release(release: &Release) -> Assessment {
    let Release { number, text } = release;
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

/// Whether and how what is committed is kept.
pub(crate) struct Durability {
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    /// A standby, or told to take no writes.
    pub read_only: bool,
    /// The statements that switch each on, by the setting's name.
    pub remedies: Vec<SchemaProblem>,
}

pub(crate) fn durability(settings: &Durability) -> Assessment {
    let Durability { fsync, full_page_writes, synchronous_commit, read_only, remedies } = settings;
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
    let said = off.iter().map(|name| match *name {
        "default_transaction_read_only" => "the server takes no writes",
        "synchronous_commit" => "synchronous_commit is off",
        "fsync" => "fsync is off",
        _ => "full_page_writes is off",
    });
    let said: Vec<&str> = said.collect();
    let lost = if *read_only && off.len() == 1 { "" } else { ": a crash may lose or damage what was acknowledged" };
    let advice: Vec<&str> =
        remedies.iter().filter(|amiss| off.contains(&&*amiss.name)).map(|amiss| &*amiss.remedy).collect();
    Assessment::new(FindingLevel::Problem, format!("{}{lost}", said.join(", ")), advice.join("; "))
}

/// What keeps vacuum from taking away dead rows.
#[derive(Debug, Clone)]
pub(crate) struct Pin {
    /// Who it is, for people.
    pub who: String,
    /// Since when, where that is known.
    pub since: Option<Timestamp>,
    /// How many transactions began since.
    pub xids: i64,
    pub remedy: String,
}

impl Pin {
    fn level(&self, now: Timestamp) -> FindingLevel {
        let (age, xids) = (self.since.map(|since| now - since), self.xids);
        let by_age = |max: TimeDelta| age.is_some_and(|age| age > max);
        let by_xids = |max: i64| age.is_none() && xids > max;
        if by_age(PINNED_BAD) || by_xids(PINNED_XIDS_BAD) {
            FindingLevel::Problem
        } else if by_age(PINNED_MAX) || by_xids(PINNED_XIDS_MAX) {
            FindingLevel::Warning
        } else {
            FindingLevel::Ok
        }
    }

    fn named(&self, now: Timestamp) -> String {
        match self.since {
            Some(since) => format!("{} for {}", self.who, span(now - since)),
            None => format!("{} for {}", self.who, count(self.xids.unsigned_abs(), "transaction")),
        }
    }
}

/// Everything that pins, and what it takes to see the rest of it where something is hidden.
pub(crate) struct Pins {
    pub pins: Vec<Pin>,
    pub grant: Option<String>,
}

pub(crate) fn pinned(pins: &Pins, now: Timestamp) -> Assessment {
    let mut old: Vec<(&Pin, FindingLevel)> = pins.pins.iter().map(|pin| (pin, pin.level(now))).collect();
    old.retain(|(_, level)| *level > FindingLevel::Ok);
    old.sort_by_key(|(pin, level)| (std::cmp::Reverse(*level), pin.since));
    let Some((first, level)) = old.first() else {
        return match &pins.grant {
            None => Assessment::ok(format!("no transaction is open for more than {}", span(PINNED_MAX))),
            Some(grant) => Assessment::new(
                FindingLevel::Notice,
                "transactions of other roles cannot be seen",
                format!("to see them: {grant}"),
            ),
        };
    };
    let summary = format!("dead rows are kept: {}", some(old.iter().map(|(pin, _)| pin.named(now))));
    let advice =
        format!("end it: {}; `idle_in_transaction_session_timeout` ends those that were forgotten", first.remedy);
    Assessment::new(*level, summary, advice)
}

/// How far vacuum is behind with a table.
#[derive(Debug, Clone)]
pub(crate) struct TableDirt {
    pub name: String,
    pub live: u64,
    pub dead: u64,
    /// With so many dead rows autovacuum starts.
    pub starts_at: f64,
    /// Autovacuum is switched off for it.
    pub off: bool,
    /// Cleans it, and switches autovacuum on again if that is off.
    pub remedy: String,
}

pub(crate) struct Dirt {
    pub tables: Vec<TableDirt>,
    /// Autovacuum is off for all: the statement that switches it on.
    pub all_off: Option<String>,
}

pub(crate) fn dead_rows(dirt: &Dirt) -> Assessment {
    if let Some(remedy) = &dirt.all_off {
        return Assessment::new(
            FindingLevel::Problem,
            "autovacuum is off: dead rows stay, and claims get slower",
            remedy,
        );
    }
    if let Some(table) = dirt.tables.iter().find(|table| table.off) {
        let summary = format!("autovacuum is off for {}: its dead rows ({}) stay", table.name, number(table.dead));
        return Assessment::new(FindingLevel::Problem, summary, &table.remedy);
    }
    let times = |table: &TableDirt| table.dead as f64 / table.starts_at.max(1.0);
    let mut behind: Vec<&TableDirt> = dirt.tables.iter().filter(|table| times(table) > DEAD_TIMES_MAX).collect();
    behind.sort_by(|one, two| times(two).total_cmp(&times(one)));
    let Some(first) = behind.first() else {
        let dead: u64 = dirt.tables.iter().map(|table| table.dead).sum();
        return Assessment::ok(format!("vacuum keeps up; {} dead", count(dead, "row")));
    };
    let level = if times(first) > DEAD_TIMES_BAD { FindingLevel::Problem } else { FindingLevel::Warning };
    let named = |table: &&TableDirt| {
        format!("{} has {} dead and {} live rows", table.name, number(table.dead), number(table.live))
    };
    let summary = format!("vacuum is far behind: {}", some(behind.iter().map(named)));
    let advice = format!("{}; if that does not help, something keeps them: see `pinned_xmin`", first.remedy);
    Assessment::new(level, summary, advice)
}

/// What the queue's table and its hot index take.
pub(crate) struct Sizes {
    pub live: u64,
    pub table_bytes: u64,
    pub index_bytes: u64,
    pub shrink_table: String,
    pub shrink_index: String,
}

pub(crate) fn bloat(sizes: &Sizes) -> Assessment {
    let Sizes { live, table_bytes, index_bytes, shrink_table, shrink_index } = sizes;
    let too_large = |bytes: u64, each: u64| bytes > BLOAT_BYTES_MIN.max(BLOAT_TIMES * each * live);
    let summary = format!(
        "event_queue takes {} and its hot index {} for {}",
        size(*table_bytes),
        size(*index_bytes),
        count(*live, "live row")
    );
    match (too_large(*table_bytes, ROW_BYTES), too_large(*index_bytes, ENTRY_BYTES)) {
        (false, false) => Assessment::ok(summary),
        (false, true) => {
            Assessment::new(FindingLevel::Warning, summary, format!("{shrink_index} (nobody has to wait)"))
        }
        (true, _) => {
            let advice = format!("{shrink_index} (nobody has to wait); {shrink_table} (everybody waits meanwhile)");
            Assessment::new(FindingLevel::Warning, summary, advice)
        }
    }
}

/// How many connections there are and may be.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Connected {
    pub all: i64,
    pub max: i64,
    pub reserved: i64,
    pub of_role: i64,
    /// Negative: no limit.
    pub role_max: i64,
    pub of_database: i64,
    pub database_max: i64,
    /// How many one of our processes opens at most.
    pub own_max: i64,
}

pub(crate) fn connections(connected: &Connected) -> Assessment {
    let Connected { all, max, reserved, of_role, role_max, of_database, database_max, own_max } = *connected;
    let limits = [
        ("the server", all, max - reserved, "max_connections (needs a restart)"),
        ("this role", of_role, role_max, "the role's limit: ALTER ROLE … CONNECTION LIMIT"),
        ("this database", of_database, database_max, "the database's limit: ALTER DATABASE … CONNECTION LIMIT"),
    ];
    let limits = limits.into_iter().filter(|(_, _, limit, _)| *limit >= 0);
    let Some((of, used, limit, raise)) = limits.min_by_key(|(_, used, limit, _)| limit - used) else {
        return Assessment::ok(format!("{all} in use"));
    };
    let left = (limit - used).max(0);
    let summary = format!("{used} of {limit} for {of} are in use; one windlass process takes up to {own_max}");
    let level = match left {
        0..=2 => FindingLevel::Problem,
        _ if left < own_max => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice = format!("close what is not needed, put a pool in front of other clients, or raise {raise}");
    Assessment::new(level, summary, advice)
}

/// By how much the server's clock is ahead of this process's, give or take half the way there and back.
pub(crate) struct Skew {
    pub ahead: TimeDelta,
    pub round_trip: TimeDelta,
}

pub(crate) fn clock(skew: &Skew) -> Assessment {
    let Skew { ahead, round_trip } = skew;
    let certain = ahead.abs() - *round_trip / 2;
    let which = if *ahead < TimeDelta::zero() { "behind" } else { "ahead of" };
    let apart = match ahead.abs() {
        apart if apart < TimeDelta::minutes(1) => format!("{} ms", apart.num_milliseconds()),
        apart => span(apart),
    };
    let summary = format!(
        "the server's clock is {apart} {which} this machine's (measured within {} ms)",
        (*round_trip / 2).num_milliseconds().max(1)
    );
    if certain <= SKEW_MAX {
        return Assessment::ok(summary);
    }
    let level = if certain > SKEW_BAD { FindingLevel::Problem } else { FindingLevel::Warning };
    let advice = "leases and schedules go by the server's clock, logs and tokens by this machine's: set both by NTP \
                  (`timedatectl` shows whether that works)";
    Assessment::new(level, summary, advice)
}

/// How full the server's queue of notifications is, from 0 to 1.
pub(crate) fn notify_queue(usage: f64) -> Assessment {
    let summary = format!("{:.1} % full", usage * 100.0);
    let level = match usage {
        usage if usage > 0.5 => FindingLevel::Problem,
        usage if usage > 0.1 => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice = "a session listens and does not get to hear, since its transaction stays open: end it (`pinned_xmin` \
                  names it). When the queue is full, every commit that notifies fails";
    Assessment::new(level, summary, advice)
}

/// Whether a notification came back to the process that sent it, and after how long.
pub(crate) fn notifications(heard: Option<TimeDelta>) -> Assessment {
    match heard {
        Some(after) => Assessment::ok(format!("one came back after {} ms", after.num_milliseconds().max(1))),
        None => Assessment::new(
            FindingLevel::Warning,
            "none come: waiting workers look once a second instead, so events start up to a second late",
            "PgBouncer in transaction mode drops LISTEN: give windlass a pool in session mode or the server itself; \
             otherwise see the log for why it cannot listen",
        ),
    }
}

/// How old the oldest row is that must be frozen.
pub(crate) struct Freeze {
    pub xids: i64,
    pub multixacts: i64,
    pub oldest: SchemaProblem,
}

pub(crate) fn wraparound(freeze: &Freeze) -> Assessment {
    let Freeze { xids, multixacts, oldest } = freeze;
    let age = *xids.max(multixacts);
    let summary = format!(
        "{} of about 2,000,000,000 transactions until the server stops; the oldest table is {}",
        number(age.unsigned_abs()),
        oldest.name
    );
    let level = match age {
        age if age > FREEZE_BAD => FindingLevel::Problem,
        age if age > FREEZE_MAX => FindingLevel::Warning,
        _ => return Assessment::ok(summary),
    };
    let advice = format!("{}; first end what `pinned_xmin` names, or it does not help", oldest.remedy);
    Assessment::new(level, summary, advice)
}

/// Whether this month and the next ones have their partitions.
pub(crate) fn partitions(found: &[Part], now: Timestamp) -> Assessment {
    let missing = months::missing(found, now);
    if missing.is_empty() {
        return Assessment::ok("this month and the next two are made");
    }
    let this = missing.iter().any(|(_, month)| *month == Month::of(now));
    let level = if this { FindingLevel::Warning } else { FindingLevel::Notice };
    let names = some(missing.iter().map(|(kept, month)| format!("{}_{month}", kept.as_str())));
    let summary = format!("{} not made: {names}", missing.len());
    let advice = "the default partition takes what belongs there, but it is deleted row by row. `windlass serve` makes \
                  them every hour: see the task `partitions` in GET /stats/maintenance, and that the role owns the tables";
    Assessment::new(level, summary, advice)
}

#[cfg(test)]
mod tests;
