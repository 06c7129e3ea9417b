//! A headless Chromium with its own profile. It ends with the process that started it.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Set by `cargo xtask test`.
const VARIABLE: &str = "WINDLASS_TEST_CHROMIUM";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

const FLAGS: &str = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --disable-dev-shm-usage --disable-extensions --hide-scrollbars \
    --remote-debugging-port=0 about:blank";

/// Ends Chromium when this process closes its end of the pipe, or is killed.
const WATCHDOG: &str = r#""$@" & exec 2>&-; trap '' INT TERM; read -r _; kill -9 $!; wait $!"#;

pub struct Chromium {
    watchdog: Child,
    /// URL of the DevTools endpoint.
    pub url: String,
    _profile: TempDir,
}

impl Chromium {
    pub fn start() -> Chromium {
        let program = program();
        let profile = tempfile::tempdir().unwrap();
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "sh"])
            .arg(&program)
            .args(FLAGS.split_whitespace())
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr_lines = BufReader::new(watchdog.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut seen = Vec::new();
        let url = stderr_lines.by_ref().find_map(|line| {
            let url = line.strip_prefix("DevTools listening on ").map(str::to_owned);
            seen.push(line);
            url
        });
        // Chromium keeps writing to stderr, and would block if the pipe were full.
        std::thread::spawn(move || stderr_lines.for_each(drop));
        let Some(url) = url else { panic!("{} did not start:\n{}", program.display(), seen.join("\n")) };
        Chromium { watchdog, url, _profile: profile }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

fn program() -> PathBuf {
    if let Some(program) = env::var_os(VARIABLE).filter(|program| !program.is_empty()) {
        return program.into();
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&folders).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    candidates.find(|path| Path::is_file(path)).unwrap_or_else(|| {
        panic!("no Chromium in PATH: install it (`apt-get install chromium`), or set {VARIABLE} to the path of one")
    })
}
