//! Servers with tools of the same names in one store: none knows of the tasks of another.

use crate::support::tasks::{about, declared, eager, update};
use crate::support::{Request, within};
use refrain_core::{Cx, Principal, Result};
use refrain_server::{BuildError, Caller, Scopes, Server, Tool};
use refrain_store::MemoryStore;
use serde_json::{Value, json};
use std::sync::Arc;

const SPACES: [&str; 4] = ["", "draft", "draft-1", "draft-2"];

async fn work(cx: Cx) -> Result<&'static str> {
    cx.detach().await?;
    Ok("worked")
}

fn server(store: &MemoryStore, space: &str) -> Server {
    let secret = Tool::new("secret", work).scopes(["secrets"]);
    Server::builder("spaces", "1")
        // What the other spaces call theirs, without any need for a scope.
        .tool(Tool::new("draft-2:other", work))
        .tool(secret)
        .tasks(Arc::new(store.clone()), eager())
        .task_namespace(space)
        .build()
        .expect("a usable server")
}

fn alice(scopes: &str) -> Caller {
    Caller {
        principal: Principal::new("alice"),
        scopes: Scopes::parse(scopes),
        expires: None,
    }
}

async fn say(server: &Server, request: &Request, caller: Caller) -> Value {
    let mut out = server.handle(&request.message(), caller).await;
    let reply = within("a reply", out.next()).await.expect("a reply");
    serde_json::from_slice(&reply).expect("JSON")
}

#[tokio::test]
async fn a_task_is_there_in_its_own_space_only() {
    let store = MemoryStore::new();
    let servers = SPACES.map(|space| server(&store, space));
    for (home, made) in servers.iter().enumerate() {
        for tool in ["secret", "draft-2:other"] {
            let call = declared(Request::tool(tool, json!({})));
            let reply = say(made, &call, alice("secrets")).await;
            let id = reply["result"]["taskId"].as_str().expect("a task");
            for (other, server) in servers.iter().enumerate() {
                for request in [
                    about("tasks/get", id),
                    update(id, json!({"a": {"action": "cancel"}})),
                    about("tasks/cancel", id),
                ] {
                    if other != home {
                        for scopes in ["secrets", ""] {
                            let reply = say(server, &request, alice(scopes)).await;
                            assert_eq!(reply["error"]["code"], -32602, "{reply}");
                        }
                    }
                }
            }
            let get = about("tasks/get", id);
            let reply = say(made, &get, alice("secrets")).await;
            assert!(reply["result"]["status"] != "cancelled", "{reply}");
            assert_eq!(reply["result"]["taskId"], id, "{reply}");
            let reply = say(made, &get, alice("")).await;
            assert_eq!(reply["error"].is_object(), tool == "secret", "{reply}");
        }
    }
}

#[test]
fn a_space_cannot_be_taken_for_another() {
    let built = Server::builder("spaces", "1").task_namespace("a:b").build();
    let error = built.expect_err("a colon");
    assert!(matches!(error, BuildError::TaskNamespace { .. }), "{error}");
}
