//! The ConfigMap `culvert-agent`: the proxies of a Kubernetes cluster write it for their agents,
//! which mount it as a folder.

/// Name of the ConfigMap.
pub const NAME: &str = "culvert-agent";
/// Key of the authorities that sign the proxies' certificates, PEM.
pub const CA: &str = "ca.crt";
/// Key of the name in the proxies' certificates.
pub const SERVER_NAME: &str = "server-name";
/// Key of the proxies that agents dial, one `HOST:PORT` per line.
pub const PROXIES: &str = "proxies";
/// Longest list of proxies. An agent needs one of them to begin with: it learns of the others from
/// that one.
pub const MAX_PROXIES: usize = 256;
