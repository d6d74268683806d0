//! Finds the kernel programs that the daemon embeds; `cargo xtask build-ebpf` makes them.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=CULVERT_BPF_OBJECT");
    println!("cargo::rustc-check-cfg=cfg(bpf_object_missing)");
    let object = std::env::var_os("CULVERT_BPF_OBJECT").map_or_else(in_workspace, PathBuf::from);
    println!("cargo::rerun-if-changed={}", object.display());
    if object.is_file() {
        println!(
            "cargo::rustc-env=CULVERT_BPF_OBJECT_FOUND={}",
            object.display()
        );
    } else {
        // Not an error here but a compile error in src/mechanisms/bpf/object.rs: clippy needs no
        // kernel programs.
        println!("cargo::rustc-cfg=bpf_object_missing");
    }
}

fn in_workspace() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .unwrap_or_default();
    manifest.join("../target/ebpf/culvert-redirector.bpf.o")
}
