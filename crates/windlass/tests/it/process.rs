//! Real processes: the test binary starts itself, to be killed or stopped by the test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use windlass::Queue;

use crate::bed::Bed;

const ROLE: &str = "WINDLASS_CHILD";
const URL: &str = "WINDLASS_CHILD_URL";
const NOTES: &str = "WINDLASS_CHILD_NOTES";
/// What a child has to say begins with this; the rest of its output is the test harness's.
const SAYS: &str = "child: ";

/// Not a test of its own: the body of the processes that tests start.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    end_with_the_test();
    let url = std::env::var(URL).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if let Some(clock) = role.strip_prefix("fire ") {
            return crate::schedule_race::child(&url, clock).await;
        }
        let queue = Queue::open(&url).await.unwrap().in_namespace("ns").unwrap();
        match role.strip_prefix("node ") {
            Some(handlers) => crate::node_crash::child(queue, handlers).await,
            None if role == "route" => crate::routing::child(queue).await,
            None => crate::crash::child(queue, &role).await,
        }
    });
}

/// The other end of our input goes away with the test, however that ends.
fn end_with_the_test() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

/// Says something, at once: what is said has happened.
pub fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{SAYS}{what}").unwrap();
    out.flush().unwrap();
}

/// Adds a line to the notes that all children of a test share. It outlives the process.
pub fn note(line: impl std::fmt::Display) {
    let mut notes = File::options().append(true).create(true).open(std::env::var(NOTES).unwrap()).unwrap();
    // In one piece: others are writing, too.
    notes.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// What the children of this test noted, in order.
pub fn notes(bed: &Bed) -> Vec<String> {
    let text = fs::read_to_string(file_of_notes(bed)).unwrap_or_default();
    // A line that is being written is not there yet.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(str::to_owned).collect()
}

fn file_of_notes(bed: &Bed) -> PathBuf {
    bed.database.folder.path().join("notes")
}

/// A process of ours, killed with the test if not before.
pub struct Process(Child);

impl Process {
    pub fn start(bed: &Bed, role: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::child", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(URL, &bed.database.url).env(NOTES, file_of_notes(bed));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process(command.spawn().expect("the test binary can run itself"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The ids it says, in order, until it ends.
    pub fn ids(&mut self) -> impl Iterator<Item = i64> + use<> {
        let out = BufReader::new(self.0.stdout.take().unwrap());
        let said = out.lines().map(Result::unwrap).filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned));
        said.flat_map(|line| line.split(' ').map(|id| id.parse().unwrap()).collect::<Vec<i64>>())
    }

    /// As `kill -9` does it.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Asks it to end, as a deploy does.
    pub fn terminate(&self) {
        let kill = format!("kill -s TERM {}", self.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        // Unlike `Child::wait`, this leaves its input open.
        loop {
            if let Some(ended) = self.0.try_wait().unwrap() {
                return ended;
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
