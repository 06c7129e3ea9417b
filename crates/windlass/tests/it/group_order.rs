//! Random workloads on groups, recorded and checked against the guarantees of `docs/ordering.md`.
//!
//! A failure prints the seed. The same seed repeats the calls, but not how the threads interleave. Start in
//! `workload.rs`, which runs the calls and records a `history.rs`; `check.rs` finds violations in it.

mod check;
mod history;
mod workload;

use self::check::{Violation, check};
use self::history::History;
use self::workload::{Settings, Workload};
use crate::bed::Bed;
use crate::support::SeedOnPanic;

/// Runs a random workload, and passes its history to `verify`.
async fn run(bed: &Bed, settings: Settings, verify: impl Fn(&History)) {
    let seed = SeedOnPanic(fastrand::u64(..));
    verify(&Workload::start(bed, settings, seed.0).await.run().await);
}

/// Panics with the first violations and the records of their events.
fn assert_no_violations(history: &History) {
    let violations = check(history);
    let report: Vec<String> = violations.iter().take(5).map(|violation| violation.describe(history)).collect();
    assert!(violations.is_empty(), "{} violations, such as\n{}", violations.len(), report.join("\n"));
}

conformance! {
    // O4, O5
    async fn random_histories_keep_the_order_of_groups(bed) {
        run(bed, Settings::default(), assert_no_violations).await;
    }

    // O4
    async fn random_histories_keep_the_order_of_continuing_groups(bed) {
        run(bed, Settings { continues: true, ..Settings::default() }, assert_no_violations).await;
    }

    async fn workers_that_reverse_runs_are_detected(bed) {
        run(bed, Settings { events: 60, reverses_runs: true, ..Settings::default() }, |history| {
            let found = check(history);
            let is_reversal = |violation: &Violation| matches!(violation, Violation::CompletedTooEarly { .. });
            assert!(found.iter().any(is_reversal), "{found:?}");
        })
        .await;
    }
}
