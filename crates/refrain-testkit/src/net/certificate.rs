//! Self-signed certificates, made by the `openssl` command.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The PEM files of a certificate, for a client that trusts this certificate.
pub struct Certificate {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The certificate and the key in one file, as HAProxy needs them.
    pub both: PathBuf,
}

impl Certificate {
    /// Makes a certificate for a host, `localhost` and 127.0.0.1, with files of this name in a directory.
    pub fn new(dir: &Path, name: &str, host: &str) -> Self {
        let file = |ending: &str| dir.join(format!("{name}.{ending}"));
        let config = file("cnf");
        let certificate = Self {
            cert: file("cert.pem"),
            key: file("key.pem"),
            both: file("both.pem"),
        };
        let text = format!(
            "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n[dn]\nCN = {host}\n\
             [ext]\nbasicConstraints = critical, CA:FALSE\n\
             subjectAltName = DNS:{host}, DNS:localhost, IP:127.0.0.1\n"
        );
        std::fs::write(&config, text).expect("a file in the directory");
        let output = Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-days", "30", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-config".as_ref(), config.as_os_str()])
            .args(["-keyout".as_ref(), certificate.key.as_os_str()])
            .args(["-out".as_ref(), certificate.cert.as_os_str()])
            .output()
            .expect("openssl can be started");
        assert!(output.status.success(), "{output:?}");
        let both = certificate.cert_pem() + &certificate.key_pem();
        std::fs::write(&certificate.both, both).expect("a file in the directory");
        certificate
    }

    pub fn cert_pem(&self) -> String {
        std::fs::read_to_string(&self.cert).expect("the certificate is readable")
    }

    pub fn key_pem(&self) -> String {
        std::fs::read_to_string(&self.key).expect("the key is readable")
    }
}
