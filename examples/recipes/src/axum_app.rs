//! An axum application with the MCP endpoint as one of its routes. `HttpService` is a tower service, so it fits into any
//! router, behind any layer. The application then does the work of `refrain_app` itself, such as draining: see `run`.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use refrain::prelude::*;
use refrain::server::{AllowedHosts, HttpService};
use refrain_app::AppError;
use std::time::Duration;

/// How long `/readyz` fails before the listener closes, so that a load balancer stops sending requests.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

#[derive(Deserialize, Elicit)]
struct Vote {
    /// Tea or coffee?
    drink: Drink,
}

#[derive(Deserialize, Elicit, Debug)]
enum Drink {
    Tea,
    Coffee,
}

/// Asks for a drink.
#[tool]
async fn vote(cx: Cx) -> Result<String> {
    let Vote { drink } = cx.elicit("drink", "What would you like?").await?;
    Ok(format!("One {drink:?}."))
}

/// The application: its own pages, and the MCP endpoint.
fn router(server: Server) -> Router {
    // In production: AllowedHosts::only(["mcp.example.com"])
    let endpoint = HttpService::new(server.clone(), AllowedHosts::local());
    let readiness = move || {
        let is_draining = server.is_draining();
        async move {
            match is_draining {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::OK,
            }
        }
    };
    Router::new()
        .route("/", get(|| async { "A page of the application." }))
        .route("/readyz", get(readiness))
        .route_service("/mcp", endpoint)
}

pub(crate) async fn run() -> Result<(), AppError> {
    let server = Server::builder("drinks", "1.0").tool(vote()).build()?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    let draining = server.clone();
    let stop = async move {
        _ = tokio::signal::ctrl_c().await;
        drain(&draining).await;
    };
    axum::serve(listener, router(server))
        .with_graceful_shutdown(stop)
        .await?;
    Ok(())
}

/// Prepares the end of the listener: hands on calls that can be continued elsewhere, and ends the others.
async fn drain(server: &Server) {
    server.start_draining();
    tokio::time::sleep(DRAIN_GRACE).await;
    // Live calls can no longer get answers.
    server.close_live();
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_client::{AskAnswer, Client};
    use refrain_testkit::net::{self, Request, http};
    use serde_json::json;

    #[tokio::test]
    async fn endpoint_and_pages_share_a_port() {
        let server = Server::builder("drinks", "1.0").tool(vote());
        let server = server.build().expect("a server");
        let listener = net::listen().await;
        let (address, url) = (
            listener.local_addr().expect("bound"),
            net::url_of(&listener),
        );
        tokio::spawn(axum::serve(listener, router(server.clone())).into_future());

        let client = Client::builder()
            .on_form(|_| async { Ok(AskAnswer::accept(json!({"drink": "Tea"}))?) });
        let client = client.connect(&url).await.expect("a server");
        let result = client.call_tool("vote", json!({})).await;
        assert_eq!(crate::text(result), "One Tea.");

        assert_eq!(http::send(address, &Request::get("/")).await.status, 200);
        let draining = server.clone();
        let drained = tokio::spawn(async move { drain(&draining).await });
        while !server.is_draining() {
            tokio::task::yield_now().await;
        }
        let readiness = http::send(address, &Request::get("/readyz")).await;
        assert_eq!(readiness.status, 503);
        drained.await.expect("it ends");
    }
}
