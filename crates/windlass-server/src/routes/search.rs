//! `GET /events/search`: find events.

use axum::Json;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{SearchFilter, SearchPage, Status};

use super::inspect::limit;
use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, InNamespace, known};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(search_events))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchArgs {
    /// Only in this state.
    #[param(value_type = Option<Status>)]
    status: Option<String>,
    /// Comma-separated; only of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<Names>,
    /// Comma-separated; only events with any of these tags.
    #[param(value_type = Option<String>)]
    tags: Option<Names>,
    /// Whose view; `main` if absent.
    subscription: Option<String>,
    /// In title, description, type or payload, in capitals or not. A number also finds the event of that id.
    text: Option<String>,
    /// Only of this group.
    group_id: Option<String>,
    /// Only those published with this key.
    key: Option<String>,
    /// Only those published at this instant or later.
    created_from: Option<DateTime<Utc>>,
    /// Only those published before this instant.
    created_before: Option<DateTime<Utc>>,
    /// Only those with a smaller id: the `next` of the page before.
    before: Option<i64>,
    /// How many; 20 if absent, at most 1000.
    limit: Option<usize>,
}

/// Search events
///
/// The newest first, without their payloads. A page looks at a bounded number of events: it may hold fewer than `limit`,
/// or none, and still have a `next`; go on with that as `before`.
#[utoipa::path(
    get, path = "/events/search", tag = "inspect", security(("token" = ["read"])),
    params(SearchArgs),
    responses(
        (status = 200, description = "A page of what was found.", body = SearchPage),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn search_events(
    InNamespace(queue): InNamespace,
    Args(args): Args<SearchArgs>,
) -> Result<Json<SearchPage>, ApiError> {
    let filter = SearchFilter {
        limit: limit(args.limit, queue.limits())?,
        status: args.status.as_deref().map(str::parse).transpose()?,
        types: args.types.unwrap_or_default().into_list(),
        tags: args.tags.unwrap_or_default().into_list(),
        subscription: args.subscription,
        text: args.text,
        group_id: args.group_id,
        key: args.key,
        created_from: args.created_from.map(known),
        created_before: args.created_before.map(known),
        before: args.before,
    };
    Ok(Json(queue.search(filter).await?))
}
