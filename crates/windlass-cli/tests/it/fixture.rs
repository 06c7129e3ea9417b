//! Runs commands on a seeded database, directly or through a server, and compares the output with snapshots.

use axum::body::Body;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use serde_json::Value;
use windlass_server::InProcessApi;
use windlass_testkit::{Database, Kind, block_on};

use crate::docs::volatile::normalized;
use crate::windlass::{Server, windlass};

/// Defines the tests `sqlite::name`, `postgres::name` and `server::name` for each function. All use the same snapshot.
macro_rules! snapshot_on_each_target {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[test] fn $name() { super::$name(crate::fixture::CliFixture::sqlite()) })*
        }
        mod postgres {
            $(#[test] fn $name() { super::$name(crate::fixture::CliFixture::postgres()) })*
        }
        mod server {
            $(#[test] fn $name() { super::$name(crate::fixture::CliFixture::server()) })*
        }
    };
}

/// Requests that fill the database, as method, path and body.
pub type Seed<'a> = &'a [(&'a str, &'a str, &'a str)];

/// A database and everything that the commands of a test have printed.
pub struct CliFixture {
    database: Database,
    through_server: bool,
    server: Option<Server>,
    transcript: String,
}

impl CliFixture {
    pub fn sqlite() -> CliFixture {
        CliFixture::on(Kind::Sqlite)
    }

    pub fn postgres() -> CliFixture {
        CliFixture::on(Kind::Postgres)
    }

    pub fn server() -> CliFixture {
        CliFixture { through_server: true, ..CliFixture::on(Kind::Sqlite) }
    }

    fn on(kind: Kind) -> CliFixture {
        let database = Database::empty(kind);
        CliFixture { database, through_server: false, server: None, transcript: String::new() }
    }

    /// Sends the requests to the database, and then starts the server if the test uses one.
    pub fn seed(&mut self, seed: Seed) -> &mut CliFixture {
        block_on(async {
            let queue = self.database.open().await;
            let api = InProcessApi::new(queue.clone());
            for (method, path, body) in seed {
                let request = Request::builder().method(*method).uri(*path).header(CONTENT_TYPE, "application/json");
                let response = api.call(request.body(Body::from((*body).to_owned())).unwrap()).await;
                assert!(response.status().is_success(), "{method} {path}: {}", response.status());
            }
            queue.close().await;
        });
        if self.through_server {
            self.server = Some(Server::start(&self.database.url));
        }
        self
    }

    /// Returns the options that select the database or the server.
    pub fn target_args(&self) -> [String; 2] {
        match &self.server {
            Some(server) => ["--server".to_owned(), format!("http://{}", server.address())],
            None => ["--database".to_owned(), self.database.url.clone()],
        }
    }

    /// Runs a command and appends its normalized output to the transcript. Words are separated by spaces; single quotes
    /// keep them together.
    pub fn run(&mut self, line: &str) -> &mut CliFixture {
        let (code, stdout, stderr) = self.output_of(line);
        let stdout = normalize(&stdout);
        let code = if code == 0 { String::new() } else { format!("[exit code {code}]\n") };
        self.transcript += &format!("$ windlass {line}\n{stdout}{}{code}\n", normalize(&stderr));
        self
    }

    /// Runs a command. Returns exit code, stdout and stderr.
    pub fn output_of(&self, line: &str) -> (i32, String, String) {
        let words = split_words(line);
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = windlass(&args);
        command.args(self.target_args()).current_dir(self.database.folder.path());
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Returns the server's response at a path, or `None` without a server.
    pub fn server_response(&self, path: &str) -> Option<Value> {
        self.server.as_ref().map(|server| server.json("GET", path, "", 200))
    }

    /// Compares the transcript with the snapshot. `INSTA_UPDATE=always` updates the snapshot.
    pub fn assert_snapshot(&mut self, name: &str) {
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, self.transcript));
    }

    pub fn write_file(&self, name: &str, contents: &str) {
        std::fs::write(self.database.folder.path().join(name), contents).unwrap();
    }
}

/// Splits a line like a shell, with single quotes only.
fn split_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.into_iter().chain(word).collect()
}

