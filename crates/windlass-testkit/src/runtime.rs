//! Runs asynchronous tests, with a timeout.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// Longer than any test takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a test. Afterwards, its tasks are ended and their connections closed, even if the test fails.
pub fn run_on_two_threads(test: impl AsyncFnOnce()) {
    run(Builder::new_multi_thread().worker_threads(2), test);
}

/// Like [`run_on_two_threads`], with all tasks on one thread, so that thread-local state covers the whole test.
pub fn run_on_one_thread(test: impl AsyncFnOnce()) {
    run(&mut Builder::new_current_thread(), test);
}

fn run(builder: &mut Builder, test: impl AsyncFnOnce()) {
    let runtime = build(builder);
    let test = async { tokio::time::timeout(TEST_TIMEOUT, test()).await.expect("the test timed out") };
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(test)));
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// Runs a future to its end on a new runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    build(&mut Builder::new_current_thread()).block_on(future)
}

fn build(builder: &mut Builder) -> Runtime {
    builder.enable_all().build().expect("a runtime can be built")
}
