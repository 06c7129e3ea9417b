//! `cargo xtask test`: everything the tests need, then all checks, tests and docs.

use crate::chromium;
use crate::drivers;
use crate::install;
use crate::postgres::{Cluster, URL_VARIABLE, cron, tell};
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
    steps.step("the library on SQLite alone", || library_on("sqlite"));
    steps.step("the library on PostgreSQL alone", || library_on("postgres"));
    steps.step("tests", || tests(args));
    steps.step("docs", || {
        let mut doc = cargo(["doc", "--workspace", "--no-deps"]);
        run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
}

/// Its tests need both, so this is about the library itself.
fn library_on(store: &str) -> Result {
    let lone =
        ["clippy", "-p", "windlass", "--lib", "--no-default-features", "--features", store, "--", "-D", "warnings"];
    run(&mut cargo(lone))
}

/// PostgreSQL, Chromium, and the programs and drivers that the documentation's examples call are part of the tests:
/// without them they fail, they are not skipped. Only tests of pg_cron are left out where there is none.
fn tests(args: &[String]) -> Result {
    install::programs(install::OF_THE_TESTS)?;
    let chromium = chromium::program()?;
    drivers::install()?;
    // Tests start the `windlass` binary. Built together with the tests, and not by `-p`, it shares
    // their features, so that nothing is compiled twice.
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
    run(tell(test.args(args), &url).env(chromium::VARIABLE, chromium))
}
