//! An MCP server that requires access tokens and its OAuth authorization server, on one port.
//!
//! A test changes their behaviour and reads the requests that they received.

use super::http_server::{Body, respond, serve_http};
use super::{listen, within};
use bytes::Bytes;
use hyper::header::{self, HeaderMap};
use hyper::{Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
#[derive(Clone, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

impl Answer {
    pub fn new(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
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
        let server = Self {
            origin,
            inner: Arc::new(Inner {
                state: Mutex::new(behaviour),
                log: watch::Sender::default(),
                count: AtomicUsize::new(0),
            }),
        };
        let own = server.clone();
        serve_http(listener, None, move |request| serve(own.clone(), request));
        server
    }

    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.inner.state.lock());
    }

    /// Replaces the answer of a path.
    pub fn instead(&self, path: &'static str, status: u16, body: impl Into<Bytes>) {
        let mut answer = Answer::new(status);
        answer.body = body.into();
        self.answer(path, answer);
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
        merge(&mut metadata, &self.inner.state.lock().metadata);
        metadata
    }

    fn resource(&self) -> Value {
        let mut resource = json!({
            "resource": self.url().as_str(),
            "authorization_servers": [self.origin],
        });
        merge(&mut resource, &self.inner.state.lock().resource);
        resource
    }

    fn mcp(&self, headers: &HeaderMap) -> Response<Body> {
        let state = self.inner.state.lock();
        let token = headers.get(header::AUTHORIZATION);
        let token = token.and_then(|token| token.to_str().ok()?.split_once(' '));
        let refuse = |status, error: &str| {
            let scope = state.scope.map(|scope| format!(", scope=\"{scope}\""));
            let scope = scope.unwrap_or_default();
            let metadata = format!("{}/.well-known/oauth-protected-resource/mcp", self.origin);
            let challenge =
                format!("Bearer error=\"{error}\"{scope}, resource_metadata=\"{metadata}\"");
            respond(status, &[("www-authenticate", challenge)], "")
        };
        match token.and_then(|(_, token)| state.good.get(token)) {
            None => refuse(401, "invalid_token"),
            Some(scopes) if state.scope.is_some_and(|scope| !scopes.contains(scope)) => {
                refuse(403, "insufficient_scope")
            }
            Some(_) => json_response(200, &json!({})),
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
        respond(302, &[("location", back)], "")
    }

    fn token(&self, params: &HashMap<String, String>) -> Response<Body> {
        let number = self.inner.count.fetch_add(1, Ordering::Relaxed);
        let mut state = self.inner.state.lock();
        let is_renewal = params["grant_type"] == "refresh_token";
        if is_renewal && !state.refresh.remove(&params["refresh_token"]) {
            return json_response(400, &json!({"error": "invalid_grant"}));
        }
        let code = params.get("code").map_or("", String::as_str);
        let scopes = code.split(' ').skip(1).map(str::to_owned).collect();
        let access = format!("secret-access-{number}");
        let refresh = format!("secret-refresh-{number}");
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
        json_response(200, &token)
    }
}

async fn serve(server: OAuthServer, request: Request<Bytes>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let query = head.uri.query().map_or(&body[..], str::as_bytes);
    let params: HashMap<_, _> = form_urlencoded::parse(query).into_owned().collect();
    let instead = server
        .inner
        .state
        .lock()
        .instead
        .get(path.as_str())
        .cloned();
    let mut response = match (instead, path.as_str()) {
        (Some(answer), _) => respond(answer.status, &answer.headers, answer.body),
        (None, "/mcp") => server.mcp(&head.headers),
        (None, "/.well-known/oauth-protected-resource/mcp") => {
            json_response(200, &server.resource())
        }
        (None, "/.well-known/oauth-authorization-server") => json_response(200, &server.metadata()),
        (None, "/register") => json_response(201, &json!({"client_id": "registered"})),
        (None, "/authorize") => server.authorize(&params),
        (None, "/token") => server.token(&params),
        (None, _) => respond::<&str>(404, &[], ""),
    };
    server.inner.log.send_modify(|log| {
        log.push(Asked {
            path: path.clone(),
            headers: head.headers,
            params,
            status: response.status(),
        });
    });
    if path == "/token" {
        let mut gate = server.inner.state.lock().gate.clone();
        // The gate is open once its sender is dropped.
        let _ = gate.wait_for(|is_open| *is_open).await;
    }
    let close = header::HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

fn json_response(status: u16, body: &Value) -> Response<Body> {
    let kind = ("content-type", "application/json");
    respond(status, &[kind], body.to_string())
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
