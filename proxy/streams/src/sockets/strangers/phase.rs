//! The phases of a stranger's connection, the two kinds of addresses, and what there is of each.

use std::ops::{Index, IndexMut};

/// The phase of a stranger's connection. Each phase has its own permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// One of each phase.
#[derive(Debug, Default)]
pub(super) struct PerPhase<T> {
    pub(super) silent: T,
    pub(super) waiting: T,
    pub(super) handshake: T,
    pub(super) call: T,
}

impl<T> Index<Phase> for PerPhase<T> {
    type Output = T;

    fn index(&self, phase: Phase) -> &T {
        match phase {
            Phase::Silent => &self.silent,
            Phase::Waiting => &self.waiting,
            Phase::Handshake => &self.handshake,
            Phase::Call => &self.call,
        }
    }
}

impl<T> IndexMut<Phase> for PerPhase<T> {
    fn index_mut(&mut self, phase: Phase) -> &mut T {
        match phase {
            Phase::Silent => &mut self.silent,
            Phase::Waiting => &mut self.waiting,
            Phase::Handshake => &mut self.handshake,
            Phase::Call => &mut self.call,
        }
    }
}

/// What is known of a peer's address. Strangers do not get the permits of proven addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressKind {
    Unknown,
    /// A tunnel came from it lately.
    Proven,
}

/// One of each kind.
#[derive(Debug, Default)]
pub(super) struct PerKind<T> {
    pub(super) unknown: T,
    pub(super) proven: T,
}

impl<T> Index<AddressKind> for PerKind<T> {
    type Output = T;

    fn index(&self, kind: AddressKind) -> &T {
        match kind {
            AddressKind::Unknown => &self.unknown,
            AddressKind::Proven => &self.proven,
        }
    }
}

impl<T> IndexMut<AddressKind> for PerKind<T> {
    fn index_mut(&mut self, kind: AddressKind) -> &mut T {
        match kind {
            AddressKind::Unknown => &mut self.unknown,
            AddressKind::Proven => &mut self.proven,
        }
    }
}
