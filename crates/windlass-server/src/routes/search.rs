//! `GET /events/search`: search events.

use axum::Json;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{SearchFilter, SearchPage, Status};
use windlass_api::NameList;

use super::inspect::limit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, QueryArgs, clamp_to_epoch};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(search_events))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchArgs {
    /// Only events with this status.
    #[param(value_type = Option<Status>)]
    status: Option<String>,
    /// Comma-separated. Only events of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<NameList>,
    /// Comma-separated. Only events with any of these tags.
    #[param(value_type = Option<String>)]
    tags: Option<NameList>,
    /// The subscription whose deliveries are shown. Default: `main`.
    subscription: Option<String>,
    /// Text in the title, description, type or payload, case-insensitive. A number also finds the event with that id.
    text: Option<String>,
    /// Only events of this group.
    group_id: Option<String>,
    /// Only events published with this key.
    key: Option<String>,
    /// Only events published at this time or later.
    created_from: Option<DateTime<Utc>>,
    /// Only events published before this time.
    created_before: Option<DateTime<Utc>>,
    /// Only events with a smaller id: the `next` of the previous page.
    before: Option<i64>,
    /// Page size, at most 1000. Default: 20.
    limit: Option<usize>,
}

/// Search events
///
/// Newest first, without payloads. Each request examines a bounded number of events: a page may have fewer than `limit`
/// events, or none, and still have a `next`. Pass that as `before` to continue.
#[utoipa::path(
    get, path = "/events/search", tag = "inspect", security(("token" = ["read"])),
    params(SearchArgs),
    responses(
        (status = 200, description = "A page of events.", body = SearchPage),
        (status = 404, description = "No such namespace or subscription."),
    )
)]
async fn search_events(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<SearchArgs>,
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
        created_from: args.created_from.map(clamp_to_epoch),
        created_before: args.created_before.map(clamp_to_epoch),
        before: args.before,
    };
    Ok(Json(queue.search(filter).await?))
}
