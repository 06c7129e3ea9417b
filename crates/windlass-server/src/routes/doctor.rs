//! `/doctor`: diagnose the whole installation.

use std::net::SocketAddr;

use axum::extract::State;
use axum::{Extension, Json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Finding, FindingLevel};
use windlass_api::DoctorBody;

use crate::app::App;
use crate::auth::{Access, Caller};
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(diagnose))
}

/// Diagnose the installation
///
/// Checks the database and the work in all namespaces: current and imminent problems, with advice. It reads a bounded
/// number of rows and changes nothing. It takes at most half a minute if the database is slow. Tokens limited to some
/// namespaces are refused.
#[utoipa::path(
    get, path = "/doctor", tag = "server", security(("token" = ["read"])),
    responses((status = 200, description = "The findings.", body = DoctorBody))
)]
async fn diagnose(State(app): State<App>, Extension(caller): Extension<Caller>) -> Result<Json<DoctorBody>, ApiError> {
    let findings = collect_findings(&app, &caller).await?;
    let level = findings.iter().map(|finding| finding.level).max().unwrap_or(FindingLevel::Ok);
    Ok(Json(DoctorBody { level, findings }))
}

/// The findings about the database and this server. The caller must cover all namespaces.
pub(crate) async fn collect_findings(app: &App, caller: &Caller) -> Result<Vec<Finding>, ApiError> {
    app.authorizer.check_all_namespaces(caller)?;
    let mut findings = app.queue.diagnose().await?;
    if let Some(address) = app.address.get() {
        let tokens = app.queue.tokens().await.map_or(0, |tokens| tokens.len());
        findings.push(access_finding(app.options.access, *address, app.options.tls.is_some(), tokens));
    }
    Ok(findings)
}

/// Which clients can use the server, and whether its traffic is encrypted.
fn access_finding(access: Access, address: SocketAddr, tls: bool, tokens: usize) -> Finding {
    let is_remote = !address.ip().to_canonical().is_loopback();
    let finding = |level, summary: String, advice: Option<&str>| Finding {
        check: "access".into(),
        level,
        summary,
        advice: advice.map(str::to_owned),
    };
    match (access, is_remote) {
        (Access::Open, true) => finding(
            FindingLevel::Problem,
            format!("any client that can reach {address} has full access: no token is required"),
            Some("create a token (`windlass token create --scope admin`) and start the server without --insecure"),
        ),
        (Access::Open, false) => finding(
            FindingLevel::Warning,
            format!("every program and web page on this machine has full access to {address}: no token is required"),
            Some("start the server without --insecure"),
        ),
        (Access::Tokens, _) if tokens == 0 => finding(
            FindingLevel::Problem,
            format!("no client can use the server at {address}: no token exists"),
            Some("create one: `windlass token create --scope admin`"),
        ),
        (Access::Tokens, true) if !tls => finding(
            FindingLevel::Notice,
            format!("{address} requires tokens, but tokens and events are sent unencrypted"),
            Some("enable TLS (--tls-cert, --tls-key), unless a proxy in front of the server does"),
        ),
        (Access::Local, _) if tokens == 0 => {
            finding(FindingLevel::Ok, format!("{address} accepts only this machine; no token is required"), None)
        }
        _ => finding(FindingLevel::Ok, format!("{address} requires tokens"), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_on_a_network_needs_tokens_and_tls() {
        let (local, remote) = ("127.0.0.1:7700", "10.0.0.1:7700");
        let table = [
            (Access::Local, local, false, 0, FindingLevel::Ok),
            (Access::Local, local, false, 1, FindingLevel::Ok),
            (Access::Tokens, local, false, 1, FindingLevel::Ok),
            (Access::Tokens, remote, true, 1, FindingLevel::Ok),
            (Access::Tokens, remote, false, 1, FindingLevel::Notice),
            (Access::Tokens, remote, true, 0, FindingLevel::Problem),
            (Access::Open, local, false, 0, FindingLevel::Warning),
            (Access::Open, remote, true, 5, FindingLevel::Problem),
            (Access::Open, "[::ffff:127.0.0.1]:7700", false, 0, FindingLevel::Warning),
            (Access::Open, "0.0.0.0:7700", false, 0, FindingLevel::Problem),
        ];
        for (access, address, tls, tokens, level) in table {
            let found = access_finding(access, address.parse().unwrap(), tls, tokens);
            assert_eq!(found.level, level, "{access:?} {address} {tls} {tokens}: {found:?}");
            assert_eq!(found.advice.is_some(), level > FindingLevel::Ok, "{found:?}");
        }
    }
}
