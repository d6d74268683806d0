//! Cilium, which attaches its own connect hooks at the root cgroup. If some versions have no hook
//! of a kind, they detach all programs of that kind that they find there. A link cannot be detached
//! this way, and these versions then do not start (Cilium issue 43877).

use std::collections::BTreeSet;
use std::path::Path;

use culvert_redirector_common::names::{BIND4, BIND6, CONNECT4, CONNECT6, PEER4, PEER6};

use super::cgroup::ROOT_INODE;

/// Cilium's pins, below the BPF file system.
const DIRECTORY: &str = "cilium";
/// The links of Cilium's hooks, named after its programs.
const LINKS: &str = "cilium/socketlb/links/cgroup";
/// Our programs, each with Cilium's program of the same kind.
const COUNTERPARTS: [(&str, &str); 4] = [
    (CONNECT4, "cil_sock4_connect"),
    (CONNECT6, "cil_sock6_connect"),
    (PEER4, "cil_sock4_getpeername"),
    (PEER6, "cil_sock6_getpeername"),
];

/// The same of the programs that keep ports.
const BIND_COUNTERPARTS: [(&str, &str); 2] =
    [(BIND4, "cil_sock4_pre_bind"), (BIND6, "cil_sock6_pre_bind")];

/// What Cilium has installed on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cilium {
    hooks: BTreeSet<String>,
}

/// Whether Cilium and the redirector can run on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CiliumCompatibility {
    /// Both work. The text describes Cilium's hooks.
    Compatible(String),
    /// Cilium may not start. The text says why, and what to do.
    Conflicting(String),
}

impl Cilium {
    /// Reads Cilium's pins; `None` if Cilium is not on this host.
    pub(crate) fn find(bpffs: &Path) -> Option<Self> {
        if !bpffs.join(DIRECTORY).is_dir() {
            return None;
        }
        let pins = std::fs::read_dir(bpffs.join(LINKS))
            .into_iter()
            .flatten()
            .flatten();
        Some(Self {
            hooks: pins
                .map(|pin| pin.file_name().to_string_lossy().into_owned())
                .collect(),
        })
    }

    /// The compatibility with our hooks at the cgroup with this id.
    pub(crate) fn beside(&self, cgroup: u64) -> CiliumCompatibility {
        let text = match self.hooks.len() {
            0 => "without connect hooks".to_owned(),
            _ => format!(
                "has hooks of its own: {}",
                list(self.hooks.iter().map(String::as_str))
            ),
        };
        let alone = self.without(&COUNTERPARTS);
        if cgroup != ROOT_INODE || alone.is_empty() {
            return CiliumCompatibility::Compatible(text);
        }
        CiliumCompatibility::Conflicting(format!(
            "Cilium is on this host ({text}) and has none like our {alone}: a version without the \
             fix of its issue 43877 does not \
             start beside them. If yours has the fix: --beside-cilium; else --mechanism nftables, \
             or a --cgroup below the root"
        ))
    }

    /// Why it may not start beside our bind hooks, which are at the root cgroup.
    pub(super) fn against_bind_hooks(&self) -> Option<String> {
        let alone = self.without(&BIND_COUNTERPARTS);
        if alone.is_empty() {
            return None;
        }
        Some(format!(
            "Cilium is on this host and has none like our {alone}: a version without the fix of its \
             issue 43877 does not start beside them. If yours has the fix: --beside-cilium"
        ))
    }

    /// Our programs of which Cilium has none of the kind.
    fn without(&self, counterparts: &[(&'static str, &str)]) -> String {
        let mut alone = Vec::new();
        for (ours, theirs) in counterparts {
            if !self.hooks.contains(*theirs) {
                alone.push(*ours);
            }
        }
        alone.join(", ")
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: u64 = 4711;

    fn with(hooks: &[&str]) -> Cilium {
        Cilium {
            hooks: hooks.iter().map(|hook| (*hook).to_owned()).collect(),
        }
    }

    #[test]
    fn a_cilium_without_hooks_like_ours_is_a_danger_at_the_root_alone() {
        for hooks in [&[][..], &["cil_sock4_connect", "cil_sock6_connect"]] {
            let CiliumCompatibility::Conflicting(text) = with(hooks).beside(ROOT_INODE) else {
                panic!("{hooks:?}")
            };
            assert!(
                text.contains("cv_peer4") && text.contains("--mechanism nftables"),
                "{text}"
            );
            assert_eq!(text.contains("cv_connect4"), hooks.is_empty());
            assert!(matches!(
                with(hooks).beside(CHILD),
                CiliumCompatibility::Compatible(_)
            ));
        }
    }

    #[test]
    fn a_cilium_with_hooks_like_all_of_ours_is_a_good_neighbour() {
        let hooks = COUNTERPARTS.map(|(_, theirs)| theirs);
        let CiliumCompatibility::Compatible(text) = with(&hooks).beside(ROOT_INODE) else {
            panic!("a danger")
        };
        assert!(text.contains("cil_sock4_connect"), "{text}");
    }

    #[test]
    fn a_cilium_without_bind_hooks_stands_against_ours_alone() {
        let hooks = COUNTERPARTS.map(|(_, theirs)| theirs);
        let cilium = with(&hooks);
        let against = cilium.against_bind_hooks().unwrap();
        assert!(against.contains("cv_bind4, cv_bind6"), "{against}");
        assert!(matches!(
            cilium.beside(ROOT_INODE),
            CiliumCompatibility::Compatible(_)
        ));
        let hooks = BIND_COUNTERPARTS.map(|(_, theirs)| theirs);
        assert_eq!(with(&hooks).against_bind_hooks(), None);
    }

    #[test]
    fn a_host_without_its_pins_has_no_cilium() {
        let bpffs = tempfile::tempdir().unwrap();
        assert_eq!(Cilium::find(bpffs.path()), None);
        std::fs::create_dir(bpffs.path().join("cilium")).unwrap();
        assert_eq!(Cilium::find(bpffs.path()), Some(with(&[])));
    }
}
