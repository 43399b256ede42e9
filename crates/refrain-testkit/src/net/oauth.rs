//! Two servers on one port: an MCP server that requires access tokens, and the OAuth authorization server that issues them.
//!
//! A test changes their behaviour and reads the requests that they received.

pub use super::http_server::CannedResponse;

use super::{FakeServer, Received, Respond, until};
use bytes::Bytes;
use hyper::header::AUTHORIZATION;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;
use url::Url;

/// Both servers. Clones are the same servers.
#[derive(Clone)]
pub struct OAuthServer {
    pub origin: String,
    server: FakeServer,
    behaviour: Arc<Mutex<Behaviour>>,
}

pub type Mint = Arc<dyn Fn(Option<&str>) -> String + Send + Sync>;

/// How the servers behave.
pub struct Behaviour {
    /// The valid access tokens, with their scopes.
    pub access_tokens: HashMap<String, HashSet<String>>,
    /// The valid refresh tokens.
    pub refresh_tokens: HashSet<String>,
    /// Whether a refresh token is valid for one use and replaced by another.
    pub has_rotation: bool,
    /// The lifetime of access tokens, in seconds.
    pub expires_in: u64,
    /// The scope that requests need.
    pub scope: Option<&'static str>,
    /// Responses that replace the default ones, by path.
    pub instead: HashMap<&'static str, CannedResponse>,
    /// Changes to the metadata of the authorization server.
    pub metadata: Value,
    /// Changes to the protected resource metadata of the MCP server.
    pub resource: Value,
    pub token_type: &'static str,
    /// Makes an access token, bound to the key with this thumbprint (DPoP).
    pub mint: Option<Mint>,
    /// The token endpoint responds while this is true.
    pub gate: watch::Receiver<bool>,
    /// The thumbprint that the client sent last.
    thumbprint: Option<String>,
    /// The number of access tokens so far.
    issued: usize,
    /// The number of requests that the MCP server refused.
    refused: usize,
}

impl OAuthServer {
    pub async fn start() -> Self {
        let (_, open) = watch::channel(true);
        let behaviour = Arc::new(Mutex::new(Behaviour {
            access_tokens: HashMap::new(),
            refresh_tokens: HashSet::new(),
            has_rotation: true,
            expires_in: 3600,
            scope: None,
            instead: HashMap::new(),
            metadata: json!({}),
            resource: json!({}),
            token_type: "Bearer",
            mint: None,
            thumbprint: None,
            gate: open,
            issued: 0,
            refused: 0,
        }));
        let shared = Arc::clone(&behaviour);
        let respond =
            move |request: &Received, server: &FakeServer| shared.lock().respond(request, server);
        let server = FakeServer::start_with(respond).await;
        Self {
            origin: origin(&server).to_owned(),
            server,
            behaviour,
        }
    }

    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock());
    }

    /// Replaces the response of a path.
    pub fn instead(&self, path: &'static str, status: u16, body: impl Into<Bytes>) {
        self.answer(path, CannedResponse::new(status).body(body));
    }

    pub fn answer(&self, path: &'static str, answer: CannedResponse) {
        self.change(|behaviour| _ = behaviour.instead.insert(path, answer));
    }

    pub fn url(&self) -> Url {
        Url::parse(&self.server.url).expect("a URL")
    }

    pub fn requests_to(&self, path: &str) -> Vec<Received> {
        self.server.received(|one| one.path == path)
    }

    /// The number of requests that the MCP server refused.
    pub fn refusals(&self) -> usize {
        self.behaviour.lock().refused
    }

    pub async fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        until("a request to the servers", || condition(self)).await;
    }

    /// An access token that was issued.
    pub fn stolen_token(&self) -> String {
        let behaviour = self.behaviour.lock();
        behaviour
            .access_tokens
            .keys()
            .next()
            .expect("a token")
            .clone()
    }

    pub fn expire_access_tokens(&self) {
        self.change(|behaviour| behaviour.access_tokens.clear());
    }
}

fn origin(server: &FakeServer) -> &str {
    server.url.trim_end_matches("/mcp")
}

