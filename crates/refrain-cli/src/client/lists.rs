//! `refrain discover`, `refrain tools`, `refrain prompts`, `refrain resources` and `refrain skills`.

use super::connection::ServerConnection;
use super::exit::{Code, CommandError, EXIT_CODES};
use super::json::{self, Fold};
use super::options::ConnectOptions;
use super::output::{COLUMN_MAX, print, print_json};
use super::sanitize::{one_line, paragraph};
use super::{stderr, usage};
use crate::style::{BOLD, DIM, MARK};
use clap::{Args, Subcommand};
use refrain_client::{AsSent, Error, ErrorKind};
use refrain_wire::{
    Annotations, ErrorCode, Icon, PROTOCOL_VERSION, PromptInfo, ResourceInfo, ResourceTemplateInfo,
    Role, SkillInfo, SkillResources, ToolInfo,
};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Most servers list only the revisions without sessions in the result of `server/discover`.
const LEGACY_HINT: &str =
    "(legacy revisions are usually not reported; --dialect 2025-11-25 tests one)";

/// The drafts begin with the `initialize` of 2025-11-25.
const UNCHECKED_DRAFT: &str = "a server of 2025-11-25 answers `discover` alike: only a call with a question shows whether it speaks the draft";

#[derive(Subcommand)]
pub(crate) enum ListCommand {
    /// List the tools of a server.
    #[command(override_usage = usage!("tools", ""))]
    Tools(ListOptions),
    /// List the prompts of a server.
    #[command(override_usage = usage!("prompts", ""))]
    Prompts(ListOptions),
    /// List the resources and resource templates of a server.
    #[command(override_usage = usage!("resources", ""))]
    Resources(ListOptions),
    /// List the skills of a server; `refrain read` reads their files.
    #[command(override_usage = usage!("skills", ""))]
    Skills(ListOptions),
    /// Show the name, protocol revisions and capabilities of a server.
    #[command(override_usage = usage!("discover", ""))]
    Discover(ListOptions),
}

#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct ListOptions {
    /// The URL of the server; left out with --stdio.
    url: Option<String>,
    #[command(flatten)]
    connect: ConnectOptions,
}

pub(super) async fn run(command: ListCommand) -> Result<Code, CommandError> {
    let (ListCommand::Tools(options)
    | ListCommand::Prompts(options)
    | ListCommand::Resources(options)
    | ListCommand::Skills(options)
    | ListCommand::Discover(options)) = &command;
    let mut words = options.url.clone().into_iter();
    let target = options.connect.target(&mut words)?;
    super::expect_end(words)?;
    let mut connection = ServerConnection::open(&options.connect, target).await?;
    let listed = list(&command, &mut connection, options.connect.json).await;
    connection.close().await;
    listed.map(|()| Code::Success)
}

async fn list(
    command: &ListCommand,
    connection: &mut ServerConnection,
    json: bool,
) -> Result<(), CommandError> {
    let (client, interrupt) = (&connection.client, &mut connection.interrupt);
    match command {
        ListCommand::Discover(options) => {
            if options.connect.protocol.is_draft() {
                stderr::note(UNCHECKED_DRAFT);
            }
            print_server(client, json)
        }
        ListCommand::Tools(_) => {
            let tools = interrupt.unless_stopped(or_empty(client.tools())).await?;
            print_list(json, "tools", &tools, format_tool)
        }
        ListCommand::Prompts(_) => {
            let prompts = interrupt.unless_stopped(or_empty(client.prompts())).await?;
            print_list(json, "prompts", &prompts, format_prompt)
        }
        ListCommand::Skills(_) => {
            let skills = interrupt.unless_stopped(or_empty(client.skills())).await?;
            print_list(json, "skills", &skills, format_skill)
        }
        ListCommand::Resources(_) => {
            let resources = or_empty(client.resources());
            let resources = interrupt.unless_stopped(resources).await?;
            let templates = or_empty(client.resource_templates());
            let templates = interrupt.unless_stopped(templates).await?;
            if json {
                let all = json!({"resources": resources, "resourceTemplates": templates});
                return print_json(&all);
            }
            let templates = templates.iter().map(|item| format_template(item));
            let resources = resources.iter().map(|item| format_resource(item));
            print_entries("resources", resources.chain(templates))
        }
    }
}

/// An empty list if the server does not support the method.
async fn or_empty<T>(list: impl Future<Output = Result<Vec<T>, Error>>) -> Result<Vec<T>, Error> {
    let not_found = i64::from(ErrorCode::MethodNotFound.as_i32());
    match list.await {
        Err(Error {
            kind: ErrorKind::Rpc(failure),
            ..
        }) if failure.code == not_found => Ok(Vec::new()),
        listed => listed,
    }
}

fn print_list<T>(
    json: bool,
    what: &str,
    items: &[AsSent<T>],
    entry: fn(&T) -> String,
) -> Result<(), CommandError> {
    if json {
        return print_json(&items);
    }
    print_entries(what, items.iter().map(|item| entry(item)))
}

