//! What suites need of the machine besides a Rust compiler: a suite whose needs are missing is
//! skipped, so that on any machine those run that can.

use crate::setup::{self, Use};

use super::suite::Suite;

/// What a suite needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    installed: &'static [Use],
    /// The programs that Go compiles. Where only some tests of a suite need them, these skip
    /// themselves.
    go_programs: bool,
}

/// Whether a suite needs anything.
pub(super) fn has_any(suite: &Suite) -> bool {
    Needs::of(&suite.name) != Needs::default()
}

/// What is missing for a suite, and what brings it.
pub(super) fn lacking(suite: &Suite) -> Option<String> {
    let needs = Needs::of(&suite.name);
    if let Some(lack) = setup::lacks(needs.installed) {
        return Some(lack);
    }
    if needs.go_programs {
        return setup::lacks_go_programs();
    }
    None
}

impl Needs {
    fn of(suite: &str) -> Self {
        let installed: &[Use] = match suite {
            // They run all of Culvert's programs.
            "redirector: kernel" | "tests/chain" => &[Use::Ebpf, Use::Labs, Use::Tests],
            "tests/kubernetes" => &[Use::Ebpf, Use::Labs],
            "tests/packages" => &[Use::Ebpf, Use::Labs, Use::Packages, Use::Tests],
            _ => &[],
        };
        Self {
            installed,
            go_programs: matches!(suite, "tests/kubernetes" | "tests/manifests"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_tests_need_nothing_but_a_compiler() {
        assert_eq!(Needs::of("proxy: unit tests of the lib"), Needs::default());
        assert!(Needs::of("tests/manifests").go_programs);
        assert!(Needs::of("tests/chain").installed.contains(&Use::Ebpf));
    }
}
