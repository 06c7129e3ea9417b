//! Facts about the server for `windlass diagnose`, and the statements that an administrator can run to fix problems.

use std::time::Instant;

use chrono::TimeDelta;
use sqlx::postgres::PgRow;

use super::{all, number, row, rows, unseen};
use crate::clock::{Clock, Timestamp};
use crate::error::Result;
use crate::maintenance::months::HistoryPartition;
use crate::observe::diagnose::schema::NamedRemedy;
use crate::observe::diagnose::server::{
    ClockSkew, ConnectionCounts, DeadRows, DurabilitySettings, QueueSizes, ServerVersion, TableDeadRows, WraparoundAge,
    XminHolder, XminHolders,
};
use crate::store::postgres::row::get;
use crate::store::postgres::{CLAIMS, MAINTENANCE, PgStore, READS, RENEWALS, ROUTES, WRITES, notify};
use crate::store::{Checked, MonthStore};

/// All connections of this store; one is the listener's.
const OWN_MAX: usize = CLAIMS + WRITES + MAINTENANCE + ROUTES + RENEWALS + READS + 1;

const RELEASE: &str = "
SELECT current_setting('server_version_num')::integer AS number, current_setting('server_version') AS text";

const DURABILITY: &str = "
SELECT current_setting('fsync')::boolean AS fsync, current_setting('full_page_writes')::boolean AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean AS read_only,
       pg_is_in_recovery() AS standby, quote_ident(current_database()) AS database";

// The role's permissions decide what a session sees of other transactions. An idle transaction may keep locks without a
// snapshot. Sessions and prepared transactions matter only in their own database; standbys and slots matter in every
// database.
const PINS: &str = "
SELECT format('pid %s (%s, user %s%s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename,
              CASE WHEN a.state LIKE 'idle in transaction%' THEN ', idle in its transaction' END) AS who,
       a.xact_start AS since, coalesce(greatest(age(a.backend_xmin), age(a.backend_xid)), 0)::bigint AS xids,
       format('SELECT pg_terminate_backend(%s)', a.pid) AS remedy
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
  AND a.backend_type = 'client backend'
  AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL OR a.state LIKE 'idle in transaction%')
UNION ALL
SELECT format('prepared transaction %L of %s', p.gid, p.owner), p.prepared, age(p.transaction)::bigint,
       format('ROLLBACK PREPARED %L', p.gid)
FROM pg_prepared_xacts p WHERE p.database = current_database()
UNION ALL
SELECT format('replication slot %s%s', s.slot_name, CASE WHEN NOT s.active THEN ', which nobody uses' END), NULL,
       greatest(age(s.xmin), age(s.catalog_xmin))::bigint, format('SELECT pg_drop_replication_slot(%L)', s.slot_name)
FROM pg_replication_slots s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL
UNION ALL
SELECT format('standby %s (hot_standby_feedback)', coalesce(nullif(r.application_name, ''), host(r.client_addr))), NULL,
       age(r.backend_xmin)::bigint, 'end the long query on that standby, or switch hot_standby_feedback off there'
FROM pg_stat_replication r WHERE r.backend_xmin IS NOT NULL
ORDER BY since NULLS LAST, xids DESC LIMIT 100";

const SEES_ALL: &str = "
SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
       format('GRANT pg_read_all_stats TO %I', current_user) AS remedy";

// Options of a table override those of the server, as for autovacuum.
const DIRT: &str = "
SELECT s.relname::text AS name, s.n_live_tup AS live, s.n_dead_tup AS dead,
       coalesce((o.o ->> 'autovacuum_vacuum_threshold')::float8,
                current_setting('autovacuum_vacuum_threshold')::float8)
       + coalesce((o.o ->> 'autovacuum_vacuum_scale_factor')::float8,
                  current_setting('autovacuum_vacuum_scale_factor')::float8) * s.n_live_tup AS starts_at,
       coalesce(NOT (o.o ->> 'autovacuum_enabled')::boolean, false) AS off,
       format('VACUUM (ANALYZE) windlass.%I', s.relname) AS clean,
       format('ALTER TABLE windlass.%I RESET (autovacuum_enabled)', s.relname) AS switch_on
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_object_agg(t.option_name, t.option_value), '{}') AS o
    FROM pg_options_to_table(c.reloptions) AS t) AS o
