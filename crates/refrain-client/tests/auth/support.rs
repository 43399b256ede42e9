//! A server that wants access tokens, and its authorization server, on one port.
//!
//! What they do can be changed by a test, and what was asked of them is written down.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use refrain_client::{AuthError, Authorize, Grant, Grants, OAuth, OAuthBuilder, Refusal};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::watch;
use url::{Url, form_urlencoded};

/// Time for what must happen.
const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Both servers.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) origin: String,
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Behaviour>,
    log: watch::Sender<Vec<Asked>>,
    count: AtomicUsize,
}

/// What the servers do.
pub(crate) struct Behaviour {
    /// The access tokens the server takes, with their scopes.
    pub(crate) good: HashMap<String, HashSet<String>>,
    /// The refresh tokens the authorization server takes.
    pub(crate) refresh: HashSet<String>,
    /// Whether a refresh token is good for one use, and another comes with what it gives.
    pub(crate) rotates: bool,
    pub(crate) expires_in: u64,
    /// The scope the server wants.
    pub(crate) scope: Option<&'static str>,
    /// What is answered in place of what would be, by path.
    pub(crate) instead: HashMap<&'static str, Answer>,
    /// Changes to the metadata of the authorization server.
    pub(crate) metadata: Value,
    /// Changes to the metadata of the server.
    pub(crate) resource: Value,
    pub(crate) token_type: &'static str,
    /// Whether answers of the token endpoint wait.
    pub(crate) gate: watch::Receiver<bool>,
}

/// An answer that a test makes up.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Something that was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The parameters of the query or of the form.
    pub(crate) params: HashMap<String, String>,
    pub(crate) status: StatusCode,
}

