//! Client of a Windlass server over HTTP or HTTPS.

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use super::Unreachable;
use crate::Result;
use crate::exit::UsageError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than the longest request takes on the server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(700);

pub struct HttpClient {
    scheme: Scheme,
    authority: Authority,
    /// Prefix of every path, for a server behind a proxy.
    prefix: String,
    http: legacy::Client<HttpsConnector<HttpConnector>, Body>,
}

impl HttpClient {
    pub fn new(server: &str) -> Result<HttpClient> {
        let bad = || UsageError(format!("--server {server}: give its address as in http://127.0.0.1:7700"));
        let parts = server.parse::<Uri>().map_err(|_| bad())?.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else { return Err(bad().into()) };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS || authority.as_str().contains('@') {
            return Err(bad().into());
        }
        let prefix = parts.path_and_query.map_or(String::new(), |path| path.path().trim_end_matches('/').to_owned());
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector(scheme == Scheme::HTTPS)?);
        Ok(HttpClient { scheme, authority, prefix, http })
    }

    /// Sends a request whose URI is a path without scheme and host.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>> {
        let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        *request.uri_mut() = uri.path_and_query(format!("{}{path}", self.prefix)).build()?;
        let response = tokio::time::timeout(RESPONSE_TIMEOUT, self.http.request(request)).await;
        let response =
            response.map_err(|_| self.unreachable(&format!("no answer within {} s", RESPONSE_TIMEOUT.as_secs())))?;
        let response = response.map_err(|error| self.unreachable(&root_cause(&error)))?;
        Ok(response.map(Body::new))
    }

    fn unreachable(&self, reason: &str) -> Unreachable {
        Unreachable(format!("the server at {}://{} cannot be reached: {reason}", self.scheme, self.authority))
    }
}

fn connector(tls: bool) -> Result<HttpsConnector<HttpConnector>> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new();
    let builder = if tls {
        // SSL_CERT_FILE and SSL_CERT_DIR replace the system's certificates.
        builder.with_provider_and_native_roots(ring::default_provider())?
    } else {
        let config = ClientConfig::builder_with_provider(ring::default_provider().into());
        let without_roots =
            config.with_safe_default_protocol_versions()?.with_root_certificates(RootCertStore::empty());
        builder.with_tls_config(without_roots.with_no_client_auth())
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(http))
}

/// Returns the innermost error. The outer errors only say that the request failed.
fn root_cause(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_url_needs_scheme_and_host() {
        for good in ["http://127.0.0.1:7700", "http://localhost/", "http://[::1]:7700/windlass/"] {
            assert!(HttpClient::new(good).is_ok(), "{good}");
        }
        for bad in ["", "localhost", "127.0.0.1:7700", "ftp://host", "http://", "http://me:secret@host", "/events"] {
            assert!(HttpClient::new(bad).is_err(), "{bad}");
        }
    }
}