/// Prints entries with a blank line between them, one by one because they may be long.
fn print_entries(what: &str, entries: impl Iterator<Item = String>) -> Result<(), CommandError> {
    let mut is_empty = true;
    for entry in entries {
        if !std::mem::replace(&mut is_empty, false) {
            print("")?;
        }
        print(&entry)?;
    }
    if is_empty {
        anstream::eprintln!("the server has no {what}");
    }
    Ok(())
}

/// Long keys and texts of capabilities are truncated.
const CAPABILITIES: Fold = Fold {
    text: 200,
    ..Fold::NOTHING
};

fn print_server(client: &refrain_client::Client, json: bool) -> Result<(), CommandError> {
    let server = client.server();
    if json {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Discovered<'a> {
            address: &'a str,
            server_info: Option<&'a RawValue>,
            version: &'a str,
            supported_versions: &'a [String],
            capabilities: &'a Map<String, Value>,
            instructions: Option<&'a str>,
            result: &'a RawValue,
        }
        return print_json(&Discovered {
            address: client.address(),
            server_info: server.raw_info(),
            version: &server.version,
            supported_versions: &server.versions,
            capabilities: &server.capabilities,
            instructions: server.instructions.as_deref(),
            result: &server.raw,
        });
    }
    const LABEL: usize = 14;
    let line = |name: &str, text: &str| format!("{name:<LABEL$}{text}");
    let info = server.info.as_ref();
    let name = info.map_or("(none)".to_owned(), |info| {
        let name = info.title.as_ref().unwrap_or(&info.name);
        format!("{} {}", one_line(name), one_line(&info.version))
    });
    let mut lines = vec![
        line("server", &format!("{BOLD}{name}{BOLD:#}")),
        line("address", &one_line(client.address())),
        line("revision", &one_line(&server.version)),
    ];
    if !server.versions.is_empty() {
        let mut supported = one_line(&server.versions.join(", "));
        if server.versions == [PROTOCOL_VERSION] {
            supported.push_str(&format!(" {DIM}{LEGACY_HINT}{DIM:#}"));
        }
        lines.push(line("supports", &supported));
    }
    if let Some(about) = info.and_then(|info| info.description.as_deref()) {
        lines.push(line("description", &one_line(about)));
    }
    let capabilities = Value::Object(server.capabilities.clone());
    let capabilities = json::format(&capabilities, CAPABILITIES, LABEL);
    lines.push(line("capabilities", &capabilities));
    if let Some(url) = info.and_then(|info| info.website_url.as_deref()) {
        lines.push(line("website", &one_line(url)));
    }
    let icons = info.and_then(|info| icon_count(&info.icons));
    lines.extend(icons.map(|icons| line("icons", &icons)));
    if let Some(instructions) = &server.instructions {
        lines.push(line("instructions", &paragraph(instructions)));
    }
    print(&lines.join("\n"))
}

fn format_tool(tool: &ToolInfo) -> String {
    let annotated = tool.annotations.as_ref();
    let annotated = annotated.and_then(|hints| hints.title.as_deref());
    let title = tool.title.as_deref().or(annotated);
    let mut lines = head(&tool.name, title, tool.description.as_deref());
    lines.extend(facts_line(&tool_facts(tool)));
    let required = tool.input_schema["required"].as_array();
    let required: HashSet<&str> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = tool.input_schema["properties"].as_object();
    let rows: Vec<_> = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| ArgumentRow {
            name,
            kind: describe_type(schema),
            required: required.contains(name.as_str()),
            about: schema["description"].as_str(),
        })
        .collect();
    lines.extend(table(&rows));
    lines.join("\n")
}

fn format_skill(skill: &SkillInfo) -> String {
    let name = skill.text("name").unwrap_or_default();
    let mut lines = head(name, None, skill.text("description"));
    let files = match &skill.resources {
        SkillResources::Files(files) => files.iter().map(|file| file.uri.as_str()).collect(),
        SkillResources::Dynamic(_) => vec![skill.uri.as_str()],
    };
    lines.extend(files.into_iter().map(|uri| format!("  {}", one_line(uri))));
    lines.join("\n")
}

fn format_prompt(prompt: &PromptInfo) -> String {
    let title = prompt.title.as_deref();
    let mut lines = head(&prompt.name, title, prompt.description.as_deref());
    lines.extend(facts_line(&Vec::from_iter(icon_count(&prompt.icons))));
    let rows: Vec<_> = prompt
        .arguments
        .iter()
        .map(|argument| ArgumentRow {
            name: &argument.name,
            kind: String::new(),
            required: argument.required,
            about: argument.description.as_deref(),
        })
        .collect();
    lines.extend(table(&rows));
    lines.join("\n")
}

fn format_resource(resource: &ResourceInfo) -> String {
    let title = resource.title.as_deref().unwrap_or(&resource.name);
    let mut facts = Vec::from_iter(resource.mime_type.as_deref().map(one_line));
    facts.extend(resource.size.map(|size| format!("{size} bytes")));
    facts.extend(annotation_facts(resource.annotations.as_ref()));
    facts.extend(icon_count(&resource.icons));
    resource_entry(
        &resource.uri,
        title,
        resource.description.as_deref(),
        &facts,
    )
}

