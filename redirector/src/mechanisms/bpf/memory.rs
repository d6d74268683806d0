//! The limit of locked memory (RLIMIT_MEMLOCK). Kernels before 5.11 count maps and programs against
//! it.

use std::fmt;

use nix::libc::EPERM;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// The limit, if it may be the reason why the kernel refused a map or a program. Otherwise it
/// displays as an empty text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit(Option<u64>);

/// Removes the limit, or raises it as far as this process may.
pub(super) fn lift_limit() {
    // Without CAP_SYS_RESOURCE the kernel refuses more than the hard limit.
    if setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_ok() {
        return;
    }
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK) {
        // If this fails, the error of the map or program names the limit.
        let _refused = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
    }
}

impl MemoryLimit {
    /// The present limit, if it can be the cause of a call's error.
    pub(super) fn causing(error: Option<i32>) -> Self {
        match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((soft, _)) if error == Some(EPERM) && soft != RLIM_INFINITY => Self(Some(soft)),
            _ => Self(None),
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bytes) = self.0 else { return Ok(()) };
        write!(
            f,
            "; kernels before 5.11 count maps and programs as locked memory, of which {} KiB are \
             allowed here: \
             LimitMEMLOCK=infinity in the unit, `ulimit -l unlimited` in a shell",
            bytes / 1024
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_the_fix_and_no_limit_is_not() {
        let text = MemoryLimit(Some(8 << 20)).to_string();
        assert!(
            text.contains("8192 KiB") && text.contains("LimitMEMLOCK=infinity"),
            "{text}"
        );
        assert_eq!(MemoryLimit(None).to_string(), "");
        assert_eq!(
            MemoryLimit::causing(Some(nix::libc::EINVAL)),
            MemoryLimit(None)
        );
    }
}
