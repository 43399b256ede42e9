//! A deployment that several people approve. The call is a task: it waits for days, survives restarts, and leaves memory
//! while it waits.

use futures_util::future::try_join_all;
use refrain::prelude::*;
use refrain::server::ServerBuilder;

const APPROVERS: [&str; 3] = ["security", "operations", "product"];

#[derive(Deserialize, JsonSchema)]
struct Deploy {
    /// The service to deploy.
    service: String,
    /// The version to deploy.
    version: String,
}

#[derive(Deserialize, Elicit)]
struct Approval {
    /// Do you approve?
    approve: bool,
    /// A comment for the others
    comment: Option<String>,
}

/// Deploys a version of a service once everyone has approved.
#[tool(task)]
async fn deploy(cx: Cx, cluster: State<Cluster>, args: Deploy) -> Result<String> {
    let release = format!("{} {}", args.service, args.version);
    cx.status(format!("Waiting for {} approvals.", APPROVERS.len()));
    // All questions are open at the same time, each under its own key: `security`, `operations`, `product`. The client
    // passes each to the right person; answers may arrive days apart and in any order.
    let answers = try_join_all(APPROVERS.map(|approver| {
        let question = format!("{approver}: deploy {release}?");
        cx.elicit::<Approval>(approver, question)
    }));
    for (approver, answer) in APPROVERS.iter().zip(answers.await?) {
        if !answer.approve {
            let why = answer.comment.unwrap_or("without a comment".into());
            return Ok(format!("Not deployed: {approver} refused ({why})."));
        }
    }
    cx.status(format!("Deploying {release}."));
    let url = cx
        .step_with_key("roll_out", |key| cluster.roll_out(&release, key))
        .await?;
    Ok(format!("Deployed {release} to {url}."))
}

/// Stands in for a cluster that ignores a repeated request with the same key.
struct Cluster;

impl Cluster {
    async fn roll_out(&self, release: &str, key: String) -> Result<String> {
        eprintln!("rolling out {release}, idempotency key {key}");
        Ok("https://cluster.example.com".into())
    }
}

pub(crate) fn server() -> ServerBuilder {
    Server::builder("deployments", "1.0")
        .state(Cluster)
        .tool(deploy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain::store::MemoryStore;
    use refrain_client::{AskAnswer, Client};
    use refrain_testkit::net;
    use serde_json::json;
    use std::sync::Arc;

    /// Runs a task over HTTP in which everyone approves, except one.
    async fn deploy_refused_by(refuser: &'static str) -> String {
        let store = Arc::new(MemoryStore::default());
        let instance = net::start(server().store(store)).await;
        let client = Client::builder().on_form(move |ask| async move {
            let approve = ask.key != refuser;
            Ok(AskAnswer::accept(json!({"approve": approve}))?)
        });
        let client = client.connect(&instance.url()).await.expect("a server");
        let arguments = json!({"service": "shop", "version": "2.1"});
        crate::text(client.call_tool("deploy", arguments).await)
    }

    #[tokio::test]
    async fn deployment_needs_every_approval() {
        let deployed = "Deployed shop 2.1 to https://cluster.example.com.";
        assert_eq!(deploy_refused_by("nobody").await, deployed);
        let refused = "Not deployed: operations refused (without a comment).";
        assert_eq!(deploy_refused_by("operations").await, refused);
    }
}
