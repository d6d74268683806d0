//! The paths that rows are measured on.

/// A path from a client to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Path {
    /// One TCP connection.
    Direct,
    /// A new one each time, where the others keep theirs.
    DirectNew,
    /// Two processes that copy between TCP connections.
    PlainRelay,
    /// The same, with a TLS connection between them for each client.
    TlsRelay,
    /// konnectivity, by HTTP CONNECT on its server's Unix socket.
    Konnectivity,
    /// Culvert, by HTTP CONNECT on the proxy's Unix socket.
    Connect,
    /// The same with other programs of Culvert.
    ConnectAgainst,
    /// By CONNECT at a second proxy, which has no tunnel of the node and reaches it through the first.
    ConnectByPeer,
    /// Culvert, steered by the connect hook.
    InterceptEbpf,
    /// Culvert, steered by nftables.
    InterceptNft,
    /// No path to a backend: the redirector itself answers.
    Redirector,
}

impl Path {
    /// Its name in the JSON and the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectNew => "direct_new",
            Self::PlainRelay => "plain_relay",
            Self::TlsRelay => "tls_relay",
            Self::Konnectivity => "konnectivity",
            Self::Connect => "connect",
            Self::ConnectAgainst => "connect_against",
            Self::ConnectByPeer => "connect_by_peer",
            Self::InterceptEbpf => "intercept_ebpf",
            Self::InterceptNft => "intercept_nft",
            Self::Redirector => "redirector",
        }
    }
}
