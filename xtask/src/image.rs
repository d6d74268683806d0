//! `cargo xtask image`: makes container images of the programs as OCI archives, without a
//! container engine. The archives depend only on the programs. These contain no times or paths of
//! the machine, but another source folder changes them.
//!
//! Each image has one static program. The redirector's also has this machine's `nft` with the
//! libraries that it loads.

mod archive;
mod nft;
mod programs;
mod tar;

use anyhow::{Context, Result};
use culvert_lab::progress::{self, Step};
use culvert_lab::workspace;

use crate::{build_ebpf, setup};
use archive::Image;
use programs::Contents;
use tar::Tar;

/// Names are looked up in files and by DNS, which static programs support by themselves.
const NAME_SERVICES: &str = "hosts: files dns\n";

/// What to build.
#[derive(clap::Args)]
pub struct Args {
    /// Profile to compile with: `dev` is done sooner, for tests
    #[arg(long, default_value = "release")]
    pub profile: String,
}

/// Builds the programs and writes `target/images/<name>`, and `target/images/<name>-<arch>.tar` of
/// those that have an image.
///
/// # Errors
/// A program cannot be compiled or is not static, or `nft` is not installed.
pub fn run(args: &Args) -> Result<()> {
    if !workspace::bpf_object().is_file() {
        setup::ensure()?;
    }
    build_ebpf::run()?;
    let programs = programs::build(&args.profile)?;
    let step = Step::start("write the images");
    let folder = workspace::images_dir();
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    for program in programs {
        let bare = workspace::image_program(program.name);
        std::fs::copy(&program.path, &bare).with_context(|| format!("write {}", bare.display()))?;
        let Some(contents) = program.image else {
            continue;
        };
        let image = image(&program, contents)?;
        let path = workspace::image_archive(program.name);
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
        workspace::image_architecture()
    ));
    Ok(())
}

fn image(program: &programs::Program, contents: Contents) -> Result<Image> {
    let mut layer = Tar::default();
    let inside = format!("usr/bin/{}", program.name);
    layer.file(&inside, 0o755, std::fs::read(&program.path)?);
    layer.file("etc/nsswitch.conf", 0o644, NAME_SERVICES.into());
    if matches!(contents, Contents::WithNft) {
        for (path, bytes) in nft::with_libraries()? {
            layer.file(&path, 0o755, bytes);
        }
    }
    Ok(Image {
        name: program.name,
        architecture: workspace::image_architecture(),
        entrypoint: format!("/{inside}"),
        layer: layer.finish(),
    })
}
