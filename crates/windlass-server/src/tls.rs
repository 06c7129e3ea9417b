//! TLS, from a certificate and its key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// How to speak TLS.
#[derive(Clone)]
pub struct Tls(pub(crate) TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The two do not belong together, or are of a kind that is not known.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

impl Tls {
    /// From PEM files: the certificate with those that vouch for it, and its private key.
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
