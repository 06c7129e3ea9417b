//! The server over TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use windlass_server::Tls;

use crate::harness::{JSON, Server};
use crate::http::{head, read};

/// Files with a certificate for `localhost` and its key.
struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    folder: TempDir,
}

impl Identity {
    fn new() -> Identity {
        let folder = tempfile::tempdir().unwrap();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        fs::write(&certificate, cert.pem()).unwrap();
        fs::write(&key, signing_key.serialize_pem()).unwrap();
        Identity { certificate, key, folder }
    }

    fn tls(&self) -> Tls {
        Tls::from_pem_files(&self.certificate, &self.key).unwrap()
    }

    /// A client that trusts only this certificate.
    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.certificate).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    }
}

async fn serve_tls(server: &mut Server) -> Identity {
    let identity = Identity::new();
    server.restart_with(|options| options.tls = Some(identity.tls())).await;
    identity
}

/// The error for these files.
fn problem(certificate: &Path, key: &Path) -> String {
    Tls::from_pem_files(certificate, key).unwrap_err().to_string()
}

on_each_database! {
    async fn publish_works_over_tls(server) {
        let identity = serve_tls(server).await;
        let connection = TcpStream::connect(server.address).await.unwrap();
        let mut connection = identity.connector().connect("localhost".try_into().unwrap(), connection).await.unwrap();
        let body = r#"{"title":"safe"}"#;
        connection.write_all((head("POST", "/events", JSON, body.len()) + body).as_bytes()).await.unwrap();
        assert_eq!(read(connection).await.expect(201)["title"], "safe");
    }

    async fn plain_http_on_a_tls_port_is_refused(server) {
        let identity = serve_tls(server).await;
        let mut connection = server.begin(&head("GET", "/healthz", "", 0)).await;
        let mut answer = Vec::new();
        // A TLS alert, or nothing.
        let _ = connection.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
        let connection = TcpStream::connect(server.address).await.unwrap();
        identity.connector().connect("localhost".try_into().unwrap(), connection).await.unwrap();
    }

    async fn untrusted_certificate_prevents_the_connection(server) {
        serve_tls(server).await;
        let connection = TcpStream::connect(server.address).await.unwrap();
        let other = Identity::new().connector();
        assert!(other.connect("localhost".try_into().unwrap(), connection).await.is_err());
    }

    async fn pending_tls_handshake_does_not_delay_shutdown(server) {
        serve_tls(server).await;
        let _silent = TcpStream::connect(server.address).await.unwrap();
        server.stop();
        server.stopped().await;
    }
}

#[test]
fn unusable_tls_files_are_named() {
    let identity = Identity::new();
    let (missing, text) = (identity.folder.path().join("missing.pem"), identity.folder.path().join("text.pem"));
    fs::write(&text, "no certificate").unwrap();
    for bad in [&missing, &text, &identity.key] {
        let problem = problem(bad, &identity.key);
        assert!(problem.starts_with(&format!("{}: ", bad.display())), "{problem}");
    }
    for bad in [&missing, &text, &identity.certificate] {
        let problem = problem(&identity.certificate, bad);
        assert!(problem.starts_with(&format!("{}: ", bad.display())), "{problem}");
    }
    let other = Identity::new();
    let problem = problem(&identity.certificate, &other.key);
    assert!(problem.starts_with("the certificate and its key cannot be used: "), "{problem}");
}
