//! Generates the client of a collector: protox parses the proto, prost and tonic write the Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = protox::compile(["otlp.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(protos)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