/// Replaces timestamps, ages, ids and the like. If ages are in columns, the alignment is removed as well.
fn normalize(text: &str) -> String {
    let mut normalized_text = String::new();
    let in_columns = text.lines().any(|line| find_age(line).is_some_and(|(from, _)| !line[..from].ends_with('(')));
    for line in text.lines() {
        let mut line = line.to_owned();
        while let Some((from, to)) = find_age(&line) {
            line.replace_range(from..to, "<Age>");
        }
        line = if in_columns { collapse_spaces(&line) } else { line };
        while let Some((from, to)) = find_timestamp(&line) {
            line.replace_range(from..to, "<Time>");
        }
        let line = normalized(&mask_chart(&mask_looked_at(&line)));
        // Pad the placeholder to the length of a timestamp to keep the columns.
        normalized_text += &format!("{}\n", line.replace("<Time>  ", &format!("{:20}  ", "<Time>")));
    }
    normalized_text
}

/// Returns the position of the first age, such as `12 s ago` or `in 3 min`.
fn find_age(line: &str) -> Option<(usize, usize)> {
    const UNITS: [&str; 4] = [" min", " s", " h", " d"];
    let digits = |c: char| c.is_ascii_digit();
    for (at, _) in line.match_indices(digits) {
        if line[..at].ends_with(digits) {
            continue;
        }
        let end = at + line[at..].find(|c| !digits(c)).unwrap_or(line.len() - at);
        let Some(unit) = UNITS.into_iter().find(|unit| line[end..].starts_with(unit)) else { continue };
        let end = end + unit.len();
        match (line[..at].ends_with("in "), line[end..].strip_prefix(" ago")) {
            (true, _) => return Some((at - 3, end)),
            (_, Some(_)) => return Some((at, end + 4)),
            _ => {}
        }
    }
    None
}

/// Returns the position of the first timestamp.
fn find_timestamp(line: &str) -> Option<(usize, usize)> {
    const FORM: &str = "0000-00-00T00:00:00";
    let form: String = line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let from = form.find(FORM)?;
    let to = from + FORM.len() + form[from + FORM.len()..].find('Z')? + 1;
    Some((from, to))
}

/// Replaces longer gaps by two spaces, and also the indentation.
fn collapse_spaces(line: &str) -> String {
    let body = line.trim_start();
    let mut squeezed = line[..line.len() - body.len()].to_owned();
    if !squeezed.is_empty() {
        squeezed = "  ".to_owned();
    }
    let parts: Vec<&str> = body.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
    squeezed + &parts.join("  ")
}

/// Masks `looked_at`, which depends on the store.
fn mask_looked_at(line: &str) -> String {
    match line.split_once("\"looked_at\":") {
        Some((before, after)) => {
            format!("{before}\"looked_at\":<N>{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line.to_owned(),
    }
}

/// Masks bars, whose position depends on the current time.
fn mask_chart(line: &str) -> String {
    let is_bar = |c: char| ('▁'..='█').contains(&c);
    match (line.find(is_bar), line.rfind(is_bar)) {
        (Some(first), Some(last)) => {
            let (before, after) = (line[..first].trim_end(), line[last + '█'.len_utf8()..].trim_start());
            format!("{before}  <Chart>  {after}")
        }
        _ => line.to_owned(),
    }
}

#[test]
fn volatile_output_is_normalized() {
    assert_eq!(split_words("get 'a b' --x ''"), ["get", "a b", "--x", ""]);
    assert_eq!(normalize("at 2025-12-24T10:30:00Z (12 s ago)\n"), "at <Time> (<Age>)\n");
    assert_eq!(normalize("2025-12-24T10:30:00Z  at 2025-12-24T10:30:00Z.\n"), "<Time>                at <Time>.\n");
    assert_eq!(normalize("ID    SEEN\n 1   3 min ago\n"), "ID  SEEN\n  1  <Age>\n");
    assert_eq!(normalize("next in 15 h, took 12 s\n"), "next <Age>, took 12 s\n");
    assert_eq!(normalize("{\"looked_at\":123}\n"), "{\"looked_at\":<N>}\n");
    assert_eq!(normalize("failed     ▁  █    2  0.1\n"), "failed  <Chart>  2  0.1\n");
}
