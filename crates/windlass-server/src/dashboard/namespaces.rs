//! `/ui/{namespace}/namespaces`: the namespaces that the caller may see, and a form for a new one.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;
use windlass::{Policy, Scope};

use super::PageResult;
use super::delivery_counts::DeliveryCounts;
use super::form::{Form, link};
use super::form_error::FormError;
use super::format::{count, pluralize};
use super::layout::{Layout, Tab, render_with_status};
use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, QueryArgs};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/namespaces", get(show).post(create))
}

/// Namespaces per page. Each needs its own count query.
const SHOWN: usize = 20;

/// Policy presets and their descriptions.
const PRESETS: [(&str, &str); 6] = [
    ("default", "three retries, then a dead letter"),
    ("queue", "unlimited retries, each after the lease"),
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
    layout: Layout,
    total: String,
    rows: Vec<Row>,
    newer: Option<String>,
    older: Option<String>,
    typed: String,
    preset: String,
    problem: Option<FormError>,
}

impl Namespaces {
    /// The error of the form, or an empty text.
    fn field_error(&self) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.message_unless_in(&[]))
    }
}

struct Row {
    name: String,
    paused: bool,
    waiting: String,
    running: String,
    dead: String,
}

async fn show(ctx: PageContext, QueryArgs(args): QueryArgs<ShowArgs>) -> PageResult {
    shown(&ctx, args.offset, Form(Vec::new()), None).await
}

async fn shown(ctx: &PageContext, offset: usize, form: Form, problem: Option<FormError>) -> PageResult {
    let all = &ctx.namespaces;
    let mut rows = Vec::new();
    for name in all.iter().skip(offset).take(SHOWN) {
        rows.push(row(ctx, name).await?);
    }
    let at =
        |offset: usize| link(&ctx.path("namespaces"), [("offset", (offset > 0).then(|| offset.to_string().into()))]);
    let next = offset.saturating_add(SHOWN);
    let status = problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
    let template = Namespaces {
        layout: ctx.layout(Tab::Namespaces, "Namespaces"),
        total: pluralize(all.len(), "namespace", "namespaces"),
        rows,
        newer: (offset > 0).then(|| at(offset.saturating_sub(SHOWN))),
        older: (next < all.len()).then(|| at(next)),
        typed: form.text("name").to_owned(),
        preset: form.get("preset").unwrap_or("default").to_owned(),
        problem,
    };
    Ok(render_with_status(status, &template))
}

async fn row(ctx: &PageContext, name: &str) -> Result<Row, ApiError> {
    let queue = ctx.queue.in_namespace(name)?;
    let DeliveryCounts { waiting, running, dead } = ctx.app.delivery_counts.get(&queue).await?.total;
    let paused = queue.describe().await?.paused;
    let (waiting, running, dead) = (count(waiting), count(running), count(dead));
    Ok(Row { name: name.to_owned(), paused, waiting, running, dead })
}

async fn create(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    match created(&ctx, &form).await {
        Ok(done) => Ok(done),
        Err(error) => shown(&ctx, 0, form, Some(FormError::from_api_error(error)?)).await,
    }
}

async fn created(ctx: &PageContext, form: &Form) -> Result<Response, ApiError> {
    let name = form.get("name").unwrap_or_default();
    // The scope `admin` was checked for the namespace of this page, not for the new one.
    ctx.app.authorizer.check_access(&ctx.caller, Scope::Admin, Some(name))?;
    let new = ctx.queue.in_namespace(name).map_err(|error| match ApiError::from(error) {
        error if name.is_empty() => ApiError { status: error.status, ..ApiError::invalid("namespace", "needs a name") },
        error => error,
    })?;
    match new.describe().await {
        Ok(_) => return Err(ApiError::invalid("namespace", "already exists")),
        Err(windlass::Error::NamespaceNotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let policy = Policy::preset(form.get("preset").unwrap_or("default"))?;
    new.put_namespace(name, Some(policy.into()), None).await?;
    ctx.redirect_with_notice(&format!("/ui/{name}/settings"), &format!("The namespace “{name}” is created."))
}
