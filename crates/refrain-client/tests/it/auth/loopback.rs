//! The loopback listener for redirects.

use super::support::{OAuthServer, request, within};
use refrain_client::{AuthError, Loopback, OAuth};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::Url;

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn redirect_is_found_among_other_requests() {
    let server = OAuthServer::start().await;
    let loopback = Arc::new(Loopback::bind(0).await.unwrap());
    let redirect_uri = loopback.redirect_uri().clone();
    let oauth = OAuth::by_browser(redirect_uri.clone(), move |url| {
        let (loopback, redirect_uri) = (Arc::clone(&loopback), redirect_uri.clone());
        async move {
            let browser = async {
                let address = loopback.redirect_uri().socket_addrs(|| None)?;
                // More unused connections than the listener keeps, and one with an invalid request.
                let mut unused = Vec::new();
                for _ in 0..100 {
                    unused.push(TcpStream::connect(&*address).await?);
                }
                TcpStream::connect(&*address).await?.shutdown().await?;
                let mut invalid = TcpStream::connect(&*address).await?;
                invalid.write_all(&[b'x'; 40_000]).await.ok();
                for (other, status) in [
                    ("/favicon.ico", 404),
                    ("/callback", 404),
                    ("/callback?code=forged&state=guessed", 404),
                ] {
                    let page = reqwest::get(redirect_uri.join(other)?).await?;
                    assert_eq!(page.status(), status, "{other}");
                }
                let posted = reqwest::Client::new().post(redirect_uri.clone()).send();
                assert_eq!(posted.await?.status(), 404);
                let page = reqwest::get(url.clone()).await?;
                assert_eq!(page.status(), 200);
                assert!(page.text().await?.contains("close this window"));
                drop(unused);
                Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
            };
            let (redirect, done) = tokio::join!(loopback.wait_for_redirect(&url, TIMEOUT), browser);
            done?;
            Ok(redirect?)
        }
    });
    let outcome = within(request(&oauth.build().unwrap(), &server.url())).await;
    assert_eq!(outcome.unwrap(), 200);
    assert!(server.requests_to("/token")[0].params["code"].starts_with("secret-code"));
}

#[tokio::test]
async fn waiting_for_the_redirect_times_out() {
    let loopback = Loopback::bind(0).await.unwrap();
    let url = Url::parse("https://as.example.com/authorize?state=x").unwrap();
    let late = loopback
        .wait_for_redirect(&url, Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert_eq!(
        late.to_string(),
        "no redirect from the browser within 0 seconds"
    );
}

#[tokio::test]
async fn denied_authorization_is_received() {
    let server = OAuthServer::start().await;
    let loopback = Arc::new(Loopback::bind(0).await.unwrap());
    let origin = server.origin.clone();
    let oauth = OAuth::by_browser(loopback.redirect_uri().clone(), move |url| {
        let (loopback, origin) = (Arc::clone(&loopback), origin.clone());
        async move {
            let state = url.query_pairs().find(|(name, _)| name == "state");
            let state = state.ok_or("no state")?.1.into_owned();
            let mut back = loopback.redirect_uri().clone();
            back.query_pairs_mut()
                .append_pair("error", "access_denied")
                .append_pair("state", &state)
                .append_pair("iss", &origin);
            let browser = async {
                let address = back.socket_addrs(|| None)?;
                let mut stream = TcpStream::connect(&*address).await?;
                let target = format!("/callback?{}", back.query().unwrap_or_default());
                let get = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
                // In two chunks, as over a slow network.
                let (first, second) = get.split_at(9);
                stream.write_all(first.as_bytes()).await?;
                stream.flush().await?;
                tokio::task::yield_now().await;
                stream.write_all(second.as_bytes()).await?;
                let mut page = String::new();
                stream.read_to_string(&mut page).await?;
                Ok::<String, std::io::Error>(page)
            };
            let (redirect, page) = tokio::join!(loopback.wait_for_redirect(&url, TIMEOUT), browser);
            assert!(page?.starts_with("HTTP/1.1 200 OK\r\n"));
            Ok(redirect?)
        }
    });
    let outcome = within(request(&oauth.build().unwrap(), &server.url())).await;
    let Err(AuthError::Denied { error, .. }) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(error, "access_denied");
}
