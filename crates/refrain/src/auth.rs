//! Authentication of callers over HTTP, and their scopes.

pub use refrain_core::Principal;
pub use refrain_server::{
    AuthFuture, AuthRejection, Authenticator, BadToken, BearerTokens, Caller, ResourceMetadata,
    Scopes, TrustedProxy, TrustedProxyError,
};
#[cfg(feature = "jwt")]
pub use refrain_server::{Jwks, JwtVerifier, JwtVerifierBuilder, JwtVerifierError};
