//! TLS and HTTP/2 without a proxy: curl and `refrain call`, reloaded certificates, unusable files.

use crate::support::{Certificate, Files, Output, Serve, program, run, run_command};
use refrain_testkit::net::legacy::initialize;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::process::Command;

/// Opens a legacy session with curl. Returns the version of HTTP that was used.
async fn curl(url: &str, flags: &[&str], trusted: &Path) -> Result<String, Output> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "30", "--cacert"])
        .arg(trusted)
        .args(flags)
        .args(["-H", "content-type: application/json"])
        .args(["-H", "accept: application/json, text/event-stream"])
        .args(["-d", &initialize("2025-11-25", &json!({})).to_string()])
        .args(["-w", "\n%{http_version}", url]);
    let output = Output::of(curl).await;
    if !output.ok {
        return Err(output);
    }
    let (reply, version) = output.out.rsplit_once('\n').expect("a reply and a version");
    let reply: Value = serde_json::from_str(reply).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(reply["result"]["protocolVersion"], "2025-11-25", "{reply}");
    Ok(version.to_owned())
}

fn serve(certificate: &Certificate) -> Serve {
    let flag = |name: &str, file: &Path| [name.to_owned(), file.display().to_string()];
    Serve::new()
        .args(flag("--tls-cert", &certificate.cert))
        .args(flag("--tls-key", &certificate.key))
}

#[tokio::test]
async fn clients_choose_the_version_of_http() {
    let files = Files::new();
    let certificate = files.certificate("mcp.example.com");
    let trusted = &certificate.cert;
    let plain = Serve::new().start().await;
    let secure = serve(&certificate).start().await;
    let line = secure.log.text();
    assert!(line.contains("listening on https://127.0.0.1:"), "{line}");
    let secure_url = format!("https://localhost:{}/mcp", secure.address.port());
    for (url, flag, version) in [
        (plain.url(), "--http1.1", "1.1"),
        (plain.url(), "--http2-prior-knowledge", "2"),
        (secure_url.clone(), "--http1.1", "1.1"),
        (secure_url.clone(), "--http2", "2"),
    ] {
        let used = curl(&url, &[flag], trusted).await;
        assert_eq!(used.expect("a reply"), version, "{url} {flag}");
    }
    // `refrain call`, which prefers HTTP/2, makes a call that reports progress.
    let mut call = program();
    call.args(["call", &secure_url, "sum", "--json"])
        .args(["to=3", "pause_ms=1"])
        .env("SSL_CERT_FILE", trusted);
    let output = run_command(call).await;
    assert!(output.out.contains("The sum of 1 to 3 is 6."), "{output:?}");
    // Without TLS there is no reply on this port.
    let without = secure_url.replace("https", "http");
    assert!(curl(&without, &[], trusted).await.is_err());
}

#[tokio::test]
async fn certificate_is_reloaded() {
    let files = Files::new();
    let used = files.certificate("mcp.example.com");
    let instance = serve(&used).start().await;
    let url = format!("https://localhost:{}/mcp", instance.address.port());
    let first = files.write("first.pem", &used.cert_pem());
    curl(&url, &[], &first).await.expect("a reply");
    // An unusable file does not replace the certificate.
    files.write("mcp.example.com.cert.pem", "nonsense");
    instance.reload("failed to reload the certificate").await;
    curl(&url, &[], &first).await.expect("a reply");
    let second = files.certificate("mcp.example.com");
    instance.reload("certificate reloaded").await;
    curl(&url, &[], &second.cert).await.expect("a reply");
    let refused = curl(&url, &[], &first)
        .await
        .expect_err("another certificate");
    assert_eq!(refused.code, 60, "{refused:?}");
}

#[tokio::test]
async fn unusable_certificate_is_an_error_at_start() {
    let files = Files::new();
    let (one, two) = (files.certificate("one"), files.certificate("two"));
    let with = |cert: &Path, key: &Path| Certificate {
        cert: cert.to_owned(),
        key: key.to_owned(),
        both: cert.to_owned(),
    };
    let (empty, none) = (files.write("empty", ""), files.path("none"));
    for (cert, key, reason) in [
        (&one.cert, &two.key, "does not belong to the certificate"),
        (&one.key, &one.key, "no certificate found"),
        (&one.cert, &one.cert, "no private key found"),
        (&empty, &one.key, "no certificate found"),
        (&none, &one.key, "cannot read certificate "),
        (&one.cert, &none, "cannot read private key "),
    ] {
        let error = serve(&with(cert, key)).fails().await;
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(
            !error.contains("BEGIN") && !error.contains("MIG"),
            "{error}"
        );
    }
    for (setting, other) in [("tls_cert", "tls_key"), ("tls_key", "tls_cert")] {
        let config = files.write("config.toml", &format!("{setting} = \"file\"\n"));
        let error = Serve::new().config(&config).fails().await;
        let reason = format!("{setting} requires {other}");
        assert!(error.contains(&reason), "{error}");
        let flags = [setting, other].map(|name| name.replace("tls_", "--tls-"));
        let error = Serve::new().args([flags[0].as_str(), "file"]).fails().await;
        assert_eq!(
            error,
            format!("error: {} requires {}\n", flags[0], flags[1])
        );
    }
}

#[tokio::test]
async fn key_file_that_others_can_read_is_a_warning() {
    let files = Files::new();
    let (certificate, keys) = (files.certificate("mcp.example.com"), files.keys("keys"));
    let (cert, key) = (certificate.cert.display(), certificate.key.display());
    let text = format!(
        "tls_cert = \"{cert}\"\ntls_key = \"{key}\"\nkeys = \"{}\"\n",
        keys.display()
    );
    let config = files.write("config.toml", &text);
    for (mode, warnings) in [(0o600, 0), (0o644, 2)] {
        for file in [&certificate.key, &keys] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file, permissions).expect("permissions");
        }
        let instance = Serve::new().config(&config).start().await;
        let log = &instance.log;
        let exposed = "other users can read the secret file";
        assert_eq!(log.count(exposed), warnings, "{log:?}");
    }
}

#[tokio::test]
async fn http_to_a_server_with_tls_is_reported() {
    let files = Files::new();
    let instance = serve(&files.certificate("localhost")).start().await;
    let url = instance.url();
    let output = run(["tools", &url]).await;
    assert_eq!(output.code, 4, "{output:?}");
    let secure = url.replace("http://", "https://");
    let expected = format!(
        "error: {url} does not respond with HTTP\nhint: if the server uses TLS, try {secure}\n"
    );
    assert_eq!(output.err, expected);
}
