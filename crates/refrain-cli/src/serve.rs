//! `refrain serve`: one instance with the documents' tools.

use crate::Failure;
use crate::auth;
use crate::config::{self, Config, Loaded};
use crate::instance::{self, Common, Servers, listen, told_to_stop};
use clap::Args;
use refrain::{AllowedHosts, Draft, serve_stdio, serve_stdio_draft, serve_with_drafts};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub(crate) struct Options {
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long, value_parser = config::address)]
    listen: Option<SocketAddr>,
    /// Speak over standard input and output instead of HTTP.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// Speak the drafts as well, each at a path of its own: /drafts/0/mcp, /drafts/1/mcp and /drafts/2/mcp.
    #[arg(long, conflicts_with = "stdio")]
    drafts: bool,
    /// Speak a draft over standard input and output: draft-0, draft-1 or draft-2. Goes with --stdio.
    #[arg(long, value_name = "DRAFT", value_parser = dialect)]
    dialect: Option<Draft>,
    #[command(flatten)]
    common: Common,
    /// A file with lines of `PRINCIPAL TOKEN [SCOPE …]`: callers must send one of the tokens.
    #[arg(long)]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    auth: auth::Flags,
    /// A host to answer for; may be given several times [default: localhost and the loopback addresses].
    #[arg(long = "allow-host", value_parser = config::host)]
    allowed_hosts: Vec<String>,
    /// Name this instance, and say in a `refrain-round` header of each reply what the round did.
    #[arg(long, value_name = "NAME")]
    explain: Option<String>,
    /// Which of the instances that `peers.urls` in the configuration names this one is.
    #[arg(long, value_name = "NAME", conflicts_with = "stdio")]
    peer_name: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, Failure> {
    if options.dialect.is_some() && !options.stdio {
        let message = "--dialect is for standard input and output: add --stdio. Over HTTP each draft has a path of its own: \
                       use --drafts instead";
        return Err(message.into());
    }
    let loaded = with_flags(options.common.load()?, options);
    let explain = options.explain.as_deref();
    let drafts = match (options.drafts, options.dialect) {
        (true, _) => Draft::ALL.to_vec(),
        (false, dialect) => dialect.into_iter().collect(),
    };
    let work = async |servers: Servers, config: &Config| {
        if options.stdio {
            let input = tokio::io::BufReader::new(tokio::io::stdin());
            let (output, stop) = (tokio::io::stdout(), told_to_stop()?);
            match servers.drafts.into_iter().next() {
                Some((draft, server)) => {
                    serve_stdio_draft(draft, server, input, output, stop).await?;
                }
                None => serve_stdio(servers.server, input, output, stop).await?,
            }
            // Standard input is read by a thread of its own, which cannot be ended from here.
            std::process::exit(0);
        }
        serve_http(servers, config).await
    };
    options.common.run(loaded, explain, &drafts, work)
}

/// A draft by its name.
fn dialect(name: &str) -> Result<Draft, String> {
    let names = Draft::ALL.map(Draft::name).join(", ");
    Draft::from_name(name).ok_or_else(|| format!("the drafts are {names}"))
}

/// What flags say counts more than what the file says.
fn with_flags(mut loaded: Loaded, options: &Options) -> Loaded {
    loaded.flag("listen", options.listen.as_ref(), |c, v| c.listen = v);
    loaded.flag("tokens", options.tokens.as_ref(), |c, v| c.tokens = Some(v));
    loaded.flag("peers.name", options.peer_name.as_ref(), |c, v| {
        c.peers.name = Some(v);
    });
    options.auth.put(&mut loaded);
    let hosts = Some(&options.allowed_hosts).filter(|hosts| !hosts.is_empty());
    loaded.flag("allowed_hosts", hosts, |c, v| c.allowed_hosts = Some(v));
    loaded
}

async fn serve_http(servers: Servers, config: &Config) -> Result<(), Failure> {
    let listener = listen(config.listen).await?;
    let address = listener.local_addr()?;
    // Before the line that says it listens: whoever read that may send a signal.
    let stop = told_to_stop()?;
    instance::say(config, &format!("listening on http://{address}/mcp"));
    for (draft, _) in &servers.drafts {
        let path = draft.path();
        tracing::info!("{draft} is spoken at http://{address}{path}");
    }
    if !address.ip().is_loopback() && config.lets_anyone_in() {
        tracing::warn!(
            "anyone who reaches {address} can call, and take over calls of others whose tokens they get: \
             set --tokens, or [auth] in the configuration"
        );
    }
    let Servers { server, drafts } = servers;
    serve_with_drafts(listener, server, drafts, hosts(config), stop).await?;
    Ok(())
}

fn hosts(config: &Config) -> AllowedHosts {
    match &config.allowed_hosts {
        Some(hosts) if hosts.iter().any(|host| host == "*") => AllowedHosts::any(),
        Some(hosts) => AllowedHosts::only(hosts),
        None => AllowedHosts::local(),
    }
}