impl World {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let (_, open) = watch::channel(true);
        let behaviour = Behaviour {
            good: HashMap::new(),
            refresh: HashSet::new(),
            rotates: true,
            expires_in: 3600,
            scope: None,
            instead: HashMap::new(),
            metadata: json!({}),
            resource: json!({}),
            token_type: "Bearer",
            gate: open,
        };
        let inner = Inner {
            state: Mutex::new(behaviour),
            log: watch::Sender::new(Vec::new()),
            count: AtomicUsize::new(0),
        };
        let world = Self {
            origin,
            inner: Arc::new(inner),
        };
        let router = Router::new().fallback(serve).with_state(world.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        world
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.inner.state.lock().expect("nobody panicked"));
    }

    /// Has a path answered in another way.
    pub(crate) fn instead(&self, path: &'static str, status: u16, body: impl Into<Bytes>) {
        let body = body.into();
        self.answer(
            path,
            Answer {
                body,
                ..Answer::new(status)
            },
        );
    }

    pub(crate) fn answer(&self, path: &'static str, answer: Answer) {
        self.change(|does| _ = does.instead.insert(path, answer));
    }

    pub(crate) fn url(&self) -> Url {
        Url::parse(&format!("{}/mcp", self.origin)).expect("a URL")
    }

    /// What was asked at a path.
    pub(crate) fn asked(&self, path: &str) -> Vec<Asked> {
        let log = self.inner.log.borrow();
        log.iter().filter(|one| one.path == path).cloned().collect()
    }

    /// How often the server refused.
    pub(crate) fn refusals(&self) -> usize {
        let is_refusal = |one: &&Asked| one.status.is_client_error();
        self.asked("/mcp").iter().filter(is_refusal).count()
    }

    pub(crate) async fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        let mut log = self.inner.log.subscribe();
        within(async {
            while !is_so(self) {
                log.changed().await.expect("the world goes on");
            }
        })
        .await;
    }

    /// Whatever was given out so far is not taken any more.
    pub(crate) fn expire_all(&self) {
        self.change(|does| does.good.clear());
    }

    fn metadata(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.origin);
        let mut metadata = json!({
            "issuer": self.origin,
            "authorization_endpoint": at("/authorize"),
            "token_endpoint": at("/token"),
            "registration_endpoint": at("/register"),
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": true,
        });
        merge(
            &mut metadata,
            &self.inner.state.lock().expect("nobody panicked").metadata,
        );
        metadata
    }

    fn resource(&self) -> Value {
        let mut resource = json!({
            "resource": self.url(),
            "authorization_servers": [self.origin],
        });
        merge(
            &mut resource,
            &self.inner.state.lock().expect("nobody panicked").resource,
        );
        resource
    }

    fn mcp(&self, headers: &HeaderMap) -> Response {
        let state = self.inner.state.lock().expect("nobody panicked");
        let token = headers.get(header::AUTHORIZATION);
        let token = token.and_then(|token| token.to_str().ok()?.split_once(' '));
        let challenge = |error: &str, scope: &str| {
            format!(
                "Bearer error=\"{error}\"{scope}, resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"",
                self.origin
            )
        };
        let scope = state.scope.map(|scope| format!(", scope=\"{scope}\""));
        let scope_text = scope.unwrap_or_default();
        match token.and_then(|(_, token)| state.good.get(token)) {
            None => reply(
                401,
                &[("www-authenticate", challenge("invalid_token", &scope_text))],
                "",
            ),
            Some(scopes) if state.scope.is_some_and(|scope| !scopes.contains(scope)) => reply(
                403,
                &[(
                    "www-authenticate",
                    challenge("insufficient_scope", &scope_text),
                )],
                "",
            ),
            Some(_) => reply(200, &[], "{}"),
        }
    }

    /// What an authorization server makes of a person who says yes.
    fn authorize(&self, params: &HashMap<String, String>) -> Response {
        let mut back = Url::parse(&params["redirect_uri"]).expect("a URL");
        let scope = params.get("scope").map_or("", String::as_str);
        back.query_pairs_mut()
            .append_pair("code", &format!("secret-code {scope}"))
            .append_pair("state", &params["state"])
            .append_pair("iss", &self.origin);
        reply(302, &[("location", back.to_string())], "")
    }

    fn token(&self, params: &HashMap<String, String>) -> Response {
        let number = self.inner.count.fetch_add(1, Ordering::Relaxed);
        let mut state = self.inner.state.lock().expect("nobody panicked");
        let is_renewal = params["grant_type"] == "refresh_token";
        if is_renewal && !state.refresh.remove(&params["refresh_token"]) {
            return reply(400, &[], r#"{"error": "invalid_grant"}"#);
        }
        let code = params.get("code").map_or("", String::as_str);
        let scopes = code.split(' ').skip(1).map(str::to_owned).collect();
        let (access, refresh) = (
            format!("secret-access-{number}"),
            format!("secret-refresh-{number}"),
        );
        state.good.insert(access.clone(), scopes);
        let mut token = json!({
            "access_token": access,
            "token_type": state.token_type,
            "expires_in": state.expires_in,
        });
        if is_renewal && !state.rotates {
            state.refresh.insert(params["refresh_token"].clone());
        } else {
            token["refresh_token"] = json!(refresh);
            state.refresh.insert(refresh);
        }
        reply(
            200,
            &[("content-type", "application/json".to_owned())],
            token.to_string(),
        )
    }
}

