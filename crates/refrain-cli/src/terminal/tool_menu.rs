//! A menu of tools, and prompts for the arguments of one.

use super::asker::{prompt, say_hanging};
use super::console::{Console, InvalidInput, PromptError, PromptSource};
use super::display_text::one_line;
use super::{Terminal, form};
use crate::style::BOLD;
use refrain_client::wire::{Form, ToolInfo};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};
use std::io;

impl Terminal {
    /// Lets the user choose a tool, and returns its index. `None` if the user left the menu.
    pub(crate) async fn pick_tool(
        &self,
        tools: &[ToolInfo],
        start: usize,
    ) -> io::Result<Option<usize>> {
        let labels: Vec<String> = tools.iter().map(label).collect();
        let prompt = prompt(
            PromptSource::Menu,
            "Which tool shall I call?",
            "Ctrl-C stops the server",
        );
        let choose = move |console: &mut dyn Console| console.choose(&prompt, &labels, Some(start));
        unless_left(self.show(choose).await)
    }

    /// Asks for the arguments of a tool. `None` if the user left a prompt.
    pub(crate) async fn ask_arguments(
        &self,
        address: &str,
        tool: &ToolInfo,
    ) -> io::Result<Option<Map<String, Value>>> {
        let source = PromptSource::Arguments(one_line(address));
        let name = one_line(&tool.name);
        let form = to_raw_value(&tool.input_schema).map(|schema| Form::parse(&schema));
        let ask = move |console: &mut dyn Console| {
            say_hanging(console, "Arguments of ", BOLD, &name)?;
            match form {
                Ok(Ok(form)) => form::ask_fields(console, &source, &form),
                // A form cannot show nested values and lists: the user enters JSON.
                _ => json_object(console, source),
            }
        };
        match takes_arguments(tool) {
            true => unless_left(self.show(ask).await),
            false => Ok(Some(Map::new())),
        }
    }
}

fn takes_arguments(tool: &ToolInfo) -> bool {
    let properties = tool.input_schema["properties"].as_object();
    properties.is_some_and(|properties| !properties.is_empty())
}

fn label(tool: &ToolInfo) -> String {
    let about = tool.description.as_deref().unwrap_or_default();
    let about = about.lines().next().unwrap_or_default();
    format!("{}  {}", one_line(&tool.name), one_line(about))
}

fn json_object(
    console: &mut dyn Console,
    source: PromptSource,
) -> Result<Map<String, Value>, PromptError> {
    let prompt = prompt(source, "Arguments", "a JSON object");
    let validate = |text: &str| match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(InvalidInput::NotAnObject(error)),
    };
    let text = console.read_text(&prompt, "{}", &validate)?;
    // Validation has parsed it already.
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

fn unless_left<T>(answer: Result<T, PromptError>) -> io::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(PromptError::Failed(error)) => Err(error),
        Err(_) => Ok(None),
    }
}
