//! Asking once more.
//!
//! A statement finds a row by its old version if somebody else is changing it at that moment, and then
//! passes it over. Where a row was passed over, a second statement sees it as it is.

/// What got no answer.
pub(super) fn missed<T: Clone, R>(asked: &[T], answers: &[Option<R>]) -> Vec<T> {
    asked.iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(asked, _)| asked.clone()).collect()
}

/// Puts second answers where there was none.
pub(super) fn fill<R>(answers: &mut [Option<R>], second: Vec<Option<R>>) {
    answers.iter_mut().filter(|answer| answer.is_none()).zip(second).for_each(|(answer, second)| *answer = second);
}

/// Repeats a transaction that the server broke off to resolve a deadlock.
macro_rules! despite_deadlocks {
    ($call:expr) => {{
        let mut tries = 0;
        loop {
            match $call.await {
                Err($crate::error::Error::DatabaseLocked { .. }) if tries < $crate::store::postgres::DEADLOCKS_MAX => {
                    tries += 1;
                }
                answer => break answer,
            }
        }
    }};
}
pub(super) use despite_deadlocks;
