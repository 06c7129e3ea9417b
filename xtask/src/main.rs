//! `cargo xtask`: the project's own build and test commands. This file parses the command and maps its result to an
//! exit code; each command has its own file.

mod acceptance;
mod chromium;
mod drivers;
mod install;
mod openapi;
mod postgres;
mod run;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  test [--fast] [-- ARGS]   formatting, tidy, clippy, the library with each store alone, every test
                            (ARGS go to `cargo test`), docs; --fast: only the tests
  tidy                      the rules of CONTRIBUTING.md that a program can check
  acceptance                write the table of tests in docs/acceptance.md
  postgres [--durable] [-- COMMAND]
                            a throw-away PostgreSQL for COMMAND, or until Ctrl-C;
                            --durable: fsync on and more memory, for benchmarks
  openapi-check [-- ARGS]   check the server against its OpenAPI document with Schemathesis
                            (ARGS go to it), which is installed under target/

Tests use the PostgreSQL at $WINDLASS_TEST_POSTGRES (a postgres:// URL of a role that may create
databases). If it is not set, `test` starts a throw-away server of its own. `postgres` always
starts its own. They use the dashboard in the Chromium at $WINDLASS_TEST_CHROMIUM, or the one in PATH.
If missing, PostgreSQL, pg_cron, Chromium, curl, python3, node and npm are installed with apt-get, provided
that needs no password. Without pg_cron its tests are skipped with a message. The drivers psycopg and pg are
installed under target/, unless $WINDLASS_TEST_PYTHON is a Python with psycopg and
$WINDLASS_TEST_NODE_FOLDER a folder with pg in its node_modules.

Exit codes: 0 fine, 1 something failed, 2 wrong usage, 130 interrupted.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let split = args.iter().position(|arg| arg == "--");
    let own: Vec<&str> = args[..split.unwrap_or(args.len())].iter().map(String::as_str).collect();
    let rest = split.map_or(&[][..], |at| &args[at + 1..]);

    run::catch_signals();
    let result = match (own.as_slice(), rest) {
        ([] | ["help" | "--help" | "-h", ..] | [_, "--help" | "-h"], _) => {
            print!("{HELP}");
            Ok(())
        }
        (["test"], args) => test::test(args),
        (["test", "--fast"], args) => test::fast(args),
        (["tidy"], []) => tidy::tidy(),
        (["acceptance"], []) => tidy::paths().and_then(|paths| acceptance::write(&paths)),
        (["openapi-check"], args) => openapi::check(args),
        (["postgres"], command) => postgres::postgres(false, command),
        (["postgres", "--durable"], command) => postgres::postgres(true, command),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if run::interrupted() { 130 } else { 1 })
        }
    }
}
