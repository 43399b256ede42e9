//! The other instances of the fleet, to which requests for the calls that they hold are handed.

use crate::auth::web::any_web;
use crate::builder::BuildError;
use crate::remote::Remote;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The instances of a fleet, as one of them knows them: each has a name of its own, and a URL at which the others reach it.
///
/// ```
/// # use refrain_core::{KeyRing, SystemSource};
/// # use refrain_server::{Peers, Server};
/// let peers = Peers::new("a").peer("b", "http://10.0.0.8:8080/mcp");
/// let keys = KeyRing::generate(&SystemSource::new());
/// let server = Server::builder("docs", "1.0").keys(keys).peers(peers).build()?;
/// # Ok::<(), refrain_server::BuildError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Peers {
    name: String,
    others: Vec<(String, String)>,
}

impl Peers {
    /// The fleet of the instance of this name. Names are written into tokens, which are sealed.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            others: Vec::new(),
        }
    }

    /// Another instance, and the URL of its endpoint as this one reaches it. The instance itself may be named as well: all of
    /// a fleet can then share one list.
    pub fn peer(mut self, name: impl Into<String>, url: impl Into<String>) -> Self {
        self.others.push((name.into(), url.into()));
        self
    }

    /// Can the instances be known by these names, and reached at these URLs? [`build`](crate::ServerBuilder::build) asks the
    /// same.
    pub fn check(&self) -> Result<(), BuildError> {
        Remotes::new(Some(self.clone())).map(drop)
    }
}

/// Names only: a URL may have a query that others need not read.
impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<_> = self.others.iter().map(|(name, _)| name).collect();
        f.debug_struct("Peers")
            .field("name", &self.name)
            .field("others", &others)
            .finish()
    }
}

/// The longest name of an instance.
const LONGEST: usize = 200;

/// What was said about peers when a server was put together.
pub(crate) type PeerRules = Option<Peers>;

/// The peers of an instance, ready to be spoken to.
#[derive(Debug, Default)]
pub(crate) struct Remotes {
    /// The name of this instance, if it was given one.
    pub(crate) name: Option<String>,
    others: HashMap<String, Arc<Remote>>,
}

impl Remotes {
    pub(crate) fn new(peers: PeerRules) -> Result<Self, BuildError> {
        let Some(Peers { name, others }) = peers else {
            return Ok(Self::default());
        };
        let wrong = |peer: &str, reason| BuildError::Peer {
            peer: peer.to_owned(),
            reason,
        };
        check_name(&name).map_err(|reason| wrong(&name, reason))?;
        let mut known = HashMap::new();
        for (peer, url) in others {
            check_name(&peer).map_err(|reason| wrong(&peer, reason))?;
            let web = any_web(&url).map_err(|reason| wrong(&peer, reason))?;
            if peer == name {
                continue;
            }
            let remote = Remote::new(web).map_err(|reason| wrong(&peer, reason))?;
            if known.insert(peer.clone(), Arc::new(remote)).is_some() {
                return Err(wrong(&peer, "it is named twice"));
            }
        }
        Ok(Self {
            name: Some(name),
            others: known,
        })
    }

    /// The peer of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Remote>> {
        self.others.get(name)
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > LONGEST {
        return Err("a name has 1 to 200 bytes");
    }
    if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("a name has no spaces and no control characters");
    }
    Ok(())
}
