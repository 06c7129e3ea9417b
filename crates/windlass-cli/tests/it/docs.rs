//! Runs the commands of the documentation and compares their output with the documents.

mod clients;
mod console;
pub mod volatile;
mod wrap;

use console::Document;
use windlass_testkit::sqlite_url;

use crate::windlass::Server;

#[test]
fn readme_examples_work() {
    Document::open("README.md").verify();
}

#[test]
fn http_guide_examples_work() {
    Document::open("docs/http.md").verify();
}

#[test]
fn retention_guide_examples_work() {
    Document::open("docs/retention.md").verify();
}

#[test]
fn work_guide_examples_work() {
    Document::open("docs/work.md").verify();
}

#[test]
fn http_guide_shows_every_operation() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_url(folder.path()));
    let api = server.json("GET", "/openapi.json", "", 200);
    let steps = Document::open("docs/http.md").steps();
    let shown: Vec<(String, String)> = steps.iter().flat_map(|step| curl_calls(&step.command)).collect();
    let mut missing = Vec::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        // The same operations exist at the root.
        if path.starts_with("/namespaces/{namespace}/") {
            continue;
        }
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            if !shown.iter().any(|(used, at)| used.eq_ignore_ascii_case(method) && matches_template(path, at)) {
                missing.push(format!("{} {path}", method.to_uppercase()));
            }
        }
    }
    assert!(missing.is_empty(), "docs/http.md does not show {missing:#?}");
}

/// Returns method and path of each curl call in a command.
fn curl_calls(command: &str) -> Vec<(String, String)> {
    let call = |curl: &str| {
        let (_, url) = curl.split_once("http://127.0.0.1:7700")?;
        let path = url.split(['\'', '"', ' ', '?', '\n']).next()?.to_owned();
        let method = match curl.split_once("-X ") {
            Some((_, rest)) => rest.split(' ').next()?,
            None if curl.contains("-d '") => "POST",
            None => "GET",
        };
        Some((method.to_owned(), path))
    };
    command.split("curl ").filter_map(call).collect()
}

/// Whether a path, with or without a namespace, matches the template.
fn matches_template(template: &str, path: &str) -> bool {
    let within = path.strip_prefix("/namespaces/").and_then(|rest| rest.split_once('/'));
    let path = within.map_or(path, |(_, rest)| rest).trim_start_matches('/');
    let template: Vec<&str> = template.trim_start_matches('/').split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    let fits = |(template, part): (&&str, &&str)| match *template {
        "{id}" => part.parse::<i64>().is_ok(),
        name if name.starts_with('{') => true,
        word => word == *part,
    };
    template.len() == path.len() && template.iter().zip(&path).all(fits)
}
