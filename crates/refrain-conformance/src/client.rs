//! A client that does what the suite's client scenarios ask for, and no more.
//!
//! The suite starts it with the URL of a server of its own, and says in the environment what it is to do there. It
//! speaks Streamable HTTP of one revision. It has no authorization, so it has no scenario of that group.

mod answers;
mod events;
mod exchange;
mod headers;
mod scenarios;
mod session;

use clap::{Args, ValueEnum};
use exchange::{Endpoint, UrlError};
use hyper::Uri;
use refrain::PROTOCOL_VERSION;
use session::{Session, SessionError};

/// What the suite says to a client: the URL as the last argument, the rest in the environment.
#[derive(Debug, Args)]
pub(crate) struct Instructions {
    /// The server to talk to.
    url: Uri,
    /// What to do there.
    #[arg(long, env = "MCP_CONFORMANCE_SCENARIO", value_name = "NAME")]
    scenario: Scenario,
    /// What the scenario wants to be used, as JSON.
    #[arg(
        long,
        env = "MCP_CONFORMANCE_CONTEXT",
        value_name = "JSON",
        default_value = "null"
    )]
    context: String,
    /// The revision of the protocol to speak.
    #[arg(
        long,
        env = "MCP_CONFORMANCE_PROTOCOL_VERSION",
        value_name = "REVISION",
        value_parser = [PROTOCOL_VERSION],
        default_value = PROTOCOL_VERSION
    )]
    protocol_version: String,
}

/// The scenarios this client knows, by the suite's names. Any other name is refused as a wrong argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Scenario {
    #[value(name = "tools_call")]
    ToolsCall,
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
    #[value(name = "sep-2322-client-request-state")]
    RequestState,
}

/// Why a scenario was not gone through to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The URL is none this client can reach.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// Talking to the server went wrong.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The context does not say what the scenario needs.
    #[error("MCP_CONFORMANCE_CONTEXT is not what the scenario needs: {0}")]
    Context(#[from] serde_json::Error),
    /// The server does not offer what the scenario is about.
    #[error("the server lists no usable tool {0:?}")]
    NoTool(String),
}

/// Goes through the scenario.
pub(crate) async fn run(instructions: &Instructions) -> Result<(), ClientError> {
    let session = Session::new(Endpoint::new(&instructions.url)?);
    match instructions.scenario {
        Scenario::ToolsCall => scenarios::tools_call(&session).await,
        Scenario::RequestMetadata => scenarios::request_metadata(&session).await,
        Scenario::StandardHeaders => scenarios::standard_headers(&session).await,
        Scenario::CustomHeaders => scenarios::custom_headers(&session, &instructions.context).await,
        Scenario::InvalidToolHeaders => scenarios::invalid_tool_headers(&session).await,
        Scenario::SchemaRefs => scenarios::schema_refs(&session).await,
        Scenario::RequestState => scenarios::request_state(&session).await,
    }
}
