//! Authentication of callers over HTTP.
//!
//! The errors of these types, and `AuthFuture` and `AuthRejection` for a custom [`Authenticator`], are in
//! [`runtime::server`](crate::runtime::server).

pub use refrain_core::Principal;
pub use refrain_server::{Authenticator, BearerTokens, Caller, ResourceMetadata, TrustedProxy};
#[cfg(feature = "jwt")]
pub use refrain_server::{Jwks, JwtVerifier};
