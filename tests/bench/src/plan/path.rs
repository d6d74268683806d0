//! The paths that rows are measured on.

/// A path from a client to the backend, in the order of the columns of the table.
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
    /// The same as most relays copy: without a buffer below TLS, a record at a time.
    SimpleTlsRelay,
    /// konnectivity, by HTTP CONNECT on its server's Unix socket.
    Konnectivity,
    /// frp, by the port that its server has for the backend.
    Frp,
    /// frp with a connection for each client, out of a pool.
    FrpNoMux,
    /// rathole, by the port that its server has for the backend.
    Rathole,
    /// Culvert, by HTTP CONNECT on the proxy's Unix socket.
    Connect,
    /// The same with other programs of Culvert.
    ConnectAgainst,
    /// Culvert, by CONNECT at a second proxy, which has no tunnel of the node and reaches it through the first.
    ConnectByPeer,
    /// Culvert, by CONNECT over TLS, as a client with a certificate.
    ConnectTls,
    /// Culvert, by CONNECT to an address that the proxy dials itself, without an agent.
    ConnectDirect,
    /// Culvert, steered by the connect hook.
    InterceptEbpf,
    /// Culvert, steered by nftables.
    InterceptNft,
    /// No path to a backend: the redirector itself answers.
    Redirector,
}

impl Path {
    /// Whether it is compared with another path, and not what others are compared with.
    pub(crate) fn is_compared(self) -> bool {
        match self {
            Self::Direct
            | Self::DirectNew
            | Self::PlainRelay
            | Self::TlsRelay
            | Self::SimpleTlsRelay
            | Self::Redirector => false,
            Self::Konnectivity
            | Self::Frp
            | Self::FrpNoMux
            | Self::Rathole
            | Self::Connect
            | Self::ConnectAgainst
            | Self::ConnectByPeer
            | Self::ConnectTls
            | Self::ConnectDirect
            | Self::InterceptEbpf
            | Self::InterceptNft => true,
        }
    }

    /// Its name in the JSON and the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectNew => "direct_new",
            Self::PlainRelay => "plain_relay",
            Self::TlsRelay => "tls_relay",
            Self::SimpleTlsRelay => "simple_tls_relay",
            Self::Konnectivity => "konnectivity",
            Self::Frp => "frp",
            Self::FrpNoMux => "frp_no_mux",
            Self::Rathole => "rathole",
            Self::Connect => "connect",
            Self::ConnectAgainst => "connect_against",
            Self::ConnectByPeer => "connect_by_peer",
            Self::ConnectTls => "connect_tls",
            Self::ConnectDirect => "connect_direct",
            Self::InterceptEbpf => "intercept_ebpf",
            Self::InterceptNft => "intercept_nft",
            Self::Redirector => "redirector",
        }
    }
}
