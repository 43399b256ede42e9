//! Task namespaces: servers with tools of the same names in one store.

use crate::support::tasks::{about, declared, eager, update};
use crate::support::{Request, handle};
use refrain_core::{Cx, Principal, Result};
use refrain_server::{BuildError, Caller, Scopes, Server, Tool};
use refrain_store::MemoryStore;
use serde_json::json;
use std::sync::Arc;

const NAMESPACES: [&str; 4] = ["", "draft", "draft-1", "draft-2"];

async fn work(cx: Cx) -> Result<&'static str> {
    cx.detach().await?;
    Ok("worked")
}

fn server(store: &MemoryStore, namespace: &str) -> Server {
    let secret = Tool::new("secret", work).scopes(["secrets"]);
    Server::builder("namespaces", "1")
        // The stored name of a tool in another namespace, without scopes.
        .tool(Tool::new("draft-2:other", work))
        .tool(secret)
        .tasks(Arc::new(store.clone()), eager())
        .task_namespace(namespace)
        .build()
        .expect("the server builds")
}

fn alice(scopes: &str) -> Caller {
    Caller {
        scopes: Scopes::parse(scopes),
        ..Principal::new("alice").into()
    }
}

#[tokio::test]
async fn task_is_visible_only_in_its_namespace() {
    let store = MemoryStore::new();
    let servers = NAMESPACES.map(|namespace| server(&store, namespace));
    for (home, owner) in servers.iter().enumerate() {
        for tool in ["secret", "draft-2:other"] {
            let call = declared(Request::tool(tool, json!({})));
            let reply = handle(owner, &call, alice("secrets")).await;
            let id = reply["result"]["taskId"].as_str().expect("the task exists");
            for (other, server) in servers.iter().enumerate() {
                for request in [
                    about("tasks/get", id),
                    update(id, json!({"a": {"action": "cancel"}})),
                    about("tasks/cancel", id),
                ] {
                    if other != home {
                        for scopes in ["secrets", ""] {
                            let reply = handle(server, &request, alice(scopes)).await;
                            assert_eq!(reply["error"]["code"], -32602, "{reply}");
                        }
                    }
                }
            }
            let get = about("tasks/get", id);
            let reply = handle(owner, &get, alice("secrets")).await;
            assert!(reply["result"]["status"] != "cancelled", "{reply}");
            assert_eq!(reply["result"]["taskId"], id, "{reply}");
            let reply = handle(owner, &get, alice("")).await;
            assert_eq!(reply["error"].is_object(), tool == "secret", "{reply}");
        }
    }
}

#[test]
fn namespace_with_colon_is_rejected() {
    let built = Server::builder("namespaces", "1")
        .task_namespace("a:b")
        .build();
    let error = built.expect_err("the namespace has a colon");
    assert!(matches!(error, BuildError::TaskNamespace { .. }), "{error}");
}
