//! Generates the protos without protoc: protox parses them, prost and tonic write the Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = protox::compile(
        [
            "enroll.proto",
            "directory.proto",
            "control.proto",
            "peer.proto",
        ],
        ["proto"],
    )?;
    tonic_prost_build::configure().compile_fds(protos)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
