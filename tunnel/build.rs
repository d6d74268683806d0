//! Generates the protos without protoc: protox parses them, prost and tonic write the Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let compile = |protos: &[&str]| protox::compile(protos, ["proto"]);
    // The tunnel's own service is framed by hand (see `frame`): only its messages are generated.
    let messages = tonic_prost_build::configure().bytes(".culvert.tunnel.v1").build_client(false).build_server(false);
    messages.compile_fds(compile(&["tunnel.proto"])?)?;
    tonic_prost_build::configure().compile_fds(compile(&["enroll.proto", "directory.proto", "control.proto"])?)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
