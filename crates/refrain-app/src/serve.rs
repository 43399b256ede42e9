//! `serve`: one instance over HTTP, or over standard input and output.

use crate::config::{
    Address, Config, Host, Hosts, LogFormat, NonBlank, Origin, Settings, UncheckedConfig, parse,
};
use crate::instance::{InstanceFlags, listen};
use crate::servers::Servers;
use crate::signals::Shutdown;
use crate::{App, AppError, EndpointFlags, NoFlags, auth};
use clap::Args;
use refrain::server::{AllowedHosts, Listener};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `serve`, with those for drafts.
#[derive(Args)]
pub struct ServeCommand<F: Args> {
    #[command(flatten)]
    options: ServeOptions<F>,
    #[command(flatten)]
    endpoints: EndpointFlags,
}

/// The flags of `serve`, for [`App::serve`]. A program can flatten them into a command with another name.
#[derive(Args)]
pub struct ServeOptions<F: Args = NoFlags> {
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<Address>)]
    listen: Option<Address>,
    /// Serve over standard input and output instead of HTTP.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// A PEM file with the certificate chain to serve https with, the server's certificate first. SIGHUP reloads it.
    #[arg(long, value_name = "FILE", conflicts_with = "stdio")]
    tls_cert: Option<PathBuf>,
    /// A PEM file with the private key of --tls-cert.
    #[arg(long, value_name = "FILE", conflicts_with = "stdio")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    instance: InstanceFlags<F>,
    /// A file with one caller per line: `PRINCIPAL ACCESS_TOKEN [SCOPE …]`. Callers must send one of these access tokens.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    auth: auth::AuthFlags,
    /// A host to accept in the `Host` and `Origin` headers; may be given several times [default: localhost and the
    /// loopback addresses].
    #[arg(long = "allow-host", value_name = "HOST", value_parser = parse::<Host>)]
    allowed_hosts: Vec<Host>,
    /// An origin whose web pages may call this server and read its responses (CORS), such as `https://app.example.com`;
    /// may be given several times.
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = parse::<Origin>)]
    allowed_origins: Vec<Origin>,
    /// Add a `refrain-round` header to each response: NAME for this instance, the round, and the
    /// numbers of replayed entries, steps and token bytes.
    #[arg(long, value_name = "NAME")]
    explain: Option<String>,
    /// The URL at which the other instances reach this one. They relay requests for live calls and legacy sessions to it.
    #[arg(long, value_name = "URL", conflicts_with = "stdio")]
    advertise: Option<String>,
}

impl<F: Args> ServeCommand<F> {
    pub(crate) fn run<C: DeserializeOwned>(
        &self,
        app: &App<F, C>,
        settings: &Settings,
    ) -> Result<ExitCode, AppError> {
        self.endpoints.check(self.options.stdio)?;
        run(app, settings, &self.options, &self.endpoints)
    }
}

pub(crate) fn run<F: Args, C: DeserializeOwned>(
    app: &App<F, C>,
    settings: &Settings,
    options: &ServeOptions<F>,
    endpoints: &EndpointFlags,
) -> Result<ExitCode, AppError> {
    let config = override_settings(options.instance.load(settings)?, options);
    let work = async |servers: Servers, config: &Config, stop: Shutdown| match options.stdio {
        true => serve_stdio(servers, stop).await,
        false => serve_http(app.name, servers, config, stop).await,
    };
    options.instance.run(app, config, endpoints, work)
}

async fn serve_stdio(servers: Servers, stop: Shutdown) -> Result<(), AppError> {
    let input = tokio::io::BufReader::new(tokio::io::stdin());
    let Servers {
        main, endpoints, ..
    } = servers;
    let output = tokio::io::stdout();
    endpoints.serve_stdio(main, input, output, stop).await
}

fn override_settings<F: Args, C>(
    mut config: UncheckedConfig<C>,
    options: &ServeOptions<F>,
) -> UncheckedConfig<C> {
    config.override_by_flag("listen", options.listen.as_ref(), |c, v| c.listen = v);
    config.override_by_flag("tls_cert", options.tls_cert.as_ref(), |c, v| {
        c.tls_cert = Some(NonBlank(v));
    });
    config.override_by_flag("tls_key", options.tls_key.as_ref(), |c, v| {
        c.tls_key = Some(NonBlank(v));
    });
    config.override_by_flag("tokens", options.tokens.as_ref(), |c, v| {
        c.tokens = Some(NonBlank(v));
    });
    config.override_by_flag("advertise", options.advertise.as_ref(), |c, v| {
        c.advertise = Some(NonBlank(v));
    });
    config.explain.clone_from(&options.explain);
    options.auth.override_settings(&mut config);
    let hosts = Some(&options.allowed_hosts).filter(|hosts| !hosts.is_empty());
    config.override_by_flag("allowed_hosts", hosts, |c, v| {
        c.allowed_hosts = Some(Hosts(v));
    });
    let origins = Some(&options.allowed_origins).filter(|origins| !origins.is_empty());
    config.override_by_flag("allowed_origins", origins, |c, v| {
        c.allowed_origins = Some(v);
    });
    config
}

async fn serve_http(
    program: &str,
    servers: Servers,
    config: &Config,
    stop: Shutdown,
) -> Result<(), AppError> {
    let listener = listen(config.listen.0, "--listen")?;
    let address = listener.local_addr()?;
    let mut listener = Listener::from(listener);
    let mut scheme = "http";
    if let Some(certificate) = &servers.tls {
        listener = listener.with_tls(certificate);
        scheme = "https";
    }
    let base = format!("{scheme}://{address}");
    let url = format!("{base}/mcp");
    // `$RUST_LOG` filters only the JSON form.
    match config.log {
        LogFormat::Text => anstream::eprintln!("{program}: listening on {url}"),
        LogFormat::Json => tracing::info!(url, "listening"),
    }
    servers.endpoints.log(&base);
    if !address.ip().is_loopback() && config.is_unauthenticated() {
        tracing::warn!(
            %address,
            hint = "set --tokens, or [auth] in the configuration",
            "callers are not authenticated"
        );
    }
    let hosts = hosts(config);
    servers
        .endpoints
        .serve_http(listener, servers.main, hosts, stop)
        .await
}

fn hosts(config: &Config) -> AllowedHosts {
    let hosts = match &config.allowed_hosts {
        Some(Hosts(hosts)) if hosts.iter().any(|host| host.0 == "*") => AllowedHosts::any(),
        Some(Hosts(hosts)) => AllowedHosts::only(hosts.iter().map(|host| &host.0)),
        None => AllowedHosts::local(),
    };
    let origins = config.allowed_origins.iter().flatten();
    hosts.with_origins(origins.map(|origin| &origin.0))
}
