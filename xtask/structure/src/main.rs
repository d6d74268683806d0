//! The program that `cargo xtask structure` runs; all of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    match culvert_structure::run(argument.as_deref()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
