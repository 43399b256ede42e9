//! Opening stores by their URL. Errors must not contain the URL.

use refrain_store::{OpenStoreError, StoreError, open};

async fn open_error(url: &str) -> String {
    match open(url).await {
        Err(error @ OpenStoreError::Url(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{url} was opened"),
    }
}

#[tokio::test]
async fn invalid_store_url_is_rejected() {
    for url in [
        "",
        "refrain.db",
        "mysql://root:hunter2@localhost/x",
        "redis://:hunter2@localhost",
        "memory:x",
        "SQLITE:x",
    ] {
        let said = open_error(url).await;
        assert!(
            said.contains("`sqlite:`, `postgres:` or `memory:`"),
            "{said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
    }
    assert!(open_error("sqlite:").await.contains("missing file name"));
    assert!(open_error("sqlite::memory:").await.contains("`memory:`"));
    assert!(
        open_error("sqlite:x.db?mode=ro")
            .await
            .contains("options are not supported")
    );
}

#[tokio::test]
async fn memory_url_opens_a_store() {
    assert!(open("memory:").await.is_ok());
}

#[tokio::test]
async fn sqlite_url_opens_a_file() {
    let dir = tempfile::tempdir().unwrap();
    for (number, form) in ["sqlite:", "sqlite://"].iter().enumerate() {
        let file = dir.path().join(format!("{number} ä.db"));
        let url = format!("{form}{}", file.display());
        assert!(open(&url).await.is_ok(), "{url}");
        assert!(file.exists());
    }
}

#[tokio::test]
async fn invalid_part_of_a_postgres_url_is_named_without_its_value() {
    for (url, expected) in [
        (
            "postgres://db/x?sslmode=require&sslpassword=hunter2",
            "unsupported parameter `sslpassword`: the supported ones are sslmode,",
        ),
        (
            "postgres://db/x?sslmode=hunter2",
            "invalid value of the parameter `sslmode`: expected disable,",
        ),
        ("postgres://me:hunter2@db:99999/x", "invalid port: expected"),
        ("postgres://me:hunter2@d b/x", "invalid host: expected"),
        ("postgres://me:hunter2/@db/x", "with `%40` for an `@`"),
        // A part of the password has the place of a parameter.
        ("postgres://me:1?hunter2@db/x", "with `%40` for an `@`"),
    ] {
        let error = open_error(url).await;
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn error_of_several_postgres_servers_names_each() {
    // Accepts connections and does not respond.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let error = open(&format!("postgres://{silent},127.0.0.1:1/x")).await;
    let error = error.err().expect("no server works");
    assert!(
        matches!(&error, OpenStoreError::Store(StoreError::Unavailable(_))),
        "{error:?}"
    );
    let error = error.to_string();
    let expected = format!(
        "store unavailable: no server accepts writes: {silent}: no response within 2.5s; 127.0.0.1:1: Connection refused"
    );
    assert!(error.starts_with(&expected), "{error}");
}
