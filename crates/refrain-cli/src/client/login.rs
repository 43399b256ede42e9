//! `refrain login` and `refrain logout`: authorization at a server with OAuth, in a browser.

use super::exit::{Code, CommandError};
use super::interrupt::Interrupt;
use super::logins::{BoxError, GrantsFuture, Logins};
use super::output::print;
use super::sanitize::one_line;
use super::{own_info, stderr};
use crate::browser;
use clap::Args;
use parking_lot::Mutex;
use refrain_client::{Client, Grant, Grants, Loopback, OAuth, RegisteredClient};
use std::future::{pending, ready};
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// The time for the user to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(600);
const CLIENT_NAME: &str = "Refrain command line";

#[derive(Args)]
#[command(override_usage = "refrain login [OPTIONS] URL\n       refrain login --list")]
pub(crate) struct LoginOptions {
    /// The URL of the server.
    #[arg(required_unless_present = "list")]
    url: Option<String>,
    /// A scope to request, in addition to those that the server demands. May be given several times.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// The id of a client that is registered with the server's authorization server. Without it, the command registers
    /// itself.
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// The port of 127.0.0.1 for the redirect from the browser, if the client is registered with one [default: a free port].
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    port: u16,
    /// Only print the page to visit; do not open it.
    #[arg(long)]
    no_browser: bool,
    /// List the servers that you are logged in to.
    #[arg(long, conflicts_with_all = ["url", "scopes", "client_id", "port", "no_browser"])]
    list: bool,
}

#[derive(Args)]
pub(crate) struct LogoutOptions {
    /// The URL of the server.
    url: String,
}

pub(super) async fn login(options: &LoginOptions) -> Result<Code, CommandError> {
    let logins = Logins::require()?;
    let Some(url) = &options.url else {
        let servers = logins.servers()?;
        if servers.is_empty() {
            stderr::note("there are no logins");
        }
        for server in servers {
            print(&one_line(&server))?;
        }
        return Ok(Code::Success);
    };
    // Longer than the wait for the redirect, so that its more precise timeout error comes first.
    let mut interrupt = Interrupt::new(2 * LOGIN_TIMEOUT)?;
    let obtained = NewGrant::default();
    let oauth = options.oauth(obtained.clone()).await?;
    let builder = Client::builder().info(own_info()).authorize(oauth);
    let client = interrupt.unless_stopped(builder.connect(url)).await?;
    client.close().await;
    let Some(grant) = obtained.0.lock().take() else {
        let message = format!("the server at {url} does not ask for a login");
        return Err(CommandError::new(Code::Failed, message));
    };
    logins.write(&parse_url(url)?, &grant)?;
    stderr::note(&format!(
        "logged in to {url}; later commands with this URL use the login"
    ));
    Ok(Code::Success)
}

pub(super) fn logout(options: &LogoutOptions) -> Result<Code, CommandError> {
    let url = &options.url;
    if !Logins::require()?.remove(&parse_url(url)?)? {
        let error = CommandError::new(Code::Failed, format!("no login for {url}"));
        return Err(error.hint("`refrain login --list` lists the servers with a login"));
    }
    stderr::note(&format!(
        "logged out of {url}; its authorization server may accept the tokens until they expire"
    ));
    Ok(Code::Success)
}

fn parse_url(url: &str) -> Result<Url, CommandError> {
    let invalid = |error| CommandError::usage(format!("invalid URL {url:?}: {error}"));
    Url::parse(url).map_err(invalid)
}

impl LoginOptions {
    async fn oauth(&self, obtained: NewGrant) -> Result<OAuth, CommandError> {
        let loopback = Loopback::bind(self.port).await.map_err(|error| {
            CommandError::usage(format!("cannot listen on 127.0.0.1:{}: {error}", self.port))
        })?;
        let loopback = Arc::new(loopback);
        let opens_browser = !self.no_browser;
        let mut oauth = OAuth::by_browser(loopback.redirect_uri().clone(), move |url| {
            let loopback = Arc::clone(&loopback);
            async move { visit(&loopback, &url, opens_browser).await }
        })
        .client_name(CLIENT_NAME)
        .scopes(&self.scopes)
        .grants(obtained);
        if let Some(id) = &self.client_id {
            oauth = oauth.client(RegisteredClient::new(id));
        }
        oauth
            .build()
            .map_err(|error| CommandError::usage(error.to_string()))
    }
}

/// Shows the page, and waits for its redirect: to this machine, or pasted by the user.
async fn visit(loopback: &Loopback, url: &Url, opens_browser: bool) -> Result<Url, BoxError> {
    stderr::print(&format!(
        "To log in, visit this page:\n\n  {}\n",
        one_line(url.as_str())
    ));
    if opens_browser && let Err(error) = browser::open(url) {
        stderr::note(&format!("could not start a browser: {error}"));
    }
    stderr::print(
        "Waiting for the login. If the browser is on another machine, paste the address that it shows after the login.",
    );
    tokio::select! {
        redirect = loopback.wait_for_redirect(url, LOGIN_TIMEOUT) => Ok(redirect?),
        pasted = pasted_url(loopback.redirect_uri()) => Ok(pasted),
    }
}

/// The first line of standard input that starts with this redirect URI.
async fn pasted_url(redirect_uri: &Url) -> Url {
    let redirect_uri = redirect_uri.clone();
    let pasted = tokio::task::spawn_blocking(move || {
        let mut lines = io::stdin().lock().lines().map_while(Result::ok);
        lines.find_map(|line| match Url::parse(line.trim()) {
            Ok(url) if url.as_str().starts_with(redirect_uri.as_str()) => Some(url),
            _ if line.trim().is_empty() => None,
            _ => {
                stderr::warn(&format!(
                    "expected an address that starts with {redirect_uri}"
                ));
                None
            }
        })
    });
    match pasted.await {
        Ok(Some(url)) => url,
        _ => pending().await,
    }
}

/// Holds the grant of a new login. An earlier grant is ignored, so that the user can change the account.
#[derive(Clone, Default)]
struct NewGrant(Arc<Mutex<Option<Grant>>>);

impl Grants for NewGrant {
    fn get<'a>(&'a self, _server: &'a Url) -> GrantsFuture<'a, Option<Grant>> {
        Box::pin(ready(Ok(self.0.lock().clone())))
    }

    fn put<'a>(&'a self, _server: &'a Url, grant: &'a Grant) -> GrantsFuture<'a, ()> {
        *self.0.lock() = Some(grant.clone());
        Box::pin(ready(Ok(())))
    }
}
