//! A child process that is stopped together with its own children.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::AnyError;

/// How long the process may take to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The leader of a new process group; the group is stopped when this is dropped.
pub struct ProcessGroup(pub Child);

impl ProcessGroup {
    pub fn start(command: &mut Command) -> Result<ProcessGroup, AnyError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let started = command.process_group(0).spawn();
        started.map(ProcessGroup).map_err(|error| format!("cannot run {program}: {error}").into())
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits for the process; returns whether it ended in time.
    fn wait(&mut self) -> bool {
        let started = Instant::now();
        while !self.has_ended() {
            if started.elapsed() > STOP_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn signal(&self, name: &str) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-s", name, "--", &group]).stderr(std::process::Stdio::null()).status();
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Children may outlive the leader, so signal the group in any case.
        if !self.has_ended() {
            self.signal("TERM");
            self.wait();
        }
        self.signal("KILL");
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn child_processes_are_stopped_too() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & wait"]).stdout(Stdio::piped());
        let mut group = ProcessGroup::start(&mut shell).unwrap();
        let mut stdout = group.0.stdout.take().unwrap();
        drop(group);
        // The child shares stdout, which reaches its end when both processes are gone.
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0);
    }
}
