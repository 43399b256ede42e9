//! Opening stores by their URL. Errors must not contain the URL.

use refrain_store::{OpenStoreError, open};

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
