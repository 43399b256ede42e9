//! An MCP server that requires access tokens and its OAuth authorization server, on one port.
//!
//! A test changes their behaviour and reads the requests that they received.

use super::http_server::{Body, full};
use super::{HttpRequest, listen, serve_http, within};
use bytes::Bytes;
use hyper::header::{self, HeaderMap};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use url::{Url, form_urlencoded};

/// Both servers. Clones are the same.
#[derive(Clone)]
pub struct OAuthServer {
    pub origin: String,
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Behaviour>,
    log: watch::Sender<Vec<Asked>>,
    count: AtomicUsize,
}

/// How the servers behave.
pub struct Behaviour {
    /// The valid access tokens, with their scopes.
    pub good: HashMap<String, HashSet<String>>,
    /// The valid refresh tokens.
    pub refresh: HashSet<String>,
    /// Whether a refresh token is valid for one use and replaced by another.
    pub rotates: bool,
    pub expires_in: u64,
    /// The scope that requests need.
    pub scope: Option<&'static str>,
    /// Answers in place of the usual ones, by path.
    pub instead: HashMap<&'static str, Answer>,
    /// Changes to the metadata of the authorization server.
    pub metadata: Value,
    /// Changes to the metadata of the server.
    pub resource: Value,
    pub token_type: &'static str,
    /// The token endpoint answers while this is true.
    pub gate: watch::Receiver<bool>,
}

/// An answer that a test chooses.
#[derive(Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

impl Answer {
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A request that was received.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: HeaderMap,
    /// The parameters of the query or of the form.
    pub params: HashMap<String, String>,
    pub status: StatusCode,
}

impl OAuthServer {
    pub async fn start() -> Self {
        let listener = listen().await;
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
        let server = Self {
            origin,
            inner: Arc::new(inner),
        };
        let own = server.clone();
        serve_http(listener, move |request| serve(own.clone(), request));
        server
    }

    fn state(&self) -> MutexGuard<'_, Behaviour> {
        self.inner.state.lock().expect("no panic")
    }

    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.state());
    }

    /// Replaces the answer of a path.
    pub fn instead(&self, path: &'static str, status: u16, body: impl Into<Bytes>) {
        let body = body.into();
        self.answer(
            path,
            Answer {
                body,
                ..Answer::new(status)
            },
        );
    }

    pub fn answer(&self, path: &'static str, answer: Answer) {
        self.change(|does| _ = does.instead.insert(path, answer));
    }

    pub fn url(&self) -> Url {
        Url::parse(&format!("{}/mcp", self.origin)).expect("a URL")
    }

    /// The requests for a path.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        let log = self.inner.log.borrow();
        log.iter().filter(|one| one.path == path).cloned().collect()
    }

    /// The number of requests that the server refused.
    pub fn refusals(&self) -> usize {
        let is_refusal = |one: &&Asked| one.status.is_client_error();
        self.asked("/mcp").iter().filter(is_refusal).count()
    }

    pub async fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        let mut log = self.inner.log.subscribe();
        within("a request to the servers", async {
            while !is_so(self) {
                log.changed().await.expect("the servers run");
            }
        })
        .await;
    }

    /// Revokes all access tokens.
    pub fn expire_all(&self) {
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
        merge(&mut metadata, &self.state().metadata);
        metadata
    }

    fn resource(&self) -> Value {
        let mut resource = json!({
            "resource": self.url().as_str(),
            "authorization_servers": [self.origin],
        });
        merge(&mut resource, &self.state().resource);
        resource
    }

    fn mcp(&self, headers: &HeaderMap) -> Response<Body> {
        let state = self.state();
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

    /// The redirect after the user agreed.
    fn authorize(&self, params: &HashMap<String, String>) -> Response<Body> {
        let mut back = Url::parse(&params["redirect_uri"]).expect("a URL");
        let scope = params.get("scope").map_or("", String::as_str);
        back.query_pairs_mut()
            .append_pair("code", &format!("secret-code {scope}"))
            .append_pair("state", &params["state"])
            .append_pair("iss", &self.origin);
        reply(302, &[("location", back.to_string())], "")
    }

    fn token(&self, params: &HashMap<String, String>) -> Response<Body> {
        let number = self.inner.count.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
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

async fn serve(server: OAuthServer, request: HttpRequest) -> Response<Body> {
    let path = request.uri.path().to_owned();
    let query = request.uri.query().map_or(&request.body[..], str::as_bytes);
    let params: HashMap<_, _> = form_urlencoded::parse(query).into_owned().collect();
    let instead = server.state().instead.get(path.as_str()).cloned();
    let mut response = match (instead, path.as_str()) {
        (Some(answer), _) => reply(answer.status, &answer.headers, answer.body),
        (None, "/mcp") => server.mcp(&request.headers),
        (None, "/.well-known/oauth-protected-resource/mcp") => {
            reply(200, &[], server.resource().to_string())
        }
        (None, "/.well-known/oauth-authorization-server") => {
            reply(200, &[], server.metadata().to_string())
        }
        (None, "/register") => reply(201, &[], r#"{"client_id": "registered"}"#),
        (None, "/authorize") => server.authorize(&params),
        (None, "/token") => server.token(&params),
        (None, _) => reply(404, &[], ""),
    };
    server.inner.log.send_modify(|log| {
        log.push(Asked {
            path: path.clone(),
            headers: request.headers,
            params,
            status: response.status(),
        });
    });
    if path == "/token" {
        let mut gate = server.state().gate.clone();
        // The gate is open once its sender is dropped.
        let _ = gate.wait_for(|is_open| *is_open).await;
    }
    response
        .headers_mut()
        .insert(header::CONNECTION, "close".parse().expect("a value"));
    response
}

fn reply(
    status: u16,
    headers: &[(&'static str, String)],
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(full(body)).expect("a response")
}

/// Merges changes into an object; null removes a member.
fn merge(object: &mut Value, changes: &Value) {
    let object = object.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => _ = object.remove(name),
            value => _ = object.insert(name.clone(), value.clone()),
        }
    }
}
