//! Memory by pages of 4 KiB.

use nix::sys::prctl::set_thp_disable;

/// Has the kernel back this process' memory with small pages only. With huge ones each 2 MiB that
/// the allocator touches anywhere count whole: an idle stream would take more than twice the
/// memory, and bulk is no faster for it.
pub fn use_small_pages() {
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
