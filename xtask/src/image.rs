//! `cargo xtask image`: container images of the three programs as OCI archives, made without a
//! container engine. The archives follow from the programs alone; these are compiled without times
//! or paths of the machine, though another folder changes them.
//!
//! Each has one static program. The redirector's also has `nft` with the libraries that it loads,
//! which are this machine's.

mod archive;
mod nft;
mod programs;
mod tar;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::progress::{self, Step};
use crate::{build_ebpf, setup, workspace};
use archive::Image;
use tar::Tar;

/// Names are looked up in files and by DNS, which static programs know by themselves.
const NAME_SERVICES: &str = "hosts: files dns\n";

/// What to build.
#[derive(clap::Args)]
pub struct Args {
    /// Profile to compile with: `dev` is done sooner, for tests
    #[arg(long, default_value = "release")]
    pub profile: String,
}

/// Builds the programs and writes `target/images/<name>-<arch>.tar`.
///
/// # Errors
/// If a program cannot be compiled or is not static, or `nft` is not installed.
pub fn run(args: &Args) -> Result<()> {
    if !build_ebpf::object().is_file() {
        setup::ensure()?;
    }
    build_ebpf::run()?;
    let programs = programs::build(&args.profile)?;
    let step = Step::start("write the images");
    for program in programs {
        let image = image(&program)?;
        let path = archive_of(program.name);
        let folder = path.parent().context("the archive's path has no folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let bytes = image.archive();
        std::fs::write(&path, &bytes).with_context(|| format!("write {}", path.display()))?;
        progress::say(&format!(
            "    {} {} ({} MiB)",
            image.reference(),
            path.display(),
            bytes.len() >> 20
        ));
    }
    step.done();
    progress::say(&format!(
        "    only for {}: run this on a machine of another kind for its images",
        architecture()
    ));
    Ok(())
}

/// Where an image's archive is.
pub fn archive_of(name: &str) -> PathBuf {
    workspace::target_dir()
        .join("images")
        .join(format!("{name}-{}.tar", architecture()))
}

/// This machine's processor as container images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn image(program: &programs::Program) -> Result<Image> {
    let mut layer = Tar::default();
    let inside = format!("usr/bin/{}", program.name);
    layer.file(&inside, 0o755, std::fs::read(&program.path)?);
    layer.file("etc/nsswitch.conf", 0o644, NAME_SERVICES.into());
    if program.needs_nft {
        for (path, bytes) in nft::with_libraries()? {
            layer.file(&path, 0o755, bytes);
        }
    }
    Ok(Image {
        name: program.name,
        architecture: architecture(),
        entrypoint: format!("/{inside}"),
        layer: layer.finish(),
    })
}
