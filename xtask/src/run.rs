//! Runs commands so that Ctrl-C and SIGTERM end the command but not this program's cleanup.

use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The error is a sentence for the user.
pub type Result<T = ()> = std::result::Result<T, String>;

pub const POLL: Duration = Duration::from_millis(50);

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

/// From here on SIGINT, SIGTERM and SIGHUP are only counted; waiting code checks [`interrupted`].
pub fn catch_signals() {
    ctrlc::set_handler(|| {
        SIGNALS.fetch_add(1, Ordering::SeqCst);
    })
    .expect("the first and only signal handler");
}

pub fn interrupted() -> bool {
    SIGNALS.load(Ordering::SeqCst) > 0
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository")
}

/// A path in the folder of cargo's build results, which contains this program.
pub fn build_folder_path(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let folder = own.parent().ok_or("this program is in no folder")?;
    Ok(folder.join(name))
}

/// A folder in cargo's target folder for files that a command keeps; created if missing.
pub fn target_folder(name: &str) -> Result<PathBuf> {
    let target = build_folder_path("..")?;
    let folder = target.canonicalize().map_err(|error| format!("{}: {error}", target.display()))?.join(name);
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    Ok(folder)
}

pub fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs `command` to its end. Passes on the first signal as SIGTERM and later ones as SIGKILL.
pub fn run(command: &mut Command) -> Result {
    // On a terminal the command stays in this process group: it may read the keyboard, and Ctrl-C reaches all its
    // children. Otherwise it gets its own group, which can be signaled as a whole.
    let own_group = !io::stdin().is_terminal();
    if own_group {
        command.process_group(0);
    }
    // Cargo's variables for this package would make cargo rebuild packages that read them.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    let name = command.get_program().display().to_string();
    let mut child = command.spawn().map_err(|error| format!("cannot run {name}: {error}"))?;
    let target = if own_group { format!("-{}", child.id()) } else { child.id().to_string() };
    let mut passed_on = 0;
    loop {
        let ended = child.try_wait().map_err(|error| format!("cannot wait for {name}: {error}"))?;
        let signals = SIGNALS.load(Ordering::SeqCst);
        match ended {
            Some(_) if signals > 0 => return Err("interrupted".into()),
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{name}: {status}")),
            None => {}
        }
        if signals > passed_on {
            signal(if passed_on == 0 { "TERM" } else { "KILL" }, &target);
            passed_on = signals;
        }
        std::thread::sleep(POLL);
    }
}

/// Sends a signal to a process, or to a group if `target` is negative. Uses the shell's `kill`, since small images
/// have no /bin/kill.
pub fn signal(name: &str, target: &str) {
    let _ = Command::new("sh").args(["-c", &format!("kill -s {name} -- {target}")]).stderr(Stdio::null()).status();
}

/// The output of a command without the newline; `None` if it fails or does not exist.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

/// Named steps that all run, even after a failure, with a summary at the end.
pub struct Steps {
    started: Instant,
    passed: usize,
    failed: Vec<String>,
}

impl Steps {
    pub fn new() -> Self {
        Self { started: Instant::now(), passed: 0, failed: Vec::new() }
    }

    pub fn step(&mut self, name: &str, body: impl FnOnce() -> Result) {
        if interrupted() {
            return;
        }
        println!("\n== {name}");
        let started = Instant::now();
        let result = body();
        let took = elapsed(started.elapsed());
        match result {
            Ok(()) => {
                println!("== {name}: passed, {took}");
                self.passed += 1;
            }
            Err(error) => {
                println!("== {name}: FAILED, {took}: {error}");
                self.failed.push(name.to_owned());
            }
        }
    }

    pub fn finish(self) -> Result {
        let took = elapsed(self.started.elapsed());
        let (passed, failed) = (self.passed, self.failed.len());
        println!();
        if interrupted() {
            Err(format!("interrupted: {passed} steps had passed, {took}"))
        } else if failed > 0 {
            let names = self.failed.join(", ");
            Err(format!("FAILED: {passed} steps passed, {failed} failed ({names}), {took}"))
        } else {
            println!("{passed} steps passed, 0 failed, {took}");
            Ok(())
        }
    }
}

fn elapsed(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        secs => format!("{} min {:02} s", secs / 60, secs % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_step_is_counted_and_the_next_one_runs() {
        let mut steps = Steps::new();
        steps.step("first", || run(Command::new("false").arg("x")));
        steps.step("second", || run(&mut Command::new("true")));
        let error = steps.finish().unwrap_err();
        assert!(error.contains("1 steps passed, 1 failed (first)"), "{error}");
    }

    #[test]
    fn missing_program_is_named() {
        let error = run(&mut Command::new("/no/such/program")).unwrap_err();
        assert!(error.starts_with("cannot run /no/such/program"), "{error}");
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(elapsed(Duration::from_millis(1_250)), "1.2 s");
        assert_eq!(elapsed(Duration::from_secs(605)), "10 min 05 s");
    }
}
