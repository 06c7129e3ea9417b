//! `cargo xtask test`: installs what the tests need, then runs all checks, tests and docs.

use crate::chromium;
use crate::drivers;
use crate::install;
use crate::postgres::{Cluster, URL_VARIABLE, cron, set_test_environment};
use crate::run::{Result, Steps, cargo, run};
use crate::tidy;

pub fn test(args: &[String]) -> Result {
    let mut steps = Steps::new();
    all(&mut steps, args);
    steps.finish()
}

pub fn fast(args: &[String]) -> Result {
    let mut steps = Steps::new();
    steps.step("tests", || tests(args));
    steps.finish()
}

pub fn all(steps: &mut Steps, args: &[String]) {
    steps.step("format", || run(&mut cargo(["fmt", "--all", "--check"])));
    steps.step("tidy", tidy::tidy);
    steps.step("clippy", || run(&mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])));
    steps.step("the library on SQLite alone", || check_library_with("sqlite"));
    steps.step("the library on PostgreSQL alone", || check_library_with("postgres"));
    steps.step("tests", || tests(args));
    steps.step("docs", || {
        let mut doc = cargo(["doc", "--workspace", "--no-deps"]);
        run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
}

/// Checks only the library, because its tests need both stores.
fn check_library_with(store: &str) -> Result {
    let lone =
        ["clippy", "-p", "windlass", "--lib", "--no-default-features", "--features", store, "--", "-D", "warnings"];
    run(&mut cargo(lone))
}

/// Runs the tests. PostgreSQL, Chromium, and the programs and drivers that the documentation's examples use are
/// required: without them tests fail. Only tests of pg_cron are skipped if it is missing.
fn tests(args: &[String]) -> Result {
    install::programs(install::TEST_PROGRAMS)?;
    let chromium = chromium::program()?;
    drivers::install()?;
    // Tests start the `windlass` binary. Building it together with the tests, not with `-p`, gives it the same
    // features, so that nothing is compiled twice.
    run(&mut cargo(["build", "--workspace", "--bins", "--tests", "--examples"]))?;

    let cluster;
    let url = match std::env::var(URL_VARIABLE) {
        Ok(url) if !url.is_empty() => url,
        _ => {
            cluster = Cluster::start(false)?;
            cluster.url.clone()
        }
    };
    cron::install();
    let mut test = cargo(["test", "--workspace", "--no-fail-fast"]);
    run(set_test_environment(test.args(args), &url).env(chromium::VARIABLE, chromium))
}
