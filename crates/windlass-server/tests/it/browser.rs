//! Tests of the dashboard in a real browser.

use std::sync::{Mutex, MutexGuard, PoisonError};

use page::Page;
use windlass_testkit::Kind;

use crate::harness::{self, Server};

/// Creates the tests `name::sqlite` and `name::postgres`, or one of them, from a function. A test also fails if the page
/// reports a problem.
macro_rules! in_browser {
    ($(on $($database:ident)+: async fn $name:ident($server:ident, $page:ident) $body:block)*) => {
        $(mod $name {
            use super::*;

            async fn test($server: &mut crate::harness::Server, $page: &mut crate::browser::page::Page) $body

            $(#[test] fn $database() {
                let name = concat!(stringify!($name), "-", stringify!($database));
                crate::browser::run(name, kind!($database), test)
            })+
        })*
    };
}

macro_rules! kind {
    (sqlite) => {
        windlass_testkit::Kind::Sqlite
    };
    (postgres) => {
        windlass_testkit::Kind::Postgres
    };
}

mod chromium;
mod devtools;
mod fixture;
mod page;
mod problems;

mod events;
mod layout;
mod problem_detection;
mod schedules;
mod sign_in;

/// Serializes the browser tests, because a browser needs many resources.
fn lock_browser() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(name: &'static str, kind: Kind, test: impl AsyncFnOnce(&mut Server, &mut Page)) {
    let _lock = lock_browser();
    harness::run(kind, async |server| {
        let mut page = Page::open(name, server.address).await;
        test(server, &mut page).await;
        page.check_problems(&[]).await;
    });
}
