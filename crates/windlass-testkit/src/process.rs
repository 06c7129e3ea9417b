//! Signals to child processes.

use std::process::Command;

/// Sends a signal, such as `TERM`, to a process.
pub fn send_signal(process_id: u32, signal: &str) {
    let status = Command::new("kill").args(["-s", signal, &process_id.to_string()]).status();
    assert!(status.expect("the program `kill` can be started").success(), "cannot signal process {process_id}");
}
