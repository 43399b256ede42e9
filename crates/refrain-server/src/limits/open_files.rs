//! Limits that follow from the number of files that the process may open.
//!
//! Connections must not use all files: if none can be accepted, the rules of a full port cannot protect small addresses. A
//! relayed request needs a second connection.

use super::ServerLimits;

/// Maximum number of open files that are left to stores, webhooks and the metrics port, whose connections use at most a
/// quarter of them.
const RESERVED_FILES: usize = 1024;

/// What a port serves.
#[derive(Clone, Copy)]
pub(crate) enum PortKind {
    Endpoint {
        /// Whether requests are relayed to other instances.
        relays: bool,
    },
    Metrics,
}

impl PortKind {
    /// The limits of the connections, in total and per address, in a process with this limit of open files. An address keeps
    /// its share of a reduced limit.
    pub(crate) fn connection_limits(
        self,
        limits: &ServerLimits,
        file_limit: Option<u64>,
    ) -> (usize, usize) {
        let files = file_limit.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
        let reserved = (files / 4).min(RESERVED_FILES);
        let available = match self {
            Self::Endpoint { relays: false } => files - reserved,
            Self::Endpoint { relays: true } => (files - reserved) / 3 * 2,
            Self::Metrics => reserved / 4,
        };
        let (all, each) = (limits.connections, limits.connections_each);
        let total = all.min(available.max(1));
        if total == all {
            return (all, each);
        }
        let each = (each as u128 * total as u128).div_ceil(all as u128);
        (total, each.try_into().unwrap_or(usize::MAX))
    }
}

/// The number of requests that are relayed at the same time, in total and per caller.
pub(crate) fn relay_limits(limits: &ServerLimits, file_limit: Option<u64>) -> (usize, usize) {
    let endpoint = PortKind::Endpoint { relays: true };
    let (connections, _) = endpoint.connection_limits(limits, file_limit);
    let total = (connections / 2).max(1);
    (total, (total / 2).max(1))
}

/// The process's limit of open files. `None`: unlimited, or unknown because the system is not Linux.
pub(crate) fn file_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let mut lines = limits.lines();
    let soft_and_hard = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    soft_and_hard.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: PortKind = PortKind::Endpoint { relays: false };

    #[test]
    fn connections_leave_open_files_to_stores_and_the_metrics_port() {
        let limits = ServerLimits::default();
        let port = |files| ENDPOINT.connection_limits(&limits, files);
        assert_eq!(port(None), (8192, 4096));
        assert_eq!(port(Some(65_536)), (8192, 4096));
        assert_eq!(port(Some(4096)), (3072, 1536), "half for one address");
        assert_eq!(port(Some(300)), (225, 113));
        assert_eq!(port(Some(0)), (1, 1));
        let metrics = |files| PortKind::Metrics.connection_limits(&limits, files).0;
        assert_eq!(metrics(None), 256);
        assert_eq!(metrics(Some(300)), 18);
        let one_proxy = ServerLimits {
            connections_each: usize::MAX,
            ..limits.clone()
        };
        let (total, each) = ENDPOINT.connection_limits(&one_proxy, Some(1024));
        assert!(each >= total, "one address may use all connections");
    }

    #[test]
    fn connections_and_relays_leave_the_reserved_files() {
        let limits = ServerLimits::default();
        assert_eq!(relay_limits(&limits, None), (4096, 2048));
        assert_eq!(relay_limits(&limits, Some(0)), (1, 1));
        let endpoint = PortKind::Endpoint { relays: true };
        for files in [300, 1024, 2048, 4096, 65_536] {
            let connections = endpoint.connection_limits(&limits, Some(files)).0;
            let used = connections + relay_limits(&limits, Some(files)).0;
            let free = files as usize - used;
            assert!(free >= (files as usize / 4).min(1024), "{files}: {free}");
        }
    }
}
