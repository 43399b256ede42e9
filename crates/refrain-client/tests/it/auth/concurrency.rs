//! Concurrent requests that need authorization.

use super::support::{
    Memory, OAuthServer, approve, by_browser, redirect_uri, request, request_counted, within,
    without_person,
};
use futures_util::future::join_all;
use refrain_client::{AuthError, Authorize, OAuth, OAuthBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, watch};

const MANY: usize = 20;

#[tokio::test]
async fn concurrent_rejections_share_one_authorization() {
    let server = OAuthServer::start().await;
    let (seen, visits) = (server.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&visits);
    let oauth = OAuth::by_browser(redirect_uri(), move |url| {
        counted.fetch_add(1, Ordering::Relaxed);
        let server = seen.clone();
        async move {
            server.wait_until(|server| server.refusals() == MANY).await;
            approve(url).await
        }
    });
    let oauth = oauth.build().unwrap();
    let url = server.url();
    let done = within(join_all((0..MANY).map(|_| request(&oauth, &url)))).await;
    for status in done {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(visits.load(Ordering::Relaxed), 1);
    assert_eq!(server.requests_to("/register").len(), 1);
    assert_eq!(server.requests_to("/token").len(), 1);
    assert_eq!(server.refusals(), MANY);
}

#[tokio::test]
async fn denied_authorization_fails_all_waiting_requests() {
    let server = OAuthServer::start().await;
    let rejections = watch::Sender::new(0);
    let (all, visits) = (rejections.subscribe(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&visits);
    let oauth = OAuth::by_browser(redirect_uri(), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let mut all = all.clone();
        async move {
            all.wait_for(|count| *count >= MANY).await?;
            Err("denied by the person".into())
        }
    });
    let oauth = oauth.build().unwrap();
    let url = server.url();
    let requests = (0..MANY).map(|_| request_counted(&oauth, &url, &rejections));
    for outcome in within(join_all(requests)).await {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("denied by the person"), "{text}");
    }
    assert_eq!(visits.load(Ordering::Relaxed), 1);
    assert_eq!(server.requests_to("/token").len(), 0);

    // A later request asks the person again.
    let later = request(&oauth, &url).await;
    assert_matches!(later, Err(AuthError::Browser(_)));
    assert_eq!(visits.load(Ordering::Relaxed), 2);
}

/// An authorization with a token that is about to expire, and without a person to ask.
async fn with_expiring_token(server: &OAuthServer) -> OAuth {
    let memory = Memory::default();
    let first = by_browser().grants(memory.clone()).build();
    let first = first.expect("a valid setup");
    let status = request(&first, &server.url()).await;
    assert_eq!(status.expect("a response"), 200);
    memory.age();
    without_person()
        .grants(memory)
        .build()
        .expect("a valid setup")
}

#[tokio::test]
async fn concurrent_requests_share_one_refresh() {
    let server = OAuthServer::start().await;
    let oauth = with_expiring_token(&server).await;
    let url = server.url();
    let done = within(join_all((0..MANY).map(|_| request(&oauth, &url)))).await;
    assert!(done.into_iter().all(|status| status.unwrap() == 200));
    assert_eq!(server.requests_to("/token").len(), 2);
    assert_eq!(server.refusals(), 1);
}

#[tokio::test]
async fn pending_authorization_does_not_block_requests_with_fewer_scopes() {
    let server = OAuthServer::start().await;
    let (asked, decided) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (notify, wait) = (Arc::clone(&asked), Arc::clone(&decided));
    let oauth = OAuth::by_browser(redirect_uri(), move |url| {
        let (notify, wait) = (Arc::clone(&notify), Arc::clone(&wait));
        async move {
            if url
                .query_pairs()
                .any(|(name, value)| name == "scope" && value.contains("write"))
            {
                notify.notify_one();
                wait.notified().await;
            }
            approve(url).await
        }
    });
    let oauth = oauth.build().unwrap();
    let url = server.url();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    server.change(|does| does.scope = Some("write"));
    let more = request(&oauth, &url);
    let less = async {
        within(asked.notified()).await;
        let headers = within(oauth.headers(&http::Method::POST, &url))
            .await
            .unwrap();
        assert!(headers.contains_key("authorization"));
        decided.notify_one();
    };
    let (more, ()) = tokio::join!(more, less);
    assert_eq!(more.unwrap(), 200);
}

#[tokio::test]
async fn refresh_completes_after_its_request_is_dropped() {
    let server = OAuthServer::start().await;
    let oauth = with_expiring_token(&server).await;
    let url = server.url();
    let (gate, closed) = watch::channel(false);
    server.change(|does| does.gate = closed);
    // The request is dropped after the refresh token was used, before the response arrives.
    tokio::select! {
        _ = oauth.headers(&http::Method::POST, &url) => panic!("the response is held back"),
        () = server.wait_until(|server| server.requests_to("/token").len() == 2) => {}
    }
    gate.send(true).unwrap();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    assert_eq!(server.requests_to("/token").len(), 2);
    assert_eq!(server.requests_to("/authorize").len(), 1);
}

/// Each authorization stands for a process; they share only the storage.
#[tokio::test]
async fn processes_with_one_storage_use_a_refresh_token_once() {
    let server = OAuthServer::start().await;
    let (memory, url) = (Memory::default(), server.url());
    let process = |setup: OAuthBuilder| setup.grants(memory.clone()).build().unwrap();
    request(&process(by_browser()), &url).await.unwrap();
    let processes: Vec<_> = (0..MANY).map(|_| process(without_person())).collect();
    // The first refresh is before the token expires, the second one after a rejection.
    for refreshes in 1..=2 {
        if refreshes == 1 {
            memory.age();
        } else {
            server.expire_access_tokens();
        }
        let requests = processes.iter().map(|oauth| request(oauth, &url));
        let done = within(join_all(requests)).await;
        assert!(done.into_iter().all(|status| status.unwrap() == 200));
        assert_eq!(server.requests_to("/token").len(), 1 + refreshes);
    }
}
