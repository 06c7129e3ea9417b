//! CPU time and memory of a process, from /proc.

use std::fs;
use std::time::Duration;

/// The kernel's clock tick: 10 ms on all supported systems.
const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// User and system time since the process started.
    pub cpu: Duration,
    pub rss_kb: u64,
}

impl Usage {
    /// `None` if there is no such process or no /proc.
    pub fn of(pid: u32) -> Option<Usage> {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        Some(Usage { cpu: cpu(&read("stat")?)?, rss_kb: rss_kb(&read("status")?)? })
    }

    pub fn rss_mb(&self) -> f64 {
        self.rss_kb as f64 / 1024.0
    }
}

fn cpu(stat: &str) -> Option<Duration> {
    // The process name, in parentheses, may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u32>().ok()? + fields.next()?.parse::<u32>().ok()?;
    Some(TICK * ticks)
}

fn rss_kb(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_user_plus_system() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1234 0 5 0 150 25 0 0 20 0 3 0 99 1000 200";
        assert_eq!(cpu(stat), Some(Duration::from_millis(1750)));
        assert_eq!(cpu("7 (a) S 1"), None);
    }

    #[test]
    fn rss_is_read_from_its_line() {
        assert_eq!(rss_kb("Name:\ta\nVmHWM:\t 20 kB\nVmRSS:\t   10 kB\n"), Some(10));
        assert_eq!(rss_kb("Name:\ta\n"), None);
    }
}
