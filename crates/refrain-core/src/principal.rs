//! The authenticated caller.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The first character of an account that is an address. Ids of principals have no control characters.
const ADDRESS_PREFIX: char = '\u{1}';

/// The authenticated caller. Tokens are bound to it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal(Option<Arc<str>>);

impl Principal {
    /// Makes a caller without authentication.
    pub const fn anonymous() -> Self {
        Self(None)
    }

    /// Makes a caller with this id.
    ///
    /// ```
    /// use refrain::auth::Principal;
    ///
    /// assert_eq!(Principal::new("alice").id(), Some("alice"));
    /// ```
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(Some(id.into()))
    }

    /// Returns the id, or `None` for an anonymous caller.
    pub fn id(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Returns the account under which this caller is counted for limits: the principal itself, or the address of an
    /// anonymous caller.
    ///
    /// ```
    /// use refrain::auth::Principal;
    ///
    /// let address = |text: &str| Some(text.parse().unwrap());
    /// let anonymous = Principal::anonymous();
    /// assert_ne!(anonymous.account(address("192.0.2.1")), anonymous.account(address("192.0.2.2")));
    /// assert_eq!(Principal::new("alice").account(address("192.0.2.1")), Principal::new("alice"));
    /// ```
    pub fn account(&self, address: Option<IpAddr>) -> Self {
        match (self.id(), address) {
            (None, Some(address)) => {
                let network = client_network(address);
                Self::new(format!("{ADDRESS_PREFIX}{network}"))
            }
            _ => self.clone(),
        }
    }

    /// Returns the address from which [`account`](Self::account) made this account.
    pub fn account_address(&self) -> Option<IpAddr> {
        self.id()?.strip_prefix(ADDRESS_PREFIX)?.parse().ok()
    }
}

/// Returns the part of an address that identifies one client: an IPv4 address, or an IPv6 network of 64 bits, because one
/// client usually has a whole network of this size.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
        address => address,
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id() {
            Some(id) => write!(f, "Principal({id:?})"),
            None => f.write_str("Principal(anonymous)"),
        }
    }
}
