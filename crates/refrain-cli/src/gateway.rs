//! `refrain gateway`: existing MCP servers behind one endpoint.

use crate::style::{BOLD, DIM, INVALID, PLAIN};
use crate::{AppError, runtime};
use clap::{Args, Subcommand};
use refrain_app::log::{self, LogFormat};
use refrain_app::sanitize::one_line;
use refrain_app::{App, Command, ServeOptions, Setup, with_hint};
use refrain_gateway::{
    BackendReport, BackendTable, CheckedGateway, Gateway, GatewayConfig, GatewayError, SETTINGS,
    ToolReport,
};
use std::path::PathBuf;
use std::process::ExitCode;
use url::Url;

const COMMAND_HINT: &str = "check the command and $PATH, or run it yourself to see the cause: it must speak MCP over standard input and output";
/// The rest of [`COMMAND_HINT`] for a command in a configuration file.
const ENV_HINT: &str = ". It may need an environment variable in `env`, or `inherit_env = true`";
const URL_HINT: &str = "check that the URL is right, and that its server runs. If the server requires an access token, set `headers` or `oauth` in \
                      a configuration file";
/// The maximum width of a column. Formatting panics above 65,535.
const COLUMN_MAX: usize = 60;
const STORE_HELP: &str = "Where tasks are stored: `sqlite:FILE` for the processes of one machine, `postgres://…` for a fleet, `memory:` for this process alone \
                          [default: $REFRAIN_STORE, then memory:]";

const AUDIENCE_HELP: &str = "The service name that sealed tokens (`requestState`) are bound to; not the `aud` claim of access tokens [default: \
                             refrain-gateway]";

const USAGE: &str = "refrain gateway [OPTIONS] -- COMMAND...
       refrain gateway [OPTIONS] --url URL
       refrain gateway [OPTIONS] --config FILE
       refrain gateway check|config [OPTIONS]";
const CHECK_USAGE: &str = "refrain gateway check [OPTIONS] -- COMMAND...
       refrain gateway check [OPTIONS] --url URL
       refrain gateway check [OPTIONS] --config FILE";

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, override_usage = USAGE)]
#[command(mut_arg("store", |store| store.help(STORE_HELP).long_help(STORE_HELP)))]
#[command(mut_arg("audience", |audience| audience.help(AUDIENCE_HELP).long_help(AUDIENCE_HELP)))]
pub(crate) struct GatewayOptions {
    #[command(subcommand)]
    command: Option<GatewayCommand>,
    #[command(flatten)]
    serve: Box<ServeOptions<BackendFlags>>,
}

#[derive(Subcommand)]
enum GatewayCommand {
    /// Start each server behind the gateway, list its tools and how they run, and stop it again.
    Check(CheckOptions),
    /// Check a configuration file, or print one with all defaults.
    Config(refrain_app::ConfigOptions),
}

#[derive(Args)]
#[command(override_usage = CHECK_USAGE)]
struct CheckOptions {
    /// A configuration file with tables [backends.NAME].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendFlags,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// A backend, besides those of the configuration file.
#[derive(Args)]
pub(crate) struct BackendFlags {
    /// The URL of the server to put behind the gateway.
    #[arg(long, value_name = "URL", conflicts_with = "command", value_parser = http_url)]
    url: Option<Url>,
    /// The command of the server to put behind the gateway.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl BackendFlags {
    /// Adds the backend of the flags to the configuration. Also returns whether the flags name a backend.
    fn add_to(&self, mut config: GatewayConfig) -> Result<(GatewayConfig, bool), AppError> {
        let is_given = self.url.is_some() || !self.command.is_empty();
        if is_given {
            let backend = BackendTable {
                command: self.command.clone(),
                url: self.url.clone(),
                inherit_env: true,
                ..BackendTable::default()
            };
            config.backends.insert("server".to_owned(), backend);
        }
        if config.backends.is_empty() {
            return Err(with_hint(
                "no server to put behind the gateway",
                "pass -- COMMAND, --url URL, or --config FILE with a table [backends.NAME]",
            ));
        }
        Ok((config, is_given))
    }
}

fn http_url(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).ok();
    url.filter(|url| matches!(url.scheme(), "http" | "https"))
        .ok_or("expected an http:// or https:// URL")
}

fn checked(config: &GatewayConfig) -> Result<CheckedGateway, AppError> {
    config.check().map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("\nerror: ").into()
    })
}

/// What to check if this backend did not start.
fn start_hint(config: &GatewayConfig, backend: &str) -> String {
    match config.backends.get(backend) {
        Some(table) if table.url.is_some() => URL_HINT.to_owned(),
        // A command of the command line has all variables.
        Some(table) if table.inherit_env => COMMAND_HINT.to_owned(),
        _ => format!("{COMMAND_HINT}{ENV_HINT}"),
    }
}

