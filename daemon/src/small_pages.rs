//! Makes the kernel use pages of 4 KiB.

use nix::sys::prctl::set_thp_disable;

/// Makes the kernel use only small pages for this process. With huge pages, each 2 MiB in which the
/// allocator touches any byte count as a whole: an idle stream would take more than twice the
/// memory, and bulk is not faster.
pub(crate) fn use_small_pages() {
    if let Err(error) = set_thp_disable(true) {
        tracing::debug!(%error, "the kernel may use huge pages");
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::prctl::get_thp_disable;

    use super::*;

    #[test]
    fn the_kernel_uses_small_pages() {
        use_small_pages();
        assert!(get_thp_disable().unwrap());
    }
}
