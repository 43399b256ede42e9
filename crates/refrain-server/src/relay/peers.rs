//! The configured instances, in an order of preference that differs for each caller (rendezvous hashing).
//!
//! All instances compute the same order from the same URLs. If an instance is added or removed, only the callers that it
//! gains or loses move.

use super::holder::check_url;
use crate::builder::BuildError;
use aws_lc_rs::digest::{Context, SHA256};
use refrain_core::Principal;
use std::cmp::Reverse;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Peers(Vec<Arc<str>>);

impl Peers {
    /// Checks the URLs, which must contain that of this instance.
    pub(super) fn new(urls: Vec<String>, own: Option<&Arc<str>>) -> Result<Self, BuildError> {
        for url in &urls {
            check_url(url).map_err(|reason| BuildError::Peer {
                url: url.clone(),
                reason,
            })?;
        }
        let is_own = |url: &String| own.is_some_and(|own| **own == **url);
        if !urls.is_empty() && !urls.iter().any(is_own) {
            return Err(BuildError::NotAmongPeers);
        }
        let mut peers: Vec<Arc<str>> = urls.into_iter().map(Arc::from).collect();
        peers.sort();
        peers.dedup();
        Ok(Self(peers))
    }

    /// The peers before this instance in the order for a caller.
    pub(super) fn before(&self, own: Option<&Arc<str>>, caller: &Principal) -> Vec<Arc<str>> {
        let mut peers = self.0.clone();
        peers.sort_by_cached_key(|url| Reverse(weight(url, caller)));
        let own_index = peers.iter().position(|url| Some(url) == own);
        peers.truncate(own_index.unwrap_or(0));
        peers
    }
}

fn weight(url: &str, caller: &Principal) -> [u8; 32] {
    let mut digest = Context::new(&SHA256);
    digest.update(b"refrain peer v1");
    for part in [url, caller.id().unwrap_or_default()] {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    digest.update(&[u8::from(caller.id().is_some())]);
    let mut weight = [0; 32];
    weight.copy_from_slice(digest.finish().as_ref());
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(count: usize) -> Vec<String> {
        let urls = 0..count;
        urls.map(|number| format!("http://10.0.0.{number}/mcp"))
            .collect()
    }

    /// The instance that runs the calls of this caller.
    fn first(urls: &[String], caller: &str) -> String {
        let caller = Principal::new(caller);
        let is_first = |url: &&String| {
            let own = Arc::from(url.as_str());
            let peers = Peers::new(urls.to_vec(), Some(&own)).expect("valid peers");
            peers.before(Some(&own), &caller).is_empty()
        };
        let all: Vec<_> = urls.iter().filter(is_first).collect();
        assert_eq!(all.len(), 1, "one instance is the first: {all:?}");
        all[0].clone()
    }

    #[test]
    fn added_instance_moves_only_its_own_callers() {
        let (three, four) = (urls(3), urls(4));
        let mut counts = [0; 4];
        for caller in (0..400).map(|number| format!("caller {number}")) {
            let (before, after) = (first(&three, &caller), first(&four, &caller));
            assert!(before == after || after == four[3], "{before} to {after}");
            let at = four.iter().position(|url| *url == after);
            counts[at.expect("an instance")] += 1;
        }
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    }

    #[test]
    fn peers_must_be_valid_and_contain_this_instance() {
        let own: Arc<str> = "http://10.0.0.0/mcp".into();
        assert!(Peers::new(urls(2), Some(&own)).is_ok());
        assert!(Peers::new(Vec::new(), None).is_ok());
        let other = vec!["http://10.0.0.9/mcp".to_owned()];
        for own in [Some(&own), None] {
            let error = Peers::new(other.clone(), own).expect_err("this instance is missing");
            assert!(matches!(error, BuildError::NotAmongPeers));
        }
        let invalid = vec![own.to_string(), "ftp://a/".to_owned()];
        let error = Peers::new(invalid, Some(&own)).expect_err("an invalid URL");
        assert!(error.to_string().contains("ftp://a/"), "{error}");
    }
}