impl Behaviour {
    fn respond(&mut self, request: &Received, server: &FakeServer) -> Respond {
        let (origin, params) = (origin(server), &request.params);
        let path = request.path.as_str();
        let answer = match (self.instead.get(path), path) {
            (Some(answer), _) => answer.clone(),
            (None, "/mcp") => self.mcp(request, origin),
            (None, "/.well-known/oauth-protected-resource/mcp") => {
                let resource = json!({
                    "resource": server.url,
                    "authorization_servers": [origin],
                });
                CannedResponse::json(200, &merged(resource, &self.resource))
            }
            (None, "/.well-known/oauth-authorization-server") => {
                let metadata = json!({
                    "issuer": origin,
                    "authorization_endpoint": format!("{origin}/authorize"),
                    "token_endpoint": format!("{origin}/token"),
                    "registration_endpoint": format!("{origin}/register"),
                    "code_challenge_methods_supported": ["S256"],
                    "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
                    "authorization_response_iss_parameter_supported": true,
                });
                CannedResponse::json(200, &merged(metadata, &self.metadata))
            }
            (None, "/register") => CannedResponse::json(201, &json!({"client_id": "registered"})),
            (None, "/authorize") => {
                self.thumbprint = params.get("dpop_jkt").cloned();
                authorize(origin, params)
            }
            (None, "/token") => self.token(params),
            (None, _) => CannedResponse::new(404),
        };
        self.refused += usize::from(path == "/mcp" && (400..500).contains(&answer.status));
        let answer = answer.header("connection", "close");
        match path {
            "/token" => Respond::When(self.gate.clone(), answer),
            _ => Respond::With(answer),
        }
    }

    fn mcp(&self, request: &Received, origin: &str) -> CannedResponse {
        let refuse = |status, error: &str| {
            let scope = self.scope.map(|scope| format!(", scope=\"{scope}\""));
            let scope = scope.unwrap_or_default();
            let metadata = format!("{origin}/.well-known/oauth-protected-resource/mcp");
            let challenge =
                format!("Bearer error=\"{error}\"{scope}, resource_metadata=\"{metadata}\"");
            CannedResponse::new(status).header("www-authenticate", challenge)
        };
        let token = request.header(AUTHORIZATION.as_str());
        let token = token.and_then(|token| Some(token.split_once(' ')?.1));
        match token.and_then(|token| self.access_tokens.get(token)) {
            None => refuse(401, "invalid_token"),
            Some(scopes) if self.scope.is_some_and(|scope| !scopes.contains(scope)) => {
                refuse(403, "insufficient_scope")
            }
            Some(_) => CannedResponse::json(200, &json!({})),
        }
    }

    fn token(&mut self, params: &HashMap<String, String>) -> CannedResponse {
        let is_renewal = params["grant_type"] == "refresh_token";
        if is_renewal && !self.refresh_tokens.remove(&params["refresh_token"]) {
            return CannedResponse::json(400, &json!({"error": "invalid_grant"}));
        }
        // The scopes are in the code, see `authorize`.
        let code = params.get("code").map_or("", String::as_str);
        let scopes = code.split(' ').skip(1).map(str::to_owned).collect();
        let access = match &self.mint {
            Some(mint) => mint(self.thumbprint.as_deref()),
            None => format!("secret-access-{}", self.issued),
        };
        let refresh = format!("secret-refresh-{}", self.issued);
        self.issued += 1;
        self.access_tokens.insert(access.clone(), scopes);
        let mut token = json!({
            "access_token": access,
            "token_type": self.token_type,
            "expires_in": self.expires_in,
        });
        if is_renewal && !self.has_rotation {
            self.refresh_tokens.insert(params["refresh_token"].clone());
        } else {
            token["refresh_token"] = json!(refresh);
            self.refresh_tokens.insert(refresh);
        }
        CannedResponse::json(200, &token)
    }
}

/// The redirect after the user agreed. The code contains the requested scopes.
fn authorize(origin: &str, params: &HashMap<String, String>) -> CannedResponse {
    let mut back = Url::parse(&params["redirect_uri"]).expect("a URL");
    let scope = params.get("scope").map_or("", String::as_str);
    back.query_pairs_mut()
        .append_pair("code", &format!("secret-code {scope}"))
        .append_pair("state", &params["state"])
        .append_pair("iss", origin);
    CannedResponse::new(302).header("location", back)
}

/// Applies changes to an object; null removes a member.
fn merged(mut object: Value, changes: &Value) -> Value {
    let members = object.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => _ = members.remove(name),
            value => _ = members.insert(name.clone(), value.clone()),
        }
    }
    object
}
