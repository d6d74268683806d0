//! Generates the protos without protoc: protox parses them, prost and tonic write the Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = ["tunnel.proto", "enroll.proto", "directory.proto", "control.proto"];
    let descriptors = protox::compile(protos, ["proto"])?;
    // The agent's service is hand-framed (see `transport`); its messages are generated like the others.
    tonic_prost_build::configure().bytes(".culvert.tunnel.v1").compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
