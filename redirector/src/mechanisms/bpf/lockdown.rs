//! Kernel lockdown, which some distributions switch on with Secure Boot. Since Linux 5.4 it leaves
//! programs like ours alone; kernels that have it by a patch of their distribution may refuse all
//! of `bpf()`.

use std::fmt;

use nix::libc::EPERM;

/// The kernel's word; it is in securityfs, which containers often do not see.
const FILE: &str = "/sys/kernel/security/lockdown";

/// The level, if it may be the reason why the kernel refused a map or a program. Otherwise it
/// displays as an empty text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lockdown(Option<String>);

impl Lockdown {
    /// The present level, if it can be the cause of a call's error.
    pub(super) fn causing(error: Option<i32>) -> Self {
        if error != Some(EPERM) {
            return Self(None);
        }
        Self::by(&std::fs::read_to_string(FILE).unwrap_or_default())
    }

    /// Parses the text of [`FILE`], such as `none [integrity] confidentiality`.
    fn by(levels: &str) -> Self {
        for level in levels.split_whitespace() {
            let chosen = level
                .strip_prefix('[')
                .and_then(|level| level.strip_suffix(']'));
            if let Some(level) = chosen
                && level != "none"
            {
                return Self(Some(level.to_owned()));
            }
        }
        Self(None)
    }
}

impl fmt::Display for Lockdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(level) = &self.0 else { return Ok(()) };
        write!(
            f,
            "; this kernel is locked down ({level}: {FILE}), by which some distributions refuse \
             bpf() to everybody: --mechanism nftables, or a boot without lockdown (Secure Boot off)"
        )
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::EINVAL;

    use super::*;

    #[test]
    fn a_locked_down_kernel_is_named_with_the_fix_and_no_other() {
        for (levels, level) in [
            ("none [integrity] confidentiality\n", "integrity"),
            ("none integrity [confidentiality]\n", "confidentiality"),
        ] {
            let text = Lockdown::by(levels).to_string();
            assert!(
                text.contains(level) && text.contains("--mechanism nftables"),
                "{text}"
            );
        }
        for levels in ["[none] integrity confidentiality\n", ""] {
            assert_eq!(Lockdown::by(levels).to_string(), "");
        }
        assert_eq!(Lockdown::causing(Some(EINVAL)), Lockdown(None));
        assert_eq!(Lockdown::causing(None), Lockdown(None));
    }
}
