//! Calls of tools that the user picks from a menu, for `refrain dev`.

use super::call::{self, ToolOptions};
use super::stderr;
use crate::terminal::Terminal;
use crate::{AppError, print_error};
use clap::Parser;
use refrain_client::{Client, Error};
use refrain_wire::ToolInfo;
use serde_json::{Map, Value};
use tokio::sync::watch;

/// A call, parsed from the words of a `refrain call` command.
#[derive(Parser)]
struct PickedCall {
    #[command(flatten)]
    options: ToolOptions,
}

/// Shows the menu whenever the server is ready, and makes the calls. Text that is printed meanwhile, and a server that is no
/// longer ready, remove the menu for a moment. Ends only with an error.
pub(crate) async fn call_picked_tools(
    terminal: &Terminal,
    url: &str,
    mut is_ready: watch::Receiver<bool>,
) -> Result<(), AppError> {
    let (mut tools, mut start) = (Vec::new(), 0);
    loop {
        // The server may have been restarted during a call.
        if is_ready.has_changed()? {
            tools.clear();
        }
        if tools.is_empty() {
            is_ready.wait_for(|is_ready| *is_ready).await?;
            match list_tools(url).await {
                Ok(listed) => tools = listed,
                Err(error) => stderr::warn(&format!("cannot list the tools: {error}")),
            }
            if tools.is_empty() {
                is_ready.changed().await?;
                continue;
            }
            start = start.min(tools.len() - 1);
        }
        let hold = stderr::hold();
        let picked = tokio::select! {
            picked = terminal.pick_tool(&tools, start) => picked?,
            changed = is_ready.changed() => {
                changed?;
                tools.clear();
                continue;
            }
            () = stderr::held() => continue,
        };
        let Some(picked) = picked else { continue };
        start = picked;
        let arguments = terminal.ask_arguments(url, &tools[picked]).await?;
        drop(hold);
        if let Some(arguments) = arguments {
            call(url, &tools[picked].name, arguments).await?;
        }
    }
}

async fn list_tools(url: &str) -> Result<Vec<ToolInfo>, Error> {
    let client = Client::builder().connect(url).await?;
    let tools = client.tools().await?;
    Ok(tools.iter().map(|tool| ToolInfo::clone(tool)).collect())
}

/// Makes one call, and prints its result or error.
async fn call(url: &str, tool: &str, arguments: Map<String, Value>) -> Result<(), AppError> {
    let arguments = Value::Object(arguments).to_string();
    let words = ["call", url, tool, &arguments];
    let PickedCall { options } = PickedCall::try_parse_from(words)?;
    if let Err(error) = call::tool(options).await {
        print_error(&error.to_string());
    }
    stderr::print("");
    Ok(())
}