WHERE s.schemaname = 'windlass' ORDER BY off DESC, s.n_dead_tup DESC LIMIT 100";

const AUTOVACUUM: &str = "
SELECT current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean AS on";

const SWITCH_ON: &str = "
ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf()";

const SIZES: &str = "
SELECT greatest(s.n_live_tup, 0) AS live, pg_relation_size('windlass.event_queue') AS table_bytes,
       coalesce(pg_relation_size(to_regclass('windlass.event_queue_lane')), 0) AS index_bytes
FROM pg_stat_user_tables s WHERE s.relid = 'windlass.event_queue'::regclass";

const SHRINK_TABLE: &str = "VACUUM FULL windlass.event_queue";
const SHRINK_INDEX: &str = "REINDEX INDEX CONCURRENTLY windlass.event_queue_lane";

// Limits of roles and databases do not apply to superusers. Some settings do not exist in every version.
const CONNECTED: &str = "
SELECT (SELECT sum(numbackends) FROM pg_stat_database WHERE datid <> 0)::bigint AS all,
       current_setting('max_connections')::bigint AS max,
       CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::bigint
            + coalesce(current_setting('reserved_connections', true)::bigint, 0) END AS reserved,
       (SELECT count(*) FROM pg_stat_activity a WHERE a.usename = r.rolname) AS of_role,
       CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END::bigint AS role_max,
       (SELECT s.numbackends FROM pg_stat_database s WHERE s.datname = current_database())::bigint AS of_database,
       CASE WHEN r.rolsuper THEN -1 ELSE d.datconnlimit END::bigint AS database_max
FROM pg_roles r, pg_database d WHERE r.rolname = session_user AND d.datname = current_database()";

const CLOCK: &str = "SELECT clock_timestamp() AS now";

const NOTIFY_QUEUE: &str = "SELECT pg_notification_queue_usage() AS usage";

const FREEZE: &str = "
SELECT age(d.datfrozenxid)::bigint AS xids, mxid_age(d.datminmxid)::bigint AS multixacts,
       t.name, format('VACUUM (FREEZE) %s', t.name) AS remedy
FROM pg_database d CROSS JOIN LATERAL (
    SELECT c.oid::regclass::text AS name FROM pg_class c
    WHERE c.relkind IN ('r', 'm', 't') ORDER BY greatest(age(c.relfrozenxid), mxid_age(c.relminmxid)) DESC LIMIT 1) AS t
WHERE d.datname = current_database()";

impl PgStore {
    pub(crate) async fn server_version(&self) -> Checked<ServerVersion> {
        let row = row(self, sqlx::query(RELEASE)).await?;
        Ok(ServerVersion { number: get(&row, "number")?, text: get(&row, "text")? })
    }

    pub(crate) async fn durability(&self) -> Checked<DurabilitySettings> {
        let row = row(self, sqlx::query(DURABILITY)).await?;
        let database: String = get(&row, "database")?;
        let system = |name: &str| NamedRemedy {
            name: name.to_owned(),
            remedy: format!("ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"),
        };
        let writes = match get(&row, "standby")? {
            true => "connect to the primary, or promote this one: SELECT pg_promote()".to_owned(),
            false => {
                format!("ALTER DATABASE {database} SET default_transaction_read_only = off, and start windlass again")
            }
        };
        let commits = format!(
            "ALTER DATABASE {database} SET synchronous_commit = on (see also ALTER ROLE), and start windlass again"
        );
        let remedies = vec![
            system("fsync"),
            system("full_page_writes"),
            NamedRemedy { name: "synchronous_commit".to_owned(), remedy: commits },
            NamedRemedy { name: "default_transaction_read_only".to_owned(), remedy: writes },
        ];
        Ok(DurabilitySettings {
            fsync: get(&row, "fsync")?,
            full_page_writes: get(&row, "full_page_writes")?,
            synchronous_commit: get(&row, "synchronous_commit")?,
            read_only: get(&row, "read_only")?,
            remedies,
        })
    }

