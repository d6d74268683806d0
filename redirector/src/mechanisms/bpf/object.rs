//! The embedded kernel programs.

#[cfg(all(bpf_object_missing, not(clippy)))]
compile_error!(
    "target/ebpf/culvert-redirector.bpf.o is missing: run `cargo xtask build-ebpf`, or set \
     CULVERT_BPF_OBJECT"
);

/// The ELF object, aligned as aya's parser requires.
#[cfg(not(bpf_object_missing))]
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CULVERT_BPF_OBJECT_FOUND"));

/// clippy needs no kernel programs.
#[cfg(bpf_object_missing)]
pub(super) static OBJECT: &[u8] = &[];
