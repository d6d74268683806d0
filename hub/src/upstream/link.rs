//! Whether the API server can be reached: decisions only. [`super::watcher`] probes and reports.

use std::time::Duration;

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
}

impl Link {
    /// Down until the first probe: a node that boots without a link must not wait for one.
    pub(crate) const fn new() -> Self {
        Self {
            state: LinkState::Down,
            failures: 0,
            answered: 0,
            needed: 1,
        }
    }

    /// Takes an observation; returns the new state if it changes.
    pub(crate) const fn observe(&mut self, observation: Observation) -> Option<LinkState> {
        match (self.state, observation) {
            (LinkState::Up, Observation::Heard | Observation::ProbeAnswered) => {
                self.failures = 0;
                None
            }
            (LinkState::Up, Observation::TryFailed) => {
                self.failures += 1;
                if self.failures < FAILURES_DOWN {
                    return None;
                }
                Some(self.change(LinkState::Down))
            }
            (LinkState::Up, Observation::Silence | Observation::Refused) => {
                Some(self.change(LinkState::Down))
            }
            (LinkState::Down, Observation::ProbeAnswered) => {
                self.answered += 1;
                if self.answered < self.needed {
                    return None;
                }
                Some(self.change(LinkState::Up))
            }
            (LinkState::Down, Observation::TryFailed | Observation::Refused) => {
                self.answered = 0;
                self.failures = self.failures.saturating_add(1);
                None
            }
            // Bytes of a connection that was given up, or of a probe that is not answered yet.
            (LinkState::Down, Observation::Heard | Observation::Silence) => None,
        }
    }

    const fn change(&mut self, state: LinkState) -> LinkState {
        *self = Self {
            state,
            failures: 0,
            answered: 0,
            needed: PROBES_UP,
        };
        state
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
    use Observation::{Heard, ProbeAnswered, Refused, Silence, TryFailed};

    fn up() -> Link {
        let mut link = Link::new();
        assert_eq!(link.observe(ProbeAnswered), Some(LinkState::Up));
        link
    }

    #[test]
    fn one_failure_is_not_a_cut_and_two_are() {
        let mut link = up();
        assert_eq!(link.observe(TryFailed), None);
        assert_eq!(link.observe(Heard), None);
        assert_eq!(link.observe(TryFailed), None, "bytes came in between");
        assert_eq!(link.observe(TryFailed), Some(LinkState::Down));
    }

    #[test]
    fn silence_of_an_open_connection_is_a_cut() {
        assert_eq!(up().observe(Silence), Some(LinkState::Down));
    }

    #[test]
    fn an_api_server_that_refuses_the_node_is_as_one_that_is_away() {
        assert_eq!(up().observe(Refused), Some(LinkState::Down));
    }

    #[test]
    fn after_a_cut_two_probes_in_a_row_are_answered_before_the_link_is_up() {
        let mut link = up();
        link.observe(Silence);
        for failed_between in [true, false] {
            assert_eq!(link.observe(ProbeAnswered), None);
            assert_eq!(link.pause(), Duration::from_secs(1));
            if failed_between {
                link.observe(TryFailed);
            }
        }
        assert_eq!(link.observe(ProbeAnswered), Some(LinkState::Up));
    }

    #[test]
    fn pauses_between_probes_grow_to_ten_seconds() {
        let mut link = Link::new();
        let pauses: Vec<u64> = (0..6)
            .map(|_| {
                let pause = link.pause().as_secs();
                link.observe(TryFailed);
                pause
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }
}
