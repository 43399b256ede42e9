//! A listener with TLS: slow handshakes, and certificates that cannot be used.

use crate::support::{Connection, within};
use refrain_server::{AllowedHosts, Listener, Server, TlsCertificate, TlsError, serve};
use refrain_testkit::net::{Certificate, listen};

fn certificate(dir: &tempfile::TempDir, name: &str) -> Certificate {
    Certificate::new(dir.path(), name, "mcp.example.com")
}

fn read(chain: &str, key: &str) -> Result<TlsCertificate, TlsError> {
    TlsCertificate::from_pem(chain.as_bytes(), key.as_bytes())
}

/// The default idle time is longer than the test waits.
#[tokio::test]
async fn handshake_that_takes_too_long_closes_the_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = certificate(&dir, "one");
    let certificate = read(&files.cert_pem(), &files.key_pem()).expect("usable");
    let server = Server::builder("tls", "1").build().expect("valid");
    let socket = listen().await;
    let address = socket.local_addr().expect("an address");
    let listener = Listener::from(socket).with_tls(&certificate);
    let hosts = AllowedHosts::local();
    let serving = tokio::spawn(serve(listener, server, hosts, std::future::pending()));
    let mut silent = Connection::open(address).await;
    let mut slow = Connection::open(address).await;
    // The header of a handshake record, without its content.
    slow.write(b"\x16\x03\x01\x02\x00\x01").await;
    within("the end of the handshakes", async {
        silent.closed().await;
        slow.closed().await;
    })
    .await;
    serving.abort();
}

#[test]
fn unusable_certificate_is_rejected() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (certificate(&dir, "one"), certificate(&dir, "two"));
    let (cert, key) = (one.cert_pem(), one.key_pem());
    let error = |chain: &str, key: &str| read(chain, key).expect_err("unusable");
    let error_with_key = |key: &str| error(&cert, key);
    assert!(matches!(error("", &key), TlsError::NoCertificate));
    assert!(matches!(error_with_key(""), TlsError::NoKey));
    assert!(matches!(error_with_key(&cert), TlsError::NoKey));
    assert!(matches!(error_with_key(&two.key_pem()), TlsError::Mismatch));
    let cut = |text: &str| text[..text.len() / 2].to_owned();
    assert!(matches!(
        error(&cut(&cert), &key),
        TlsError::InvalidChain(_)
    ));
    assert!(matches!(
        error_with_key(&cut(&key)),
        TlsError::InvalidKey(_)
    ));
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(error(nonsense, &key), TlsError::Unusable(_)));
}

#[test]
fn debug_output_has_no_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = certificate(&dir, "one");
    let certificate = read(&files.cert_pem(), &files.key_pem()).expect("usable");
    assert_eq!(format!("{certificate:?}"), "TlsCertificate { .. }");
}
