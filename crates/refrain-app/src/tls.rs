//! The certificate of the endpoint.

use crate::{AppError, input_file};
use refrain::server::TlsCertificate;
use std::path::{Path, PathBuf};

/// The files of a certificate chain and its private key.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsFiles {
    pub(crate) fn read(&self) -> Result<TlsCertificate, AppError> {
        let (chain, key) = (
            read("certificate", &self.cert)?,
            read("private key", &self.key)?,
        );
        TlsCertificate::from_pem(&chain, &key).map_err(|error| {
            let (cert, key) = (self.cert.display(), self.key.display());
            format!("cannot use certificate {cert} with private key {key}: {error}").into()
        })
    }
}

fn read(what: &str, file: &Path) -> Result<Vec<u8>, AppError> {
    let content = input_file::read(file);
    content.map_err(|error| format!("cannot read {what} {}: {error}", file.display()).into())
}
