//! TLS configuration from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A TLS certificate chain and its key, ready for use.
#[derive(Clone)]
pub struct Tls(pub(crate) TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// Error of [`Tls::from_pem_files`].
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not valid PEM.
    #[error("{}: {problem}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        problem: String,
    },
    /// The certificate and the key do not match, or their kind is not supported.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

impl Tls {
    /// Reads PEM files: the certificate chain and its private key.
    pub fn from_pem_files(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let certificates = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| bad_file(certificate, &error))?;
        if certificates.is_empty() {
            return Err(bad_file(certificate, &"holds no certificate"));
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| bad_file(key, &error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(certificates, key)?;
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }
}

fn bad_file(path: &Path, problem: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), problem: problem.to_string() }
}
