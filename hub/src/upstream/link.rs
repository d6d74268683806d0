//! Whether the API server can be reached: decisions only. [`super::watcher`] probes and reports.

use std::time::Duration;

use super::Credential;

/// Consecutive tries that must fail before the link counts as down: one may meet a restart.
const FAILURES_DOWN: u32 = 2;
/// Consecutive probes that must succeed before the link counts as up again.
const PROBES_UP: u32 = 2;
/// Pause between two good probes.
const CONFIRM: Duration = Duration::from_secs(1);
/// The longest pause between probes.
const LONGEST: Duration = Duration::from_secs(10);

/// Whether the API server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Up,
    Down,
}

/// What happened on the way to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// Bytes came from it.
    Heard,
    /// A connection could not be made, or a probe got no answer.
    TryFailed,
    /// A connection is open, and nothing came on it for too long.
    Silence,
    /// It answered a probe, and does not take the node's certificate.
    Refused,
    /// It answered a probe.
    ProbeAnswered,
}

/// The state of the link, and what speaks for a change.
#[derive(Debug)]
pub(crate) struct Link {
    state: LinkState,
    /// Consecutive failures while up, or failed probes while down.
    failures: u32,
    answered: u32,
    /// At the start one good probe is enough: no client has seen the link change.
    needed: u32,
    node: NodeCertificate,
}

/// What the API server says of the node's certificate. Others than the node are not concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeCertificate {
    /// It has not answered yet.
    Unknown,
    Accepted,
    /// It was refused once, as an API server that begins may do.
    Doubtful,
    Refused,
}

impl Link {
    /// Down until the first probe: a node that boots without a link must not wait for one.
    pub(crate) const fn new() -> Self {
        Self {
            state: LinkState::Down,
            failures: 0,
            answered: 0,
            needed: 1,
            node: NodeCertificate::Unknown,
        }
    }

    /// The state of the link for requests with this credential.
    pub(crate) const fn state(&self, credential: Credential) -> LinkState {
        match (credential, self.node) {
            (Credential::Node, NodeCertificate::Refused) => LinkState::Down,
            (Credential::Node | Credential::Bearer, _) => self.state,
        }
    }

    /// Takes an observation.
    pub(crate) const fn observe(&mut self, observation: Observation) {
        match (self.node, observation) {
            (NodeCertificate::Accepted, Observation::Refused) => {
                self.node = NodeCertificate::Doubtful;
            }
            (_, Observation::Refused) => self.node = NodeCertificate::Refused,
            (_, Observation::ProbeAnswered) => self.node = NodeCertificate::Accepted,
            (_, Observation::Heard | Observation::TryFailed | Observation::Silence) => {}
        }
        match (self.state, observation) {
            (
                LinkState::Up,
                Observation::Heard | Observation::ProbeAnswered | Observation::Refused,
            ) => self.failures = 0,
            (LinkState::Up, Observation::TryFailed) => {
                self.failures += 1;
                if self.failures >= FAILURES_DOWN {
                    self.change(LinkState::Down);
                }
            }
            (LinkState::Up, Observation::Silence) => self.change(LinkState::Down),
            (LinkState::Down, Observation::ProbeAnswered | Observation::Refused) => {
                self.answered += 1;
                if self.answered >= self.needed {
                    self.change(LinkState::Up);
                }
            }
            (LinkState::Down, Observation::TryFailed) => {
                self.answered = 0;
                self.failures = self.failures.saturating_add(1);
            }
            // Bytes of a connection that was given up, or of a probe that is not answered yet.
            (LinkState::Down, Observation::Heard | Observation::Silence) => {}
        }
    }

    const fn change(&mut self, state: LinkState) {
        *self = Self {
            state,
            failures: 0,
            answered: 0,
            needed: PROBES_UP,
            node: self.node,
        };
    }

    /// How long after the last probe the next one is due while the link is up, because the API
    /// server refuses the node's certificate.
    pub(crate) const fn doubt(&self) -> Option<Duration> {
        match self.node {
            NodeCertificate::Unknown | NodeCertificate::Accepted => None,
            NodeCertificate::Doubtful => Some(CONFIRM),
            NodeCertificate::Refused => Some(LONGEST),
        }
    }

    /// The pause before the next probe while the link is down: 1, 2, 4, 8, then 10 s.
    pub(crate) fn pause(&self) -> Duration {
        if self.answered > 0 {
            return CONFIRM;
        }
        let doubled = Duration::from_secs(1).saturating_mul(1 << self.failures.min(4));
        doubled.min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Credential::{Bearer, Node};
    use Observation::{Heard, ProbeAnswered, Refused, Silence, TryFailed};

    fn up() -> Link {
        let mut link = Link::new();
        link.observe(ProbeAnswered);
        assert_eq!(link.state(Node), LinkState::Up);
        link
    }

    /// The state for node and others after these.
    fn after(mut link: Link, observations: &[Observation]) -> [LinkState; 2] {
        for &observation in observations {
            link.observe(observation);
        }
        [link.state(Node), link.state(Bearer)]
    }

    const UP: [LinkState; 2] = [LinkState::Up; 2];
    const DOWN: [LinkState; 2] = [LinkState::Down; 2];
    const NODE_DOWN: [LinkState; 2] = [LinkState::Down, LinkState::Up];

    #[test]
    fn one_failure_is_not_a_cut_and_two_are() {
        assert_eq!(after(up(), &[TryFailed]), UP);
        assert_eq!(
            after(up(), &[TryFailed, Heard, TryFailed]),
            UP,
            "bytes came"
        );
        assert_eq!(after(up(), &[TryFailed, TryFailed]), DOWN);
    }

    #[test]
    fn silence_of_an_open_connection_is_a_cut() {
        assert_eq!(after(up(), &[Silence]), DOWN);
    }

    #[test]
    fn an_api_server_that_refuses_the_node_twice_is_away_for_the_node_and_for_nobody_else() {
        assert_eq!(after(up(), &[Refused]), UP, "it may only be beginning");
        assert_eq!(after(up(), &[Refused, Refused]), NODE_DOWN);
        assert_eq!(after(up(), &[Refused, Refused, ProbeAnswered]), UP);
        assert_eq!(after(up(), &[Refused, Refused, Silence]), DOWN);
        let mut link = up();
        assert_eq!(link.doubt(), None);
        link.observe(Refused);
        assert_eq!(link.doubt(), Some(CONFIRM));
    }

    #[test]
    fn a_node_that_starts_with_a_certificate_that_is_refused_never_has_a_link() {
        assert_eq!(after(Link::new(), &[Refused]), NODE_DOWN);
    }

    #[test]
    fn after_a_cut_two_probes_in_a_row_are_answered_before_the_link_is_up() {
        let mut link = up();
        link.observe(Silence);
        for failed_between in [true, false] {
            link.observe(ProbeAnswered);
            assert_eq!(link.state(Node), LinkState::Down);
            assert_eq!(link.pause(), Duration::from_secs(1));
            if failed_between {
                link.observe(TryFailed);
            }
        }
        link.observe(ProbeAnswered);
        assert_eq!(link.state(Node), LinkState::Up);
    }

    #[test]
    fn pauses_between_probes_grow_to_ten_seconds() {
        let mut link = Link::new();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pauses.push(link.pause().as_secs());
            link.observe(TryFailed);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }
}
