//! Many requests at once.

use super::support::{
    Memory, OAuthServer, by_browser, by_nobody, redirect_uri, request, request_counted, say_yes,
    within,
};
use futures_util::future::join_all;
use refrain_client::{AuthError, Authorize, OAuth};
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
            say_yes(url).await
        }
    });
    let oauth = oauth.build().unwrap();
    let url = server.url();
    let done = within(join_all((0..MANY).map(|_| request(&oauth, &url)))).await;
    for status in done {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(visits.load(Ordering::Relaxed), 1);
    assert_eq!(server.asked("/register").len(), 1);
    assert_eq!(server.asked("/token").len(), 1);
    assert_eq!(server.refusals(), MANY);
}

#[tokio::test]
async fn denied_authorization_fails_all_waiting_requests() {
    let server = OAuthServer::start().await;
    let heard = watch::Sender::new(0);
    let (all, visits) = (heard.subscribe(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&visits);
    let oauth = OAuth::by_browser(redirect_uri(), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let mut all = all.clone();
        async move {
            all.wait_for(|heard| *heard >= MANY).await?;
            Err("not today".into())
        }
    });
    let oauth = oauth.build().unwrap();
    let url = server.url();
    let requests = (0..MANY).map(|_| request_counted(&oauth, &url, &heard));
    for outcome in within(join_all(requests)).await {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("not today"), "{text}");
    }
    assert_eq!(visits.load(Ordering::Relaxed), 1);
    assert_eq!(server.asked("/token").len(), 0);

    // One that comes later asks anew.
    let later = request(&oauth, &url).await;
    assert!(matches!(later, Err(AuthError::Browser(_))), "{later:?}");
    assert_eq!(visits.load(Ordering::Relaxed), 2);
}

/// One that has a token which is about to expire, and nobody to ask for another.
async fn about_to_expire(server: &OAuthServer) -> OAuth {
    let memory = Memory::default();
    let first = by_browser().grants(memory.clone()).build();
    let first = first.expect("a good setup");
    let status = request(&first, &server.url()).await;
    assert_eq!(status.expect("an answer"), 200);
    memory.age();
    by_nobody().grants(memory).build().expect("a good setup")
}

#[tokio::test]
async fn concurrent_requests_share_one_refresh() {
    let server = OAuthServer::start().await;
    let oauth = about_to_expire(&server).await;
    let url = server.url();
    let done = within(join_all((0..MANY).map(|_| request(&oauth, &url)))).await;
    assert!(done.into_iter().all(|status| status.unwrap() == 200));
    assert_eq!(server.asked("/token").len(), 2);
    assert_eq!(server.refusals(), 1);
}

#[tokio::test]
async fn pending_authorization_does_not_block_requests_with_fewer_scopes() {
    let server = OAuthServer::start().await;
    let (thinking, decided) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&thinking), Arc::clone(&decided));
    let oauth = OAuth::by_browser(redirect_uri(), move |url| {
        let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
        async move {
            if url
                .query_pairs()
                .any(|(name, value)| name == "scope" && value.contains("write"))
            {
                tell.notify_one();
                wait.notified().await;
            }
            say_yes(url).await
        }
    });
    let oauth = oauth.build().unwrap();
    let url = server.url();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    server.change(|does| does.scope = Some("write"));
    let more = request(&oauth, &url);
    let less = async {
        within(thinking.notified()).await;
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
    let oauth = about_to_expire(&server).await;
    let url = server.url();
    let (gate, shut) = watch::channel(false);
    server.change(|does| does.gate = shut);
    // The refresh token is used up while the answer is on its way to somebody who goes.
    tokio::select! {
        _ = oauth.headers(&http::Method::POST, &url) => panic!("the answer waits"),
        () = server.wait_until(|server| server.asked("/token").len() == 2) => {}
    }
    gate.send(true).unwrap();
    assert_eq!(request(&oauth, &url).await.unwrap(), 200);
    assert_eq!(server.asked("/token").len(), 2);
    assert_eq!(server.asked("/authorize").len(), 1);
}
