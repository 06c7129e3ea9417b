//! Describes the machine and the server of a run.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use sqlx::{Connection, PgConnection};

use crate::AnyError;

const PROBE_TIME: Duration = Duration::from_secs(1);

/// Settings that affect the speed and durability of a queue.
const SETTINGS: &str = "
SELECT name, current_setting(name) FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'shared_buffers', 'max_wal_size', 'min_wal_size',
  'autovacuum', 'max_connections', 'checkpoint_timeout')
ORDER BY name";

#[derive(Serialize)]
pub struct Machine {
    pub cores: usize,
    pub memory_gib: Option<f64>,
    pub kernel: String,
    /// Sequential syncs of 8 KiB each in the folder for temporary files.
    pub syncs_per_second: f64,
    pub postgres: Option<Postgres>,
}

#[derive(Serialize)]
pub struct Postgres {
    pub version: String,
    pub settings: Vec<(String, String)>,
}

impl Machine {
    pub async fn inspect(with_postgres: bool) -> Result<Machine, AnyError> {
        let postgres = match with_postgres {
            true => Some(postgres().await?),
            false => None,
        };
        Ok(Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_gib(&text)),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            syncs_per_second: syncs_per_second()?,
            postgres,
        })
    }
}

async fn postgres() -> Result<Postgres, AnyError> {
    let server = crate::postgres::url().ok_or("WINDLASS_TEST_POSTGRES is not set")?;
    let mut connection = PgConnection::connect(&server).await?;
    let version = sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?;
    let settings = sqlx::query_as(SETTINGS).fetch_all(&mut connection).await?;
    Ok(Postgres { version, settings })
}

fn memory_gib(meminfo: &str) -> Option<f64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kb| kb / 1024.0 / 1024.0)
}

fn syncs_per_second() -> Result<f64, AnyError> {
    let mut file = tempfile::tempfile()?;
    let (started, mut syncs) = (Instant::now(), 0);
    while started.elapsed() < PROBE_TIME {
        file.write_all(&[0; 8192])?;
        file.sync_data()?;
        syncs += 1;
    }
    Ok(f64::from(syncs) / started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_its_line() {
        assert_eq!(memory_gib("MemFree: 1 kB\nMemTotal:   2097152 kB\n"), None.or(Some(2.0)));
        assert_eq!(memory_gib("MemFree: 1 kB\n"), None);
    }
}
