//! Generates the protos without protoc: protox parses them, prost writes the Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The service is framed by hand (see `frame`): only its messages are generated.
    let messages = tonic_prost_build::configure()
        .bytes(".culvert.tunnel.v1")
        .build_client(false)
        .build_server(false);
    messages.compile_fds(protox::compile(["tunnel.proto"], ["proto"])?)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
