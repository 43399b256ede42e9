//! `serve`: one instance over HTTP, or over standard input and output.

use crate::config::{Address, Config, Filled, Host, Hosts, Invalid, Loaded, parse};
use crate::instance::{self, Common, listen};
use crate::servers::{Extras, Servers};
use crate::{App, Failure, auth, signals};
use clap::Args;
use refrain::runtime::server::drafts;
use refrain::server::{AllowedHosts, Draft, serve_stdio};
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `serve`.
#[derive(Args)]
pub struct Options<F: Args> {
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long, value_parser = parse::<Address>)]
    listen: Option<Address>,
    /// Speak over standard input and output instead of HTTP.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// Serve the drafts as well, at the paths /drafts/0/mcp, /drafts/1/mcp and /drafts/2/mcp.
    #[arg(long, conflicts_with = "stdio")]
    drafts: bool,
    /// The draft to speak over standard input and output: draft-0, draft-1 or draft-2. Requires --stdio.
    #[arg(long, value_name = "DRAFT", value_parser = dialect)]
    dialect: Option<Draft>,
    #[command(flatten)]
    common: Common<F>,
    /// A file with lines of `PRINCIPAL TOKEN [SCOPE …]`: callers must send one of the tokens.
    #[arg(long)]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    auth: auth::Flags,
    /// A host to answer for; may be given several times [default: localhost and the loopback addresses].
    #[arg(long = "allow-host", value_parser = parse::<Host>)]
    allowed_hosts: Vec<Host>,
    /// Name this instance, and say in a `refrain-round` header of each reply what the round did.
    #[arg(long, value_name = "NAME")]
    explain: Option<String>,
    /// The URL of this instance's endpoint, as the other instances reach it. They relay requests for the live calls and legacy
    /// sessions that this instance holds.
    #[arg(long, value_name = "URL", conflicts_with = "stdio")]
    advertise: Option<String>,
}

pub(crate) fn run<F: Args>(app: &App<F>, options: &Options<F>) -> Result<ExitCode, Failure> {
    if options.dialect.is_some() && !options.stdio {
        let message = "--dialect is for standard input and output: add --stdio. Over HTTP, --drafts serves every draft";
        return Err(message.into());
    }
    let loaded = with_flags(options.common.load()?, options);
    let extras = Extras {
        explain: options.explain.clone(),
        drafts: match (options.drafts, options.dialect) {
            (true, _) => Draft::ALL.to_vec(),
            (false, dialect) => dialect.into_iter().collect(),
        },
    };
    let work = async |servers: Servers, config: &Config| {
        if options.stdio {
            return speak_stdio(servers).await;
        }
        serve_http(app, servers, config).await
    };
    options.common.run(app, loaded, &extras, work)
}

async fn speak_stdio(servers: Servers) -> Result<(), Failure> {
    let input = tokio::io::BufReader::new(tokio::io::stdin());
    let (output, stop) = (tokio::io::stdout(), signals::shutdown()?);
    match servers.drafts.into_iter().next() {
        Some((draft, server)) => drafts::serve_stdio(draft, server, input, output, stop).await?,
        None => serve_stdio(servers.server, input, output, stop).await?,
    }
    // The thread that reads standard input cannot be stopped from here.
    std::process::exit(0);
}

/// A draft by its name.
fn dialect(name: &str) -> Result<Draft, Invalid> {
    let names = Draft::ALL.map(Draft::name).join(", ");
    Draft::from_name(name).ok_or_else(|| Invalid(format!("the drafts are {names}")))
}

/// Overrides the settings of the file by the flags.
fn with_flags<F: Args>(mut loaded: Loaded, options: &Options<F>) -> Loaded {
    loaded.flag("listen", options.listen.as_ref(), |c, v| c.listen = v);
    loaded.flag("tokens", options.tokens.as_ref(), |c, v| {
        c.tokens = Some(Filled(v));
    });
    loaded.flag("advertise", options.advertise.as_ref(), |c, v| {
        c.advertise = Some(Filled(v));
    });
    options.auth.put(&mut loaded);
    let hosts = Some(&options.allowed_hosts).filter(|hosts| !hosts.is_empty());
    loaded.flag("allowed_hosts", hosts, |c, v| {
        c.allowed_hosts = Some(Hosts(v));
    });
    loaded
}

async fn serve_http<F: Args>(
    app: &App<F>,
    servers: Servers,
    config: &Config,
) -> Result<(), Failure> {
    let listener = listen(config.listen.0).await?;
    let address = listener.local_addr()?;
    // Before the line on standard error: its reader may send a signal at once.
    let stop = signals::shutdown()?;
    instance::announce(app, config, &format!("listening on http://{address}/mcp"));
    for (draft, _) in &servers.drafts {
        let path = draft.path();
        tracing::info!("{draft} is spoken at http://{address}{path}");
    }
    if !address.ip().is_loopback() && config.is_open() {
        tracing::warn!(
            "anyone who reaches {address} can call, and take over calls of others whose tokens they get: \
             set --tokens, or [auth] in the configuration"
        );
    }
    let hosts = hosts(config);
    drafts::serve(listener, servers.server, servers.drafts, hosts, stop).await?;
    Ok(())
}

fn hosts(config: &Config) -> AllowedHosts {
    match &config.allowed_hosts {
        Some(Hosts(hosts)) if hosts.iter().any(|host| host.0 == "*") => AllowedHosts::any(),
        Some(Hosts(hosts)) => AllowedHosts::only(hosts.iter().map(|host| &host.0)),
        None => AllowedHosts::local(),
    }
}
