//! A headless Chromium with a profile of its own, which ends when whoever started it does.

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

/// Ends Chromium when our end of the pipe is closed: by us, or by the system if we are killed.
const KEEPER: &str = r#""$@" & exec 2>&-; trap '' INT TERM; read -r _; kill -9 $!; wait $!"#;

pub struct Chromium {
    keeper: Child,
    /// Where it takes commands.
    pub url: String,
    _profile: TempDir,
}

impl Chromium {
    pub fn start() -> Chromium {
        let program = program();
        let profile = tempfile::tempdir().unwrap();
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(&program)
            .args(FLAGS.split_whitespace())
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(keeper.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut heard = Vec::new();
        let url = said.by_ref().find_map(|line| {
            let url = line.strip_prefix("DevTools listening on ").map(str::to_owned);
            heard.push(line);
            url
        });
        // It goes on talking, and would stop if nobody read that.
        std::thread::spawn(move || said.for_each(drop));
        let Some(url) = url else { panic!("{} did not start:\n{}", program.display(), heard.join("\n")) };
        Chromium { keeper, url, _profile: profile }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
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
