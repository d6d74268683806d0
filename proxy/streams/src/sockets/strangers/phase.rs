//! The phases of a stranger's connection, and the two kinds of addresses.

use strum::EnumTable;

/// The phase of a stranger's connection. Each phase has its own permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumTable)]
pub enum Phase {
    /// The peer has not sent anything yet.
    Silent,
    /// The peer has sent its ClientHello and waits until there is a permit of the next phase.
    Waiting,
    /// TLS has begun.
    Handshake,
    /// TLS is complete: the connection enrols, or a tunnel is being set up.
    Call,
}

/// What is known of a peer's address. Strangers do not get the permits of proven addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumTable)]
pub(super) enum AddressKind {
    Unknown,
    /// A tunnel came from it lately.
    Proven,
}