    pub(crate) async fn xmin_holders(&self) -> Checked<XminHolders> {
        let pins = all(&rows(self, sqlx::query(PINS)).await?, |row| {
            Ok(XminHolder {
                description: get(row, "who")?,
                since: get(row, "since")?,
                xids: get(row, "xids")?,
                remedy: get(row, "remedy")?,
            })
        })?;
        let rights = row(self, sqlx::query(SEES_ALL)).await?;
        let sees_all: bool = get(&rights, "sees_all")?;
        Ok(XminHolders { holders: pins, grant: if sees_all { None } else { Some(get(&rights, "remedy")?) } })
    }

    pub(crate) async fn dead_rows(&self) -> Checked<DeadRows> {
        let on: bool = get(&row(self, sqlx::query(AUTOVACUUM)).await?, "on")?;
        let table = |row: &PgRow| -> Result<TableDeadRows> {
            let (off, clean, switch_on): (bool, String, String) =
                (get(row, "off")?, get(row, "clean")?, get(row, "switch_on")?);
            Ok(TableDeadRows {
                name: get(row, "name")?,
                live: number(row, "live")?,
                dead: number(row, "dead")?,
                starts_at: get(row, "starts_at")?,
                off,
                remedy: if off { format!("{switch_on}; {clean}") } else { clean },
            })
        };
        let tables = all(&rows(self, sqlx::query(DIRT)).await?, table)?;
        Ok(DeadRows { tables, all_off: (!on).then(|| SWITCH_ON.trim().to_owned()) })
    }

    pub(crate) async fn queue_sizes(&self) -> Checked<QueueSizes> {
        let row = row(self, sqlx::query(SIZES)).await?;
        Ok(QueueSizes {
            live: number(&row, "live")?,
            table_bytes: number(&row, "table_bytes")?,
            index_bytes: number(&row, "index_bytes")?,
            shrink_table: SHRINK_TABLE.to_owned(),
            shrink_index: SHRINK_INDEX.to_owned(),
        })
    }

    pub(crate) async fn connection_counts(&self) -> Checked<ConnectionCounts> {
        let row = row(self, sqlx::query(CONNECTED)).await?;
        Ok(ConnectionCounts {
            all: get(&row, "all")?,
            max: get(&row, "max")?,
            reserved: get(&row, "reserved")?,
            role_used: get(&row, "of_role")?,
            role_max: get(&row, "role_max")?,
            database_used: get(&row, "of_database")?,
            database_max: get(&row, "database_max")?,
            per_process_max: OWN_MAX as i64,
        })
    }

    /// Uses the fastest of several round trips.
    pub(crate) async fn clock_skew(&self, clock: &Clock) -> Checked<ClockSkew> {
        let mut connection = self.reads.get().await?;
        let mut best: Option<ClockSkew> = None;
        for _ in 0..5 {
            let (begun, local) = (Instant::now(), clock.now());
            let now = sqlx::query_scalar::<_, Timestamp>(CLOCK).fetch_one(&mut *connection).await;
            let round_trip = TimeDelta::from_std(begun.elapsed()).unwrap_or(TimeDelta::MAX);
            let ahead = now.map_err(|error| unseen(self, error))? - local - round_trip / 2;
            if best.as_ref().is_none_or(|best| round_trip < best.round_trip) {
                best = Some(ClockSkew { ahead, round_trip });
            }
        }
        connection.done();
        Ok(best.unwrap_or(ClockSkew { ahead: TimeDelta::zero(), round_trip: TimeDelta::MAX }))
    }

    pub(crate) async fn notify_queue(&self) -> Checked<f64> {
        Ok(get(&row(self, sqlx::query(NOTIFY_QUEUE)).await?, "usage")?)
    }

    /// How long a notification takes to come back; `None`: it does not arrive.
    pub(crate) async fn notified_after(&self) -> Checked<Option<TimeDelta>> {
        let heard = notify::probe(&self.reads, &self.last_probe).await?;
        Ok(heard.and_then(|after| TimeDelta::from_std(after).ok()))
    }

    pub(crate) async fn wraparound_age(&self) -> Checked<WraparoundAge> {
        let row = row(self, sqlx::query(FREEZE)).await?;
        let oldest = NamedRemedy { name: get(&row, "name")?, remedy: get(&row, "remedy")? };
        Ok(WraparoundAge { xids: get(&row, "xids")?, multixacts: get(&row, "multixacts")?, oldest })
    }

    pub(crate) async fn parts(&self) -> Checked<Vec<HistoryPartition>> {
        Ok(self.months().await?)
    }
}