/// The error of a gateway that did not start. With a single backend, the failed one is known.
fn not_started(config: &GatewayConfig, error: GatewayError) -> AppError {
    let backend = config.backends.keys().next();
    match backend.filter(|_| config.backends.len() == 1) {
        Some(backend) if matches!(error, GatewayError::Start(_)) => {
            with_hint(error, start_hint(config, backend))
        }
        _ => error.into(),
    }
}

fn app() -> App<BackendFlags, GatewayConfig> {
    let build = async |flags: &BackendFlags, config: GatewayConfig| {
        let (config, is_required) = flags.add_to(config)?;
        let gateway = Gateway::new(checked(&config)?);
        let builder = match gateway.connect(is_required).await {
            Ok(builder) => builder,
            Err(error) => {
                gateway.stop().await;
                return Err(not_started(&config, error));
            }
        };
        let started = gateway.clone();
        Ok(Setup::new(builder)
            .on_start(move |server| started.start(&server))
            .on_stop(async move { gateway.stop().await }))
    };
    App::configured("refrain gateway", SETTINGS, build)
        .default_store("memory:")
        .check_settings(|config: &GatewayConfig| {
            let errors = config.check().err().unwrap_or_default();
            let errors = errors.iter();
            errors
                .map(|error| (error.setting(), error.to_string()))
                .collect()
        })
}

pub(crate) fn run(options: GatewayOptions) -> Result<ExitCode, AppError> {
    match options.command {
        None => app().serve(&options.serve),
        Some(GatewayCommand::Config(options)) => app().run(Command::Config(options)),
        Some(GatewayCommand::Check(options)) => check(&options),
    }
}

fn check(options: &CheckOptions) -> Result<ExitCode, AppError> {
    let _telemetry = log::start("refrain gateway", "error", LogFormat::Text, std::io::stderr)?;
    let config = match &options.config {
        Some(file) => app().read_settings(file)?,
        None => GatewayConfig::default(),
    };
    let (config, _) = options.backend.add_to(config)?;
    let gateway = checked(&config)?;
    let reports = runtime()?.block_on(Gateway::new(gateway).check());
    if options.json {
        anstream::println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        for report in &reports {
            print(report, &start_hint(&config, &report.backend));
        }
    }
    let is_ok = reports.iter().all(|report| report.error.is_none());
    Ok(if is_ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints a report, and the hint for a backend that did not start.
fn print(report: &BackendReport, hint: &str) {
    let BackendReport {
        backend,
        server,
        revision,
        start_seconds,
        ..
    } = report;
    anstream::println!("{BOLD}{backend}{BOLD:#}");
    if let Some(error) = &report.error {
        anstream::println!("  {INVALID}error:{INVALID:#} {}", one_line(error));
        if report.server.is_none() {
            anstream::println!("  {DIM}hint: {hint}{DIM:#}");
        }
        return;
    }
    let server = one_line(server.as_deref().unwrap_or("unknown server"));
    let revision = one_line(revision.as_deref().unwrap_or("unknown revision"));
    anstream::println!(
        "  {server}, {revision}, listed after {start_seconds:.1} s; {} tools, {} prompts, {} resources",
        report.tools.len(),
        report.prompts,
        report.resources
    );
    for rule in &report.unknown_rules {
        let rule = one_line(rule);
        anstream::println!(
            "  {INVALID}warning:{INVALID:#} tools.{rule} has no effect: there is no such tool"
        );
    }
    let names = report.tools.iter().map(|tool| name(tool).chars().count());
    let width = names.max().unwrap_or(0).min(COLUMN_MAX);
    for tool in &report.tools {
        print_tool(tool, width);
    }
}

/// The name of a tool, and the name under which the gateway offers it.
fn name(tool: &ToolReport) -> String {
    match &tool.offered_as {
        Some(offered) if *offered != tool.tool => {
            format!("{} as {}", one_line(&tool.tool), one_line(offered))
        }
        _ => one_line(&tool.tool),
    }
}

fn print_tool(tool: &ToolReport, width: usize) {
    let (style, how) = match (&tool.offered_as, tool.task_after) {
        (None, _) => (DIM, "not offered".to_owned()),
        (Some(_), Some(after)) => (PLAIN, format!("{}, a task after {after} s", tool.home)),
        (Some(_), None) => (PLAIN, tool.home.to_owned()),
    };
    let asks = if tool.asks { ", asks" } else { "" };
    anstream::println!("  {style}{:width$}  {how}{asks}{style:#}", name(tool));
}
