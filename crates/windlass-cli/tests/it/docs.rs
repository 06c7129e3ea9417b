//! The documents, tried: what they show is what is printed.

mod clients;
mod console;
mod volatile;
mod wrap;

use console::Document;

#[test]
fn the_readme_is_true() {
    Document::open("README.md").try_out();
}
