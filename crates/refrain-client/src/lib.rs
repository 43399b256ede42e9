//! A client for MCP servers whose calls may take more than one round trip.

mod auth;

pub use auth::{
    AuthError, Authorize, Bearer, BoxError, Grant, Grants, IdentityProvider, OAuth, OAuthBuilder,
    Refusal, RegisteredClient,
};