fn format_template(template: &ResourceTemplateInfo) -> String {
    let title = template.title.as_deref().unwrap_or(&template.name);
    let mut facts = vec!["template".to_owned()];
    facts.extend(template.mime_type.as_deref().map(one_line));
    facts.extend(annotation_facts(template.annotations.as_ref()));
    facts.extend(icon_count(&template.icons));
    let about = template.description.as_deref();
    resource_entry(&template.uri_template, title, about, &facts)
}

fn resource_entry(uri: &str, title: &str, about: Option<&str>, facts: &[String]) -> String {
    let mut lines = head(uri, Some(title), about);
    lines.extend(facts_line(facts));
    lines.join("\n")
}

fn facts_line(facts: &[String]) -> Option<String> {
    let line = || format!("    {DIM}{}{DIM:#}", facts.join(", "));
    (!facts.is_empty()).then(line)
}

/// The unverified hints of a tool about its behaviour, and its icons.
fn tool_facts(tool: &ToolInfo) -> Vec<String> {
    let hints = tool.annotations.clone().unwrap_or_default();
    let hints = [
        (hints.read_only_hint, "read-only", "changes data"),
        (hints.destructive_hint, "destructive", "not destructive"),
        (hints.idempotent_hint, "idempotent", "not idempotent"),
        (hints.open_world_hint, "open world", "closed world"),
    ];
    let facts = hints.iter().filter_map(|(hint, yes, no)| {
        let fact = if (*hint)? { yes } else { no };
        Some((*fact).to_owned())
    });
    facts.chain(icon_count(&tool.icons)).collect()
}

fn icon_count(icons: &[Icon]) -> Option<String> {
    match icons.len() {
        0 => None,
        1 => Some("1 icon".to_owned()),
        count => Some(format!("{count} icons")),
    }
}

/// Who a resource is for, and how important it is.
fn annotation_facts(annotations: Option<&Annotations>) -> Vec<String> {
    let Some(annotations) = annotations else {
        return Vec::new();
    };
    let mut facts = Vec::new();
    let audience = annotations.audience.iter().map(|role| match role {
        Role::User => "the user",
        Role::Assistant => "the model",
    });
    let audience: Vec<_> = audience.collect();
    if !audience.is_empty() {
        facts.push(format!("for {}", audience.join(" and ")));
    }
    let priority = annotations.priority;
    facts.extend(priority.map(|priority| format!("priority {priority}")));
    let modified = annotations.last_modified.as_deref();
    facts.extend(modified.map(|time| format!("modified {}", one_line(time))));
    facts
}

fn head(name: &str, title: Option<&str>, about: Option<&str>) -> Vec<String> {
    let title = title.map_or(String::new(), |title| {
        format!("  {BOLD}{}{BOLD:#}", one_line(title))
    });
    let mut lines = vec![format!("{MARK}{}{MARK:#}{title}", one_line(name))];
    let about = paragraph(about.unwrap_or_default());
    lines.extend(about.lines().map(|line| format!("    {line}")));
    lines
}

struct ArgumentRow<'a> {
    name: &'a str,
    kind: String,
    required: bool,
    about: Option<&'a str>,
}

fn table(rows: &[ArgumentRow<'_>]) -> Vec<String> {
    let width = |text: fn(&ArgumentRow<'_>) -> usize| {
        let widest = rows.iter().map(text).max().unwrap_or_default();
        widest.min(COLUMN_MAX)
    };
    let names = width(|row| row.name.chars().count());
    let kinds = width(|row| row.kind.chars().count());
    let line = |row: &ArgumentRow<'_>| {
        let name = one_line(row.name);
        let required = if row.required { "required" } else { "" };
        let about = one_line(row.about.unwrap_or_default());
        let gap = if kinds == 0 { "" } else { "  " };
        format!(
            "    {BOLD}{name:<names$}{BOLD:#}  {:<kinds$}{gap}{required:<8}  {DIM}{about}{DIM:#}",
            one_line(&row.kind)
        )
    };
    rows.iter().map(line).collect()
}

/// A short description of the type in a schema.
fn describe_type(schema: &Value) -> String {
    if let Some(choices) = schema["enum"].as_array() {
        let choices: Vec<String> = choices.iter().map(Value::to_string).collect();
        return choices.join(" | ");
    }
    match &schema["type"] {
        Value::String(one) => one.clone(),
        Value::Array(several) => {
            let several: Vec<&str> = several.iter().filter_map(Value::as_str).collect();
            several.join(" | ")
        }
        _ => "any".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_does_not_widen_the_other_rows() {
        let row = |name| ArgumentRow {
            name,
            kind: "string".to_owned(),
            required: false,
            about: None,
        };
        let long = "n".repeat(70_000);
        let lines = table(&[row(&long), row("short")]);
        assert!(lines[0].contains("n… (70000 characters)"));
        assert!(lines[1].len() < 200, "{}", lines[1]);
    }
}
