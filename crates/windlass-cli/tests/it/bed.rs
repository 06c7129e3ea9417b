//! What a test of commands stands on: a database with something in it, reached by itself or through a server.

use axum::body::Body;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use windlass::Queue;
use windlass_server::Inside;

use crate::docs::volatile::normalised;
use crate::windlass::{Server, sqlite_url, windlass};

/// Makes `sqlite::name`, `postgres::name` and `server::name` out of each function: what they print must be the same.
macro_rules! on_each_reach {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[test] fn $name() { super::$name(crate::bed::Bed::sqlite()) })*
        }
        mod postgres {
            $(#[test] fn $name() { super::$name(crate::bed::Bed::postgres()) })*
        }
        mod server {
            $(#[test] fn $name() { super::$name(crate::bed::Bed::server()) })*
        }
    };
}

/// What a test begins with: requests to the API, as method, path and body.
pub type Seed<'a> = &'a [(&'a str, &'a str, &'a str)];

pub struct Bed {
    folder: TempDir,
    url: String,
    /// Where a database has to be dropped, and its name there.
    postgres: Option<(String, String)>,
    through_server: bool,
    server: Option<Server>,
    printed: String,
}

impl Bed {
    pub fn sqlite() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let url = sqlite_url(folder.path());
        Bed { folder, url, postgres: None, through_server: false, server: None, printed: String::new() }
    }

    pub fn postgres() -> Bed {
        let server = match std::env::var("WINDLASS_TEST_POSTGRES") {
            Ok(url) if !url.is_empty() => url,
            _ => panic!("WINDLASS_TEST_POSTGRES is not set: run the tests with `cargo xtask test`"),
        };
        let mut bed = Bed::sqlite();
        // The folder's name is unique on this machine, and so is the database's.
        let unique = bed.folder.path().file_name().unwrap().to_str().unwrap().trim_start_matches(".tmp").to_lowercase();
        let name = format!("windlass_cli_{unique}_{}", std::process::id());
        execute(&server, format!("CREATE DATABASE {name}"));
        let (place, options) = server.split_once('?').map_or((&server[..], ""), |(place, options)| (place, options));
        let (place, _) = place.rsplit_once('/').expect("WINDLASS_TEST_POSTGRES names a database");
        bed.url = format!("{place}/{name}?{options}").trim_end_matches('?').to_owned();
        bed.postgres = Some((server, name));
        bed
    }

    pub fn server() -> Bed {
        let mut bed = Bed::sqlite();
        bed.through_server = true;
        bed
    }

    /// Fills the database, as if it had happened before.
    pub fn seed(&mut self, seed: Seed) -> &mut Bed {
        runtime().block_on(async {
            let queue = Queue::open(&self.url).await.unwrap();
            let inside = Inside::new(queue.clone());
            for (method, path, body) in seed {
                let request = Request::builder().method(*method).uri(*path).header(CONTENT_TYPE, "application/json");
                let response = inside.call(request.body(Body::from((*body).to_owned())).unwrap()).await;
                assert!(response.status().is_success(), "{method} {path}: {}", response.status());
            }
            queue.close().await;
        });
        if self.through_server {
            self.server = Some(Server::start(&self.url));
        }
        self
    }

    /// The options that lead here.
    pub fn reach(&self) -> [String; 2] {
        match &self.server {
            Some(server) => ["--server".to_owned(), format!("http://{}", server.address())],
            None => ["--database".to_owned(), self.url.clone()],
        }
    }

    /// Runs a command and writes down what it prints, without what differs from time to time. Words are separated by
    /// spaces; quotes keep them together.
    pub fn run(&mut self, line: &str) -> &mut Bed {
        let (code, stdout, stderr) = self.raw(line);
        let stdout = steady(&stdout);
        let code = if code == 0 { String::new() } else { format!("[exit code {code}]\n") };
        self.printed += &format!("$ windlass {line}\n{stdout}{}{code}\n", steady(&stderr));
        self
    }

    /// Exit code, stdout and stderr.
    pub fn raw(&self, line: &str) -> (i32, String, String) {
        let words = words(line);
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = windlass(&args);
        command.args(self.reach()).current_dir(self.folder.path());
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// What the server says at a path.
    pub fn asked(&self, path: &str) -> Option<Value> {
        self.server.as_ref().map(|server| server.json("GET", path, "", 200))
    }

    /// Everything that was printed must be as it is on record. `INSTA_UPDATE=always` records it.
    pub fn check(&mut self, name: &str) {
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, self.printed));
    }

    pub fn file(&self, name: &str, contents: &str) {
        std::fs::write(self.folder.path().join(name), contents).unwrap();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some((server, name)) = self.postgres.take() {
            execute(&server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn execute(url: &str, sql: String) {
    runtime().block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        connection.execute(AssertSqlSafe(sql)).await.unwrap();
        connection.close().await.unwrap();
    });
}

/// A line as a shell would split it, with single quotes only.
fn words(line: &str) -> Vec<String> {
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

/// Without instants, ages, ids and the like; where ages stand in columns, without their alignment.
fn steady(text: &str) -> String {
    let mut steady = String::new();
    let in_columns = text.lines().any(|line| age_at(line).is_some_and(|(from, _)| !line[..from].ends_with('(')));
    for line in text.lines() {
        let mut line = line.to_owned();
        while let Some((from, to)) = age_at(&line) {
            line.replace_range(from..to, "<Age>");
        }
        line = if in_columns { squeezed(&line) } else { line };
        while let Some((from, to)) = time_at(&line) {
            line.replace_range(from..to, "<Time>");
        }
        let line = normalised(&without_chart(&counted_out(&line)));
        // Columns stay where they are.
        steady += &format!("{}\n", line.replace("<Time>  ", &format!("{:20}  ", "<Time>")));
    }
    steady
}

/// Where the first age is: `12 s ago`, `in 3 min`.
fn age_at(line: &str) -> Option<(usize, usize)> {
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

/// Where the first instant is.
fn time_at(line: &str) -> Option<(usize, usize)> {
    const FORM: &str = "0000-00-00T00:00:00";
    let form: String = line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let from = form.find(FORM)?;
    let to = from + FORM.len() + form[from + FORM.len()..].find('Z')? + 1;
    Some((from, to))
}

/// Two spaces where there were more, except at the beginning.
fn squeezed(line: &str) -> String {
    let body = line.trim_start();
    let mut squeezed = line[..line.len() - body.len()].to_owned();
    if !squeezed.is_empty() {
        squeezed = "  ".to_owned();
    }
    let parts: Vec<&str> = body.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
    squeezed + &parts.join("  ")
}

/// How much had to be looked at is up to the store.
fn counted_out(line: &str) -> String {
    match line.split_once("\"looked_at\":") {
        Some((before, after)) => {
            format!("{before}\"looked_at\":<N>{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line.to_owned(),
    }
}

/// When something happened decides where its bar stands.
fn without_chart(line: &str) -> String {
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
fn what_differs_from_time_to_time_is_taken_out() {
    assert_eq!(words("get 'a b' --x ''"), ["get", "a b", "--x", ""]);
    assert_eq!(steady("at 2025-12-24T10:30:00Z (12 s ago)\n"), "at <Time> (<Age>)\n");
    assert_eq!(steady("2025-12-24T10:30:00Z  at 2025-12-24T10:30:00Z.\n"), "<Time>                at <Time>.\n");
    assert_eq!(steady("ID    SEEN\n 1   3 min ago\n"), "ID  SEEN\n  1  <Age>\n");
    assert_eq!(steady("next in 15 h, took 12 s\n"), "next <Age>, took 12 s\n");
    assert_eq!(steady("{\"looked_at\":123}\n"), "{\"looked_at\":<N>}\n");
    assert_eq!(steady("failed     ▁  █    2  0.1\n"), "failed  <Chart>  2  0.1\n");
}
