//! `cargo xtask dist`: what is given to those who do not build Culvert. Programs that run on any
//! distribution with glibc 2.17, a `.tar.gz`, packages for dpkg and rpm, lists of their parts, and
//! `SHA256SUMS`, which the operator's own SSH key can sign. The files depend only on the commit and
//! the tools.

mod archive;
mod bundle;
mod checksums;
mod compile;
pub mod deb;
pub mod package;
pub mod rpm;
mod sbom;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use culvert_lab::progress::{self, Step};
use culvert_lab::workspace;

use crate::build::Build;
use crate::processor::Processor;
use crate::setup::Use;
use crate::{build_ebpf, image, licences, setup};

use deb::Compression;
use package::{PACKAGES, Package, Parts};

/// What to make.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for the files; made if missing. Default: target/packages
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Processor to make them for. Can be given again. Default: that of this machine
    #[arg(long, value_name = "NAME")]
    processor: Vec<Processor>,
    /// Make this package alone, and no archive. Can be given again. Default: all
    #[arg(long, value_name = "NAME", value_parser = names())]
    package: Vec<String>,
    /// Also make the images, and one archive of everything for a site without internet access
    #[arg(long)]
    bundle: bool,
    /// SSH key that signs SHA256SUMS: a private key, or a public one whose private key ssh-agent has
    #[arg(long, value_name = "KEY")]
    sign: Option<PathBuf>,
}

/// Compiles the programs and writes the files.
///
/// # Errors
/// A tool is missing or fails. The work tree is not one of git.
pub fn run(args: &Args) -> Result<()> {
    setup::ensure(&[Use::Packages])?;
    if args.bundle || has_kernel_programs(&args.package) {
        if !workspace::bpf_object().is_file() {
            setup::ensure(&[Use::Ebpf])?;
        }
        build_ebpf::run()?;
    }
    let out = match &args.out {
        Some(out) => std::path::absolute(out)?,
        None => workspace::target_dir().join("packages"),
    };
    let build = Build::of_work_tree()?;
    std::fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
    let processors = Processor::named_or_here(&args.processor)?;
    let mut files = Vec::new();
    for processor in &processors {
        files.extend(make(&build, *processor, &args.package, &out)?);
    }
    if args.bundle {
        files.push(bundle::write(
            &files,
            &image::release(&processors)?,
            &build,
            args.sign.as_deref(),
            &out,
        )?);
    }
    checksums::write(&files, &build.package_version(), args.sign.as_deref(), &out)?;
    for file in &files {
        progress::say(&format!("    {}", describe(file)?));
    }
    Ok(())
}

/// Whether one of these packages, or of all packages if none is named, has the kernel programs.
fn has_kernel_programs(names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| name == "culvert-redirector")
}

fn names() -> PossibleValuesParser {
    PACKAGES.map(|package| package.name).into()
}

/// Makes the files for one processor.
fn make(build: &Build, processor: Processor, names: &[String], out: &Path) -> Result<Vec<PathBuf>> {
    let wanted = packages_for(processor, names);
    ensure!(
        !wanted.is_empty(),
        "for {} there are only the packages of edge nodes",
        processor.name()
    );
    let programs = compile::programs(build, processor, &wanted)?;
    let version = build.package_version();
    let step = Step::start(format!(
        "write the packages of {version} for {}",
        processor.name()
    ));
    let mut parts = Vec::new();
    for package in wanted {
        let licences = licences::of_crates(package.name, processor)?;
        let program = &programs[package.name];
        parts.push(Parts::collect(package, processor, program, licences)?);
    }
    let mut files = Vec::new();
    if names.is_empty() {
        files.push(archive::write(&parts, processor, build, out)?);
    }
    for parts in &parts {
        files.push(deb::write(parts, build, Compression::Xz, out)?);
        files.push(rpm::write(parts, build, Compression::Xz, out)?);
        files.push(sbom::write(parts, build, out)?);
    }
    step.done();
    Ok(files)
}

/// The packages of these names, or all, that are made for a processor.
fn packages_for(processor: Processor, names: &[String]) -> Vec<&'static Package> {
    let mut packages = Vec::new();
    for package in &PACKAGES {
        let is_named = names.is_empty() || names.iter().any(|name| name == package.name);
        if is_named && package.is_for(processor) {
            packages.push(package);
        }
    }
    packages
}

/// The path of a file, and its size.
fn describe(file: &Path) -> Result<String> {
    let bytes = file.metadata()?.len();
    Ok(format!("{} ({} KiB)", file.display(), bytes >> 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_redirectors_package_needs_the_compiler_of_the_kernel_programs() {
        assert!(has_kernel_programs(&[]), "all packages");
        for package in &PACKAGES {
            let needs = has_kernel_programs(&[package.name.to_owned()]);
            assert_eq!(
                needs,
                package.name == "culvert-redirector",
                "{}",
                package.name
            );
        }
    }
}
