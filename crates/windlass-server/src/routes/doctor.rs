//! `/doctor`: the health of the whole installation.

use std::net::SocketAddr;

use axum::extract::State;
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::{Finding, FindingLevel};

use crate::app::App;
use crate::auth::{Access, Caller};
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(diagnose))
}

/// How an installation is.
#[derive(Serialize, ToSchema)]
struct DoctorBody {
    /// The worst of all findings.
    level: FindingLevel,
    /// One for each check, whatever it came to.
    findings: Vec<Finding>,
}

/// Look into the health of the installation
///
/// The database and the work in all namespaces: what is wrong or about to be, and what to do about it. It reads a bounded
/// number of rows, changes nothing, and takes at most half a minute where the database hardly answers. A token that is for
/// some namespaces only is refused.
#[utoipa::path(
    get, path = "/doctor", tag = "server", security(("token" = ["read"])),
    responses((status = 200, description = "The findings.", body = DoctorBody))
)]
async fn diagnose(State(app): State<App>, Extension(caller): Extension<Caller>) -> Result<Json<DoctorBody>, ApiError> {
    let findings = findings(&app, &caller).await?;
    let level = findings.iter().map(|finding| finding.level).max().unwrap_or(FindingLevel::Ok);
    Ok(Json(DoctorBody { level, findings }))
}

/// What is found in the database and about this server, for whoever may know of all of it.
pub(crate) async fn findings(app: &App, caller: &Caller) -> Result<Vec<Finding>, ApiError> {
    app.gate.check_whole(caller)?;
    let mut findings = app.queue.diagnose().await?;
    if let Some(address) = app.address.get() {
        let tokens = app.queue.tokens().await.map_or(0, |tokens| tokens.len());
        findings.push(access(app.options.access, *address, app.options.tls.is_some(), tokens));
    }
    Ok(findings)
}

/// Who can use the server, and who can listen in.
fn access(access: Access, address: SocketAddr, tls: bool, tokens: usize) -> Finding {
    let beyond = !address.ip().to_canonical().is_loopback();
    let found = |level, summary: String, advice: Option<&str>| Finding {
        check: "access",
        level,
        summary,
        advice: advice.map(str::to_owned),
    };
    match (access, beyond) {
        (Access::Open, true) => found(
            FindingLevel::Problem,
            format!("whoever reaches {address} may do everything: no token is asked for"),
            Some("make a token (`windlass token create --scope admin`) and start the server without --insecure"),
        ),
        (Access::Open, false) => found(
            FindingLevel::Warning,
            format!("every program and web page on this machine may do everything at {address}: no token is asked for"),
            Some("start the server without --insecure"),
        ),
        (Access::Tokens, _) if tokens == 0 => found(
            FindingLevel::Problem,
            format!("nobody can use the server at {address}: there is no token"),
            Some("`windlass token create --scope admin` makes one"),
        ),
        (Access::Tokens, true) if !tls => found(
            FindingLevel::Notice,
            format!("tokens are asked for at {address}, but they and all events can be read on the way"),
            Some("speak TLS (--tls-cert, --tls-key), unless a proxy before the server does"),
        ),
        (Access::Local, _) if tokens == 0 => {
            found(FindingLevel::Ok, format!("only this machine reaches {address}; no token is asked for"), None)
        }
        _ => found(FindingLevel::Ok, format!("tokens are asked for at {address}"), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_others_reach_asks_for_tokens_and_speaks_tls() {
        let (here, there) = ("127.0.0.1:7700", "10.0.0.1:7700");
        let table = [
            (Access::Local, here, false, 0, FindingLevel::Ok),
            (Access::Local, here, false, 1, FindingLevel::Ok),
            (Access::Tokens, here, false, 1, FindingLevel::Ok),
            (Access::Tokens, there, true, 1, FindingLevel::Ok),
            (Access::Tokens, there, false, 1, FindingLevel::Notice),
            (Access::Tokens, there, true, 0, FindingLevel::Problem),
            (Access::Open, here, false, 0, FindingLevel::Warning),
            (Access::Open, there, true, 5, FindingLevel::Problem),
            (Access::Open, "[::ffff:127.0.0.1]:7700", false, 0, FindingLevel::Warning),
            (Access::Open, "0.0.0.0:7700", false, 0, FindingLevel::Problem),
        ];
        for (who, address, tls, tokens, level) in table {
            let found = access(who, address.parse().unwrap(), tls, tokens);
            assert_eq!(found.level, level, "{who:?} {address} {tls} {tokens}: {found:?}");
            assert_eq!(found.advice.is_some(), level > FindingLevel::Ok, "{found:?}");
        }
    }
}
