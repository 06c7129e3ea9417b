//! A process that is ended together with all that it has started.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::AnyError;

/// How long it may take to end when it is asked to.
const END_MAX: Duration = Duration::from_secs(10);

/// The process leads a group of its own, which is ended when this is dropped.
pub struct Group(pub Child);

impl Group {
    pub fn start(command: &mut Command) -> Result<Group, AnyError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let started = command.process_group(0).spawn();
        started.map(Group).map_err(|error| format!("cannot run {program}: {error}").into())
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Whether it ended in time.
    fn wait(&mut self) -> bool {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() > END_MAX {
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

impl Drop for Group {
    fn drop(&mut self) {
        // What it has started may be there still when it is not.
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
    fn what_it_has_started_ends_with_it() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & wait"]).stdout(Stdio::piped());
        let mut group = Group::start(&mut shell).unwrap();
        let mut stdout = group.0.stdout.take().unwrap();
        drop(group);
        // The sleeper has the same stdout: it is at its end once both are gone.
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0);
    }
}
