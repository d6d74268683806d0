//! `cargo xtask fuzz`: libFuzzer generates inputs for the parsers of what strangers, clients and
//! operators write, for a limited time. The targets are in `fuzz/`. Each states what must hold for
//! any input.
//!
//! It works with the project's own stable compiler. The code under test is safe Rust, so coverage
//! is enough: a sanitizer, which needs nightly, would find nothing.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use clap::builder::PossibleValuesParser;
use culvert_lab::{interrupt, progress, workspace};

use crate::setup::Use;
use crate::{build_ebpf, setup};

/// Every target: a file of `fuzz/fuzz_targets`, and a folder of `fuzz/seeds`.
const TARGETS: [&str; 22] = [
    "behind_label",
    "certificate",
    "connect_request",
    "directory_file",
    "dns_query",
    "edit",
    "first_message",
    "forward",
    "frames",
    "join_token",
    "list_json",
    "list_protobuf",
    "name_head",
    "predecessor",
    "proxy_header",
    "request_info",
    "saved_directory",
    "selector",
    "signing_request",
    "table_json",
    "token_file",
    "watch_events",
];

/// The version of cargo-fuzz that the flags here are for.
const CARGO_FUZZ: &str = "0.13.2";

/// Time limit of one input in seconds. All inputs are parsed in well under a millisecond.
const TIMEOUT_S: u32 = 5;

/// Memory limit: a target that needs more has an input that makes it grow. The code of the proxy
/// and the redirector needs about 100 MiB.
const MEMORY_MIB: u32 = 1024;

/// What to fuzz.
#[derive(clap::Args)]
pub struct Args {
    /// Fuzz only this target
    #[arg(value_parser = PossibleValuesParser::new(TARGETS))]
    target: Option<String>,
    /// How long each target is fuzzed
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds: u32,
    /// Give the target this input, once: what a crash has left
    #[arg(long, value_name = "FILE", requires = "target")]
    replay: Option<PathBuf>,
}

/// Builds the targets and fuzzes one after the other.
///
/// # Errors
/// The targets cannot be built. If one finds a fault, the error comes after all have run, with the
/// input and how to replay it.
pub fn run(args: &Args) -> Result<()> {
    build(args.target.as_deref())?;
    if let (Some(target), Some(input)) = (&args.target, &args.replay) {
        return replay(target, input);
    }
    let mut faults = Vec::new();
    for target in TARGETS {
        if let Some(chosen) = &args.target
            && chosen != target
        {
            continue;
        }
        if let Err(fault) = fuzz(target, args.seconds) {
            interrupt::check()?;
            faults.push(format!("{fault:#}"));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n\n"));
    progress::say("fuzz: nothing found");
    Ok(())
}

fn build(target: Option<&str>) -> Result<()> {
    let cargo_fuzz = crate::cargo_tool::program("cargo-fuzz", CARGO_FUZZ)?;
    // The redirector embeds the kernel programs. Any content will do, because none of them runs
    // here.
    if !workspace::bpf_object().is_file() {
        setup::ensure(&[Use::Ebpf])?;
        build_ebpf::run()?;
    }
    // The targets use the same dependencies as the workspace.
    let lock = folder().join("Cargo.lock");
    std::fs::copy(workspace::root().join("Cargo.lock"), &lock)
        .with_context(|| format!("write {}", lock.display()))?;
    let mut command = Command::new(cargo_fuzz);
    workspace::without_outer_cargo(&mut command).current_dir(workspace::root());
    command.env("CULVERT_BPF_OBJECT", workspace::bpf_object());
    command
        .args([
            "fuzz",
            "build",
            "--sanitizer",
            "none",
            "--target",
            &host()?,
            "--fuzz-dir",
        ])
        .arg(folder());
    command.arg("--target-dir").arg(target_dir()).args(target);
    progress::run(
        "build the fuzz targets (minutes, the first time)",
        &mut command,
    )
    .map(drop)
}

/// Fuzzes one target. It starts from the seeds, and from the inputs of earlier runs that reached
/// new code.
fn fuzz(target: &str, seconds: u32) -> Result<()> {
    let corpus = folder().join("corpus").join(target);
    let artifacts = folder().join("artifacts").join(target);
    for made in [&corpus, &artifacts] {
        std::fs::create_dir_all(made).with_context(|| format!("create {}", made.display()))?;
    }
    let mut command = program(target)?;
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(corpus).arg(folder().join("seeds").join(target));
    let Err(fault) = progress::run(&format!("fuzz {target} for {seconds} s"), &mut command) else {
        return Ok(());
    };
    let Some(input) = newest(&artifacts) else {
        return Err(fault);
    };
    bail!(
        "{fault:#}\n{target}: the input is kept in {0}; once more: `cargo xtask fuzz {target} \
         --replay {0}`",
        input.display()
    );
}

fn replay(target: &str, input: &Path) -> Result<()> {
    ensure!(input.is_file(), "{} is not a file", input.display());
    let status = program(target)?
        .arg(input)
        .status()
        .with_context(|| format!("start {target}"))?;
    ensure!(status.success(), "{target} ended with {status}");
    progress::say(&format!("{target}: nothing wrong with {}", input.display()));
    Ok(())
}

/// A compiled target with its limits.
fn program(target: &str) -> Result<Command> {
    let mut command = Command::new(target_dir().join(host()?).join("release").join(target));
    command
        .arg(format!("-timeout={TIMEOUT_S}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"));
    Ok(command)
}

fn newest(folder: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.flatten();
    Some(files.max_by_key(modified)?.path())
}

fn modified(file: &DirEntry) -> Option<SystemTime> {
    file.metadata().ok()?.modified().ok()
}

/// The compiler's own target triple, after which cargo-fuzz names a folder.
fn host() -> Result<String> {
    let mut rustc = Command::new("rustc");
    let said = workspace::output(
        workspace::without_outer_cargo(&mut rustc)
            .arg("-vV")
            .current_dir(workspace::root()),
    )?;
    let host = said
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("`rustc -vV` names no host")?;
    Ok(host.to_owned())
}

fn folder() -> PathBuf {
    workspace::root().join("fuzz")
}

fn target_dir() -> PathBuf {
    workspace::target_dir().join("fuzz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_listed_and_has_seeds() {
        let names = |folder: PathBuf| {
            let files = std::fs::read_dir(folder)
                .unwrap()
                .map(|file| file.unwrap().path());
            let mut names: Vec<_> = files
                .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(folder().join("fuzz_targets")), TARGETS);
        assert_eq!(names(folder().join("seeds")), TARGETS);
        let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
        assert!(
            TARGETS
                .iter()
                .all(|target| manifest.contains(&format!("fuzz_targets/{target}.rs")))
        );
        for target in TARGETS {
            assert!(
                std::fs::read_dir(folder().join("seeds").join(target))
                    .unwrap()
                    .next()
                    .is_some(),
                "{target}"
            );
        }
    }
}
