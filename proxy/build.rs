//! Generates the client of a collector from OpenTelemetry's protos, version 1.10.0, which are
//! unchanged. protox parses them, prost and tonic write the Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = "opentelemetry/proto/collector/trace/v1/trace_service.proto";
    let protos = protox::compile([service], ["proto"])?;
    tonic_prost_build::configure()
        // Code blocks in the comments would be taken for tests.
        .disable_comments(["."])
        .include_file("otlp.rs")
        .compile_fds(protos)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
