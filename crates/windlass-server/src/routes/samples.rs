//! `GET /samples`: what happened, minute by minute, for charts.

use std::time::Duration;

use axum::Json;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Sample, SampleFilter};

use super::names::Names;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, InNamespace};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list_samples))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SampleArgs {
    /// From the step that this instant lies in; an hour before `until` if absent.
    from: Option<DateTime<Utc>>,
    /// Up to the end of the step that lies before this instant, or that it lies in; now if absent.
    until: Option<DateTime<Utc>>,
    /// How long each span is, in whole minutes; 60000 if absent, at most 400 days. Steps begin at multiples of this
    /// since 1970, in UTC.
    step_ms: Option<u64>,
    /// Comma-separated; only of these types, each exact or a prefix ending in `*`.
    #[param(value_type = Option<String>)]
    types: Option<Names>,
    /// One sample for each type, instead of one for all together.
    by_type: Option<bool>,
}

/// What happened.
#[derive(Serialize, ToSchema)]
struct SamplesBody {
    /// The earliest first; steps in which nothing happened are left out.
    samples: Vec<Sample>,
}

/// Count over time
///
/// For charts, not for accounting: a server that is killed takes with it what it counted in its last ten seconds, and
/// where a connection is lost just after a commit that much may be counted twice. Minutes are kept for two days, ten
/// minutes for two weeks, hours for 400 days. At most 10000 samples are given at once, made of at most 100000 stored ones.
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
    Args(args): Args<SampleArgs>,
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
