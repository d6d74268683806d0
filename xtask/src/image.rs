//! `cargo xtask image`: makes container images of the programs as OCI archives, without a
//! container engine. The archives depend on the programs, on the licences of their crates, and on
//! `nft` and the licences of Debian's packages on this machine. They contain no times or paths of the
//! machine, but another source folder changes the programs.
//!
//! Each image has one static program for each processor, and the licences of its parts. The
//! redirector's also has `nft` with the libraries that it loads. Images of profile `dev` have the
//! programs of the tests, with the libraries that they load.

mod archive;
mod libraries;
mod nft;
mod programs;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use culvert_lab::progress::{self, Step};
use culvert_lab::workspace;

use crate::licences;
use crate::processor::Processor;
use crate::setup::Use;
use crate::tar::Tar;
use crate::{build_ebpf, setup};
use archive::{Image, Platform};
use programs::{Contents, Linked, Program};

/// Names are looked up in files and by DNS, which static programs support by themselves.
const NAME_SERVICES: &str = "hosts: files dns\n";

/// What to build.
#[derive(clap::Args)]
pub struct Args {
    /// Profile to compile with. `dev` takes the programs of the tests, for this machine
    #[arg(long, default_value = "release", value_parser = ["release", programs::DEV])]
    pub profile: String,
    /// Processor to make them for. Can be given again: an image is then for all. Default: that of
    /// this machine
    #[arg(long, value_name = "NAME", value_parser = Processor::parser_of_64_bit())]
    pub processor: Vec<Processor>,
}

/// Builds the programs and writes `target/images/<name>.tar` of those that have an image, and
/// `target/images/<name>` of those for this machine.
///
/// # Errors
/// A program cannot be compiled or is not linked as it should be, or `nft` is not installed.
pub fn run(args: &Args) -> Result<()> {
    if !workspace::bpf_object().is_file() {
        setup::ensure(&[Use::Ebpf, Use::Labs])?;
    }
    build_ebpf::run()?;
    let processors = Processor::named_or_here(&args.processor)?;
    let mut built = Vec::new();
    for processor in &processors {
        built.extend(programs::build(&args.profile, *processor)?);
    }
    let step = Step::start("write the images");
    let folder = workspace::images_dir();
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let here = Processor::here()?;
    for program in &built {
        if program.processor == here {
            let bare = workspace::image_program(program.name);
            std::fs::copy(&program.path, &bare)
                .with_context(|| format!("write {}", bare.display()))?;
        }
    }
    for (name, contents) in programs::with_image() {
        let mut platforms = Vec::new();
        for program in &built {
            if program.name == name {
                platforms.push(platform(program, contents, &built)?);
            }
        }
        write(&Image { name, platforms })?;
    }
    step.done();
    Ok(())
}

/// Writes the archive of an image, and prints its reference.
fn write(image: &Image) -> Result<()> {
    let path = workspace::image_archive(image.name);
    let (digest, bytes) = image.archive()?;
    std::fs::write(&path, &bytes).with_context(|| format!("write {}", path.display()))?;
    progress::say(&format!(
        "    {}@{digest} {} ({} MiB)",
        image.reference(),
        path.display(),
        bytes.len() >> 20
    ));
    Ok(())
}

/// Makes the images for those of some processors that have images, and returns their archives.
///
/// # Errors
/// See [`run`].
pub(crate) fn release(processors: &[Processor]) -> Result<Vec<PathBuf>> {
    let mut processor = processors.to_vec();
    processor.retain(|processor| processor.is_64_bit());
    ensure!(
        !processor.is_empty(),
        "there are images for x86_64 and aarch64 only: name one of them too"
    );
    run(&Args {
        profile: "release".to_owned(),
        processor,
    })?;
    let mut archives = Vec::new();
    for (name, _) in programs::with_image() {
        archives.push(workspace::image_archive(name));
    }
    Ok(archives)
}

/// A program, and the licences of its parts.
fn add_program(layer: &mut Tar, program: &Program) -> Result<()> {
    layer.file(
        &format!("usr/bin/{}", program.name),
        0o755,
        std::fs::read(&program.path)?,
    );
    layer.file(
        &format!("usr/share/doc/{}/copyright", program.name),
        0o644,
        licences::of_crates(program.name, program.processor)?.into(),
    );
    Ok(())
}

/// The `culvert` for a processor.
fn for_people(built: &[Program], processor: Processor) -> Result<&Program> {
    let mut found = built.iter();
    let found = found.find(|other| other.name == "culvert" && other.processor == processor);
    found.context("culvert is not compiled")
}

fn platform(program: &Program, contents: Contents, built: &[Program]) -> Result<Platform> {
    let mut layer = Tar::default();
    layer.file("etc/nsswitch.conf", 0o644, NAME_SERVICES.into());
    add_program(&mut layer, program)?;
    let mut loaded = BTreeMap::new();
    let mut licences = BTreeMap::new();
    match program.linked {
        Linked::Musl => {}
        Linked::Glibc => licences = nft::licences_of_glibc(program.processor)?,
        Linked::Libraries => {
            loaded = libraries::of(&program.path, program.processor)?;
            licences = nft::licences_of_libraries(program.processor)?;
        }
    }
    match contents {
        Contents::Program => {}
        Contents::WithCulvert => {
            let culvert = for_people(built, program.processor)?;
            add_program(&mut layer, culvert)?;
            if let Linked::Libraries = culvert.linked {
                loaded.extend(libraries::of(&culvert.path, culvert.processor)?);
            }
        }
        Contents::WithNft => {
            loaded.extend(nft::with_libraries(program.processor)?);
            licences.extend(nft::licences(program.processor)?);
        }
    }
    for (path, bytes) in loaded {
        layer.file(&path, 0o755, bytes);
    }
    for (path, bytes) in licences {
        layer.file(&path, 0o644, bytes);
    }
    Ok(Platform {
        processor: program.processor,
        layer: layer.finish()?,
    })
}
