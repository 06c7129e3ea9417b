//! Child processes of a test. The test binary starts itself, and the test kills or stops the child.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use windlass::Queue;
use windlass_testkit::send_signal;

use crate::bed::Bed;

const ROLE: &str = "WINDLASS_CHILD";
const URL: &str = "WINDLASS_CHILD_URL";
const LINES_FILE: &str = "WINDLASS_CHILD_NOTES";
/// Prefix of the lines that a child prints for the test. The rest of its output comes from the test harness.
const LINE_PREFIX: &str = "child: ";

/// The entry point of child processes. As a test of its own, it does nothing.
#[test]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    exit_with_the_test();
    let url = std::env::var(URL).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if let Some(clock) = role.strip_prefix("fire ") {
            return crate::schedule_race::run_child(&url, clock).await;
        }
        let queue = Queue::open(&url).await.unwrap().in_namespace("ns").unwrap();
        match role.strip_prefix("node ") {
            Some(handlers) => crate::node_crash::run_child(queue, handlers).await,
            None if role == "route" => crate::routing::run_child(queue).await,
            None => crate::crash::run_child(queue, &role).await,
        }
    });
}

/// Exits when stdin is closed, which happens however the test ends.
fn exit_with_the_test() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

/// Prints a line for the test, and flushes it: the test reads it only after the step is done.
pub fn print_for_test(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{LINE_PREFIX}{line}").unwrap();
    out.flush().unwrap();
}

/// Appends a line to a file that all children of a test share. The line survives a kill.
pub fn record_line(line: impl std::fmt::Display) {
    let mut file = File::options().append(true).create(true).open(std::env::var(LINES_FILE).unwrap()).unwrap();
    // One write per line, because other children append to the file concurrently.
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The lines that the children of this test recorded, in order.
pub fn recorded_lines(bed: &Bed) -> Vec<String> {
    let text = fs::read_to_string(lines_file(bed)).unwrap_or_default();
    // Leaves out a line that is still being written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(str::to_owned).collect()
}

fn lines_file(bed: &Bed) -> PathBuf {
    bed.database.folder.path().join("lines")
}

/// A child process. It is killed when this is dropped.
pub struct Process(Child);

impl Process {
    pub fn start(bed: &Bed, role: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::child_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(URL, &bed.database.url).env(LINES_FILE, lines_file(bed));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process(command.spawn().expect("the test binary can run itself"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The ids that the child prints, in order, until it exits.
    pub fn ids(&mut self) -> impl Iterator<Item = i64> + use<> {
        let out = BufReader::new(self.0.stdout.take().unwrap());
        let printed =
            out.lines().map(Result::unwrap).filter_map(|line| line.strip_prefix(LINE_PREFIX).map(str::to_owned));
        printed.flat_map(|line| line.split(' ').map(|id| id.parse().unwrap()).collect::<Vec<i64>>())
    }

    /// Kills the child like `kill -9`.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Sends SIGTERM, like a deploy.
    pub fn terminate(&self) {
        send_signal(self.pid(), "TERM");
    }

    /// Waits until the child exits by itself.
    pub fn wait(&mut self) -> ExitStatus {
        // Unlike `Child::wait`, this leaves the child's stdin open.
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
