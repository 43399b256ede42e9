//! The client under test in the suite's client scenarios.
//!
//! The suite passes the URL of its server as an argument and the scenario in the environment.

mod answers;
mod auth;
mod scenarios;

use clap::{Args, ValueEnum};
use refrain::runtime::PROTOCOL_VERSION;
use refrain_client::{AskAnswer, AuthError, Client, ClientBuilder};
use serde_json::{Value, json};

/// The arguments and environment variables that the suite sets.
#[derive(Debug, Args)]
pub(crate) struct ScenarioOptions {
    /// The URL of the server.
    url: String,
    /// The scenario to run.
    #[arg(long, env = "MCP_CONFORMANCE_SCENARIO", value_name = "NAME")]
    scenario: Scenario,
    /// The data of the scenario, as JSON.
    #[arg(
        long,
        env = "MCP_CONFORMANCE_CONTEXT",
        value_name = "JSON",
        default_value = "null"
    )]
    context: String,
    /// The revision of the server. Ignored: the client discovers it.
    #[arg(
        long,
        env = "MCP_CONFORMANCE_PROTOCOL_VERSION",
        value_name = "REVISION",
        value_parser = [PROTOCOL_VERSION, "2025-11-25"],
        default_value = PROTOCOL_VERSION
    )]
    protocol_version: String,
}

/// The scenarios of the suite that this client supports.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Scenario {
    #[value(name = "initialize")]
    Initialize,
    #[value(name = "tools_call")]
    ToolsCall,
    #[value(name = "elicitation-sep1034-client-defaults")]
    Defaults,
    #[value(name = "sse-retry")]
    Retry,
    #[value(name = "request-metadata")]
    RequestMetadata,
    #[value(name = "http-standard-headers")]
    StandardHeaders,
    #[value(name = "http-custom-headers")]
    CustomHeaders,
    #[value(name = "http-invalid-tool-headers")]
    InvalidToolHeaders,
    #[value(name = "json-schema-ref-no-deref")]
    SchemaRefs,
    #[value(name = "json-schema-2020-12-preservation")]
    SchemaPreservation,
    #[value(name = "sep-2322-client-request-state")]
    RequestState,
    /// The user consents in a browser. The client uses dynamic registration.
    #[value(
        name = "auth/metadata-default",
        aliases = [
            "auth/metadata-var1",
            "auth/metadata-var2",
            "auth/metadata-var3",
            "auth/metadata-issuer-mismatch",
            "auth/scope-from-www-authenticate",
            "auth/scope-from-scopes-supported",
            "auth/scope-omitted-when-undefined",
            "auth/scope-step-up",
            "auth/scope-retry-limit",
            "auth/token-endpoint-auth-basic",
            "auth/token-endpoint-auth-post",
            "auth/token-endpoint-auth-none",
            "auth/resource-mismatch",
            "auth/offline-access-scope",
            "auth/offline-access-not-supported",
            "auth/authorization-server-migration",
            "auth/iss-supported",
            "auth/iss-not-advertised",
            "auth/iss-supported-missing",
            "auth/iss-wrong-issuer",
            "auth/iss-unexpected",
            "auth/iss-normalized",
            "auth/dpop",
            "auth/dpop-nonce",
        ]
    )]
    AuthByBrowser,
    #[value(name = "auth/basic-cimd")]
    AuthByMetadataUrl,
    #[value(name = "auth/pre-registration")]
    AuthByRegisteredClient,
    #[value(name = "auth/client-credentials-basic")]
    AuthBySecret,
    #[value(name = "auth/client-credentials-jwt")]
    AuthByKey,
    #[value(name = "auth/enterprise-managed-authorization")]
    AuthByProvider,
    #[value(name = "auth/wif-jwt-bearer")]
    AuthByWorkload,
}

/// A failed scenario.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Client(#[from] refrain_client::Error),
    #[error("invalid MCP_CONFORMANCE_CONTEXT: {0}")]
    Context(#[from] serde_json::Error),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error("the server does not list the tool {0:?}, or its schema is invalid")]
    NoTool(String),
    #[error("tool {tool} failed: {content}")]
    Tool { tool: String, content: Value },
}

/// Runs the scenario.
pub(crate) async fn run(options: &ScenarioOptions) -> Result<(), ClientError> {
    let context: Value = serde_json::from_str(&options.context)?;
    let scenario = options.scenario;
    let mut builder = builder();
    if let Scenario::Defaults = scenario {
        // The suite's server asks on the session stream.
        builder = builder.allow_unassociated_asks();
    }
    if let Some(oauth) = auth::oauth(scenario, &context)? {
        builder = builder.authorize(oauth);
    }
    let client = builder.connect(&options.url).await?;
    match scenario {
        Scenario::Initialize | Scenario::RequestMetadata => drop(client.tools().await?),
        Scenario::ToolsCall => scenarios::tools_call(&client).await?,
        Scenario::Defaults => {
            let tool = "test_client_elicitation_defaults";
            scenarios::call(&client, tool, json!({})).await?;
        }
        // The suite closes the stream before the reply.
        Scenario::Retry => scenarios::call(&client, "test_reconnection", json!({})).await?,
        Scenario::StandardHeaders => scenarios::standard_headers(&client).await?,
        Scenario::CustomHeaders => scenarios::custom_headers(&client, context).await?,
        Scenario::SchemaRefs => scenarios::schema_refs(&client).await?,
        Scenario::SchemaPreservation => scenarios::schema_preservation(&client).await?,
        Scenario::RequestState => scenarios::request_state(&client).await?,
        // The client does not list tools with invalid header annotations.
        Scenario::InvalidToolHeaders
        | Scenario::AuthByBrowser
        | Scenario::AuthByMetadataUrl
        | Scenario::AuthByRegisteredClient
        | Scenario::AuthBySecret
        | Scenario::AuthByKey
        | Scenario::AuthByProvider
        | Scenario::AuthByWorkload => scenarios::call_all(&client).await?,
    }
    Ok(())
}

/// A client with generated answers.
fn builder() -> ClientBuilder {
    Client::builder()
        .on_form(|ask| async move { Ok(AskAnswer::Accept(answers::fill_in(&ask.form))) })
        .on_sampling(|_| async { Ok(answers::no_model()) })
        .on_roots(|_| async { Ok(Vec::new()) })
}