async fn serve(State(world): State<World>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().map(str::as_bytes).unwrap_or(&body);
    let params: HashMap<_, _> = form_urlencoded::parse(query).into_owned().collect();
    let instead = world
        .inner
        .state
        .lock()
        .expect("nobody panicked")
        .instead
        .get(path.as_str())
        .cloned();
    let mut response = match (instead, path.as_str()) {
        (Some(answer), _) => reply(answer.status, &answer.headers, answer.body),
        (None, "/mcp") => world.mcp(&parts.headers),
        (None, "/.well-known/oauth-protected-resource/mcp") => {
            reply(200, &[], world.resource().to_string())
        }
        (None, "/.well-known/oauth-authorization-server") => {
            reply(200, &[], world.metadata().to_string())
        }
        (None, "/register") => reply(201, &[], r#"{"client_id": "registered"}"#),
        (None, "/authorize") => world.authorize(&params),
        (None, "/token") => world.token(&params),
        (None, _) => reply(404, &[], ""),
    };
    world.inner.log.send_modify(|log| {
        log.push(Asked {
            path: path.clone(),
            headers: parts.headers,
            params,
            status: response.status(),
        });
    });
    if path == "/token" {
        let mut gate = world
            .inner
            .state
            .lock()
            .expect("nobody panicked")
            .gate
            .clone();
        // Whoever holds the gate may be gone: then it is open.
        let _ = gate.wait_for(|is_open| *is_open).await;
    }
    response
        .headers_mut()
        .insert(header::CONNECTION, "close".parse().expect("a value"));
    response
}

fn reply(status: u16, headers: &[(&'static str, String)], body: impl Into<Bytes>) -> Response {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Body::from(body.into())).expect("a response")
}

/// Puts changes into an object. A null takes a member away.
fn merge(object: &mut Value, changes: &Value) {
    let object = object.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => _ = object.remove(name),
            value => _ = object.insert(name.clone(), value.clone()),
        }
    }
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, future).await;
    done.expect("it did not happen in time")
}

/// Keeps a grant as JSON.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Option<Value>>>);

impl Memory {
    /// What is kept is from an hour ago, and good for some seconds more.
    pub(crate) fn age(&self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time");
        let mut grant = self.0.lock().expect("nobody panicked");
        let grant = grant.as_mut().expect("something is kept");
        grant["obtained"] = json!(now.as_secs() - 3600);
        grant["expires"] = json!(now.as_secs() + 20);
    }
}

impl Grants for Memory {
    fn get<'a>(&'a self, _server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>> {
        let grant = self.0.lock().expect("nobody panicked").clone();
        Box::pin(async { Ok(grant.map(serde_json::from_value).transpose()?) })
    }

    fn put<'a>(&'a self, _: &'a Url, grant: &'a Grant) -> BoxFuture<'a, Result<(), BoxError>> {
        *self.0.lock().expect("nobody panicked") = Some(json!(grant));
        Box::pin(async { Ok(()) })
    }
}

/// Sends a request to the server as a client does: again, when the authorization says so.
pub(crate) async fn request(oauth: &OAuth, url: &Url) -> Result<StatusCode, AuthError> {
    request_counted(oauth, url, &watch::Sender::new(0)).await
}

/// The same, and counts how often the authorization heard of a refusal.
pub(crate) async fn request_counted(
    oauth: &OAuth,
    url: &Url,
    heard: &watch::Sender<usize>,
) -> Result<StatusCode, AuthError> {
    let client = reqwest::Client::new();
    for earlier in 0.. {
        let method = http::Method::POST;
        let sent = oauth.headers(&method, url).await?;
        let request = client.post(url.clone()).headers(sent.clone()).send();
        let response = within(request).await.expect("an answer");
        let status = response.status();
        if status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN {
            return Ok(status);
        }
        let refusal = Refusal {
            url,
            sent: &sent,
            status,
            headers: response.headers(),
            earlier,
        };
        heard.send_modify(|heard| *heard += 1);
        if !within(oauth.refused(refusal)).await? {
            return Ok(status);
        }
    }
    unreachable!("there is no end of numbers")
}

/// A person who says yes at once.
pub(crate) async fn say_yes(url: Url) -> Result<Url, BoxError> {
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let page = browser.build()?.get(url).send().await?;
    let location = page.headers().get(header::LOCATION).ok_or("no redirect")?;
    Ok(Url::parse(location.to_str()?)?)
}

pub(crate) fn redirect_uri() -> Url {
    Url::parse("http://127.0.0.1:8085/callback").expect("a URL")
}

pub(crate) fn by_browser() -> OAuthBuilder {
    OAuth::by_browser(redirect_uri(), say_yes)
}

/// Nobody is there to be asked, and nobody may be.
pub(crate) fn by_nobody() -> OAuthBuilder {
    OAuth::by_browser(redirect_uri(), |_| async {
        Err("nobody may be asked".into())
    })
}

/// A new private key.
pub(crate) fn pem() -> String {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
    let text = STANDARD.encode(key.expect("a key"));
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}
