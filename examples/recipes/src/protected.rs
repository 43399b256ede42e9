//! A server that accepts access tokens (JWT) of an authorization server, as MCP describes it. With `refrain_app::run`,
//! three flags do the same: `--issuer`, `--jwks` and `--resource`.

use refrain::auth::{Jwks, JwtVerifier, ResourceMetadata};
use refrain::prelude::*;
use refrain::server::{AllowedHosts, ServerBuilder, serve};
use refrain_app::AppError;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The authorization server, exactly as in the `iss` claim of its tokens.
    #[arg(long)]
    issuer: String,
    /// The URL of its keys.
    #[arg(long)]
    jwks: String,
    /// The URL of this endpoint as clients know it: the `aud` claim of the tokens.
    #[arg(long, default_value = "http://127.0.0.1:8080/mcp")]
    resource: String,
}

#[derive(Deserialize, Elicit)]
struct Confirmation {
    /// Shall I delete them?
    delete: bool,
}

/// Lists the notes of the caller.
#[tool]
async fn list_notes(cx: Cx) -> Result<String> {
    // The principal is `ISSUER#SUBJECT`. Never take the caller from the arguments.
    let caller = cx.principal().id().unwrap_or_default().to_owned();
    Ok(format!("3 notes of {caller}"))
}

/// Deletes the notes of the caller.
#[tool]
async fn delete_notes(cx: Cx) -> Result<String> {
    // The answer must come with an access token of the same principal and with the same scope.
    let Confirmation { delete } = cx.elicit("confirmation", "There are 3 notes.").await?;
    Ok(if delete { "Deleted." } else { "Kept." }.into())
}

fn server(settings: &Settings) -> Result<ServerBuilder, AppError> {
    let Settings {
        issuer,
        jwks,
        resource,
    } = settings;
    let keys = Jwks::Url(jwks.clone());
    let verifier = JwtVerifier::builder(issuer.as_str(), resource.as_str(), keys).build()?;
    Ok(Server::builder("notes", "1.0")
        .authenticator(verifier)
        // Tells clients at which authorization server they get a token.
        .resource_metadata(ResourceMetadata::new(resource, [issuer]))
        .scopes(["notes:read"]) // for every request
        .tool(list_notes())
        .tool(delete_notes().scopes(["notes:write"]))) // in addition
}

pub(crate) async fn run(settings: Settings) -> Result<(), AppError> {
    let server = server(&settings)?.build()?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    let ctrl_c = async { _ = tokio::signal::ctrl_c().await };
    Ok(serve(listener, server, AllowedHosts::local(), ctrl_c).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_client::{AskAnswer, AuthError, Bearer, Client, Error, ErrorKind};
    use refrain_testkit::net;
    use refrain_testkit::net::issuer::{AUDIENCE, ISSUER, KeyResponse, KeyServer, Signer, jwks};
    use serde_json::json;

    async fn connect(url: &str, token: Option<String>) -> Result<Client, Error> {
        let mut builder = Client::builder()
            .on_form(|_| async { Ok(AskAnswer::accept(json!({"delete": true}))?) });
        if let Some(token) = token {
            builder = builder.authorize(Bearer::new(&token)?);
        }
        builder.connect(url).await
    }

    #[tokio::test]
    async fn scopes_of_the_access_token_decide() {
        let signer = Signer::p256("key 1");
        let keys = KeyServer::start(KeyResponse::Keys(jwks(&[&signer]))).await;
        let settings = Settings {
            issuer: ISSUER.to_owned(),
            jwks: keys.url(),
            resource: AUDIENCE.to_owned(),
        };
        let instance = net::start(server(&settings).expect("valid settings")).await;
        let url = instance.url();

        let anonymous = connect(&url, None).await.map(|_| ()).expect_err("no token");
        assert!(matches!(
            anonymous.kind,
            ErrorKind::Auth(AuthError::Unauthorized)
        ));

        let reader = connect(&url, Some(signer.token_for("ada", "notes:read"))).await;
        let reader = reader.expect("a valid token");
        let listed = reader.call_tool("list_notes", json!({})).await;
        assert_eq!(crate::text(listed), format!("3 notes of {ISSUER}#ada"));
        let deleted = reader.call_tool("delete_notes", json!({})).await;
        deleted.expect_err("the scope is missing");

        let both = signer.token_for("ada", "notes:read notes:write");
        let writer = connect(&url, Some(both)).await.expect("a valid token");
        let deleted = writer.call_tool("delete_notes", json!({})).await;
        assert_eq!(crate::text(deleted), "Deleted.");
    }
}
