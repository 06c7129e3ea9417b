//! `cargo xtask ci`: what `test` does, and that each backend stands alone.

use crate::run::{Result, Steps, cargo, run};
use crate::test;

pub fn ci() -> Result {
    let mut steps = Steps::new();
    test::all(&mut steps, &[]);
    for backend in ["sqlite", "postgres"] {
        steps.step(&format!("only {backend}"), || {
            let only = ["-p", "windlass", "--no-default-features", "--features", backend];
            // Clippy is `cargo check` that can refuse warnings without recompiling dependencies.
            run(cargo(["clippy"]).args(only).args(["--", "-D", "warnings"]))
        });
    }
    steps.finish()
}
