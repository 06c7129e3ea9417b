//! The dashboard, used in a real browser.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bed::{self, Database, Server};
use page::Page;

/// Makes `name::sqlite` and `name::postgres` of a function, or one of them. Each fails also where anything goes wrong in
/// the page.
macro_rules! in_browser {
    ($(on $($database:ident)+: async fn $name:ident($server:ident, $page:ident) $body:block)*) => {
        $(mod $name {
            use super::*;

            async fn test($server: &mut crate::bed::Server, $page: &mut crate::browser::page::Page) $body

            $(#[test] fn $database() {
                let name = concat!(stringify!($name), "-", stringify!($database));
                crate::browser::run(name, crate::bed::Database::$database(), test)
            })+
        })*
    };
}

mod chromium;
mod devtools;
mod page;
mod problems;
mod scene;

mod events;
mod looks;
mod schedules;
mod sign_in;
mod watchful;

/// Browsers take much of a machine: one at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(name: &'static str, database: Database, test: impl AsyncFnOnce(&mut Server, &mut Page)) {
    let _turn = turn();
    bed::run(database, async |server| {
        let mut page = Page::open(name, server.address).await;
        test(server, &mut page).await;
        page.check_problems(&[]).await;
    });
}
