//! `GET /samples`: counts and latencies over time, for charts.

use std::time::Duration;

use axum::Json;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::SampleFilter;
use windlass_api::{NameList, SamplesBody};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::{InNamespace, QueryArgs};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list_samples))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SampleArgs {
    /// Start: the step that contains this time. Default: one hour before `until`.
    from: Option<DateTime<Utc>>,
    /// End: up to and including the last step that starts before this time. Default: now.
    until: Option<DateTime<Utc>>,
    /// Length of a step, in whole minutes, at most 400 days. Steps start at multiples of this since 1970, in UTC.
    /// Default: 60000.
    step_ms: Option<u64>,
    /// Comma-separated. Only these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<NameList>,
    /// One sample for each type, instead of one for all types together.
    by_type: Option<bool>,
}

/// List samples over time
///
/// For charts, not for accounting: a server that is killed loses its counts of the last ten seconds, and a connection
/// lost right after a commit may cause double counts. Samples of one minute are kept for two days, of ten minutes for
/// two weeks, of one hour for 400 days. A response has at most 10000 samples, from at most 100000 stored ones.
#[utoipa::path(
    get, path = "/samples", tag = "inspect", security(("token" = ["read"])),
    params(SampleArgs),
    responses(
        (status = 200, description = "The samples.", body = SamplesBody),
        (status = 404, description = "No such namespace."),
    )
)]
async fn list_samples(
    InNamespace(queue): InNamespace,
    QueryArgs(args): QueryArgs<SampleArgs>,
) -> Result<Json<SamplesBody>, ApiError> {
    let filter = SampleFilter {
        from: args.from,
        until: args.until,
        step: args.step_ms.map(Duration::from_millis).unwrap_or_default(),
        types: args.types.unwrap_or_default().into_list(),
        by_type: args.by_type.unwrap_or_default(),
    };
    Ok(Json(SamplesBody { samples: queue.samples(filter).await? }))
}
