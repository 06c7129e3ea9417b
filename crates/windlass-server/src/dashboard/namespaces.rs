//! `/ui/{namespace}/namespaces`: all namespaces that the visitor may see, and a new one.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;
use windlass::{Policy, Scope};

use super::Answer;
use super::counts::Counts;
use super::form::{Form, link};
use super::format::{count, counted};
use super::problem::Problem;
use super::shell::{Shell, Tab, with_status};
use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, FormBody};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/namespaces", get(show).post(create))
}

/// How many a page shows: each is counted by itself.
const SHOWN: usize = 20;

/// Policies to begin with, and what they are for.
const PRESETS: [(&str, &str); 6] = [
    ("default", "three retries, then a dead letter"),
    ("queue", "retries without end, each after the lease"),
    ("bus", "no retries, leases of five minutes"),
    ("tags", "as default, leases of 30 seconds"),
    ("core", "no retries, leases of 30 seconds"),
    ("outbox", "for publishing from a transaction"),
];

#[derive(Deserialize)]
struct ShowArgs {
    #[serde(default)]
    offset: usize,
}

#[derive(Template)]
#[template(path = "namespaces.html")]
struct Namespaces {
    shell: Shell,
    total: String,
    rows: Vec<Row>,
    newer: Option<String>,
    older: Option<String>,
    typed: String,
    preset: String,
    problem: Option<Problem>,
}

impl Namespaces {
    /// What is wrong with the form.
    fn wrong(&self) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.beside(&[]))
    }
}

struct Row {
    name: String,
    paused: bool,
    waiting: String,
    running: String,
    dead: String,
}

async fn show(visit: Visit, Args(args): Args<ShowArgs>) -> Answer {
    shown(&visit, args.offset, Form(Vec::new()), None).await
}

async fn shown(visit: &Visit, offset: usize, form: Form, problem: Option<Problem>) -> Answer {
    let all = &visit.namespaces;
    let mut rows = Vec::new();
    for name in all.iter().skip(offset).take(SHOWN) {
        rows.push(row(visit, name).await?);
    }
    let at =
        |offset: usize| link(&visit.path("namespaces"), [("offset", (offset > 0).then(|| offset.to_string().into()))]);
    let next = offset.saturating_add(SHOWN);
    let status = problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
    let template = Namespaces {
        shell: visit.shell(Tab::Namespaces, "Namespaces"),
        total: counted(all.len(), "namespace", "namespaces"),
        rows,
        newer: (offset > 0).then(|| at(offset.saturating_sub(SHOWN))),
        older: (next < all.len()).then(|| at(next)),
        typed: form.text("name").to_owned(),
        preset: form.get("preset").unwrap_or("default").to_owned(),
        problem,
    };
    Ok(with_status(status, &template))
}

async fn row(visit: &Visit, name: &str) -> Result<Row, ApiError> {
    let queue = visit.queue.in_namespace(name)?;
    let Counts { waiting, running, dead } = visit.app.counted.get(&queue).await?.total;
    let paused = queue.describe().await?.paused;
    let (waiting, running, dead) = (count(waiting), count(running), count(dead));
    Ok(Row { name: name.to_owned(), paused, waiting, running, dead })
}

async fn create(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    match created(&visit, &form).await {
        Ok(done) => Ok(done),
        Err(error) => shown(&visit, 0, form, Some(Problem::of(error)?)).await,
    }
}

async fn created(visit: &Visit, form: &Form) -> Result<Response, ApiError> {
    let name = form.get("name").unwrap_or_default();
    // The visitor may be an admin of the namespace of this page, and not of that one.
    visit.app.gate.check(&visit.caller, Scope::Admin, Some(name))?;
    let new = visit.queue.in_namespace(name).map_err(|error| match ApiError::from(error) {
        error if name.is_empty() => ApiError { status: error.status, ..ApiError::invalid("namespace", "needs a name") },
        error => error,
    })?;
    match new.describe().await {
        Ok(_) => return Err(ApiError::invalid("namespace", "there is one of that name")),
        Err(windlass::Error::NamespaceNotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let policy = Policy::preset(form.get("preset").unwrap_or("default"))?;
    new.put_namespace(name, Some(policy.into()), None).await?;
    visit.done(&format!("/ui/{name}/settings"), &format!("The namespace “{name}” is created."))
}
