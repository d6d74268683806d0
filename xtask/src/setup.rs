//! `cargo xtask setup`: installs what building and testing need, or says exactly what to install. A
//! second run changes nothing and takes no time. Programs that must not run as daemons on a
//! developer's machine are unpacked under `target/`.

pub(crate) mod apt;
mod compiled;
mod go_folder;
mod kustomize;
mod linker;
mod unpacked;
pub(crate) mod venv;

use anyhow::{Context, Result, bail};
use culvert_lab::compiled::Compiled;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{progress, workspace};

use crate::build_ebpf;

pub use go_folder::{COREDNS, GO_TRANSPORT, GoFolder, MONITORING_CHECK};
pub use kustomize::program as kustomize;
pub use venv::python_with_grpc;

/// What to install.
#[derive(clap::Args)]
pub struct Args {
    /// Compile too what only `cargo xtask e2e` needs
    #[arg(long)]
    e2e: bool,
}

/// Programs that tests and the demo run, each with its Debian package.
const PROGRAMS: [(&str, &str); 18] = [
    ("nft", "nftables"),
    ("bpftool", "bpftool"),
    ("ip", "iproute2"),
    ("conntrack", "conntrack"),
    ("curl", "curl"),
    ("openssl", "openssl"),
    ("cc", "gcc"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("sysctl", "procps"),
    ("mount", "mount"),
    ("hostname", "hostname"),
    ("python3", "python3"),
    ("dbus-daemon", "dbus-daemon"),
    ("ssh", "openssh-client"),
    ("rpmbuild", "rpm"),
    ("systemd-nspawn", "systemd-container"),
];

/// Packages of Debian 12 that can compile for eBPF, without rustup's nightly.
const EBPF_COMPILER: [&str; 3] = ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"];

/// The LLVM of that compiler, against which bpf-linker is compiled.
const LINKER_NEEDS: [&str; 6] = [
    "llvm-22-dev",
    "libpolly-22-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "g++",
    "libxml2-dev",
];

/// What setup could not install itself.
#[derive(Default)]
struct Missing(Vec<String>);

/// Whether everything is installed. It is fast, because it only looks.
pub fn is_complete() -> bool {
    has_programs()
        && kustomize().is_some()
        && Compiled::Helm.is_there()
        && GoFolder::ALL
            .iter()
            .all(|folder| folder.program().is_some())
}

/// Whether all is there that needs no Go.
fn has_programs() -> bool {
    packages_to_install().is_empty()
        && build_ebpf::Toolchain::find().is_some()
        && build_ebpf::linker().is_some()
        && Unpacked::ALL.iter().all(|program| program.is_there())
        && python_with_grpc().is_some()
}

/// Installs what is missing for everything but tests, which also need programs that Go compiles.
///
/// # Errors
/// See [`run`].
pub fn ensure() -> Result<()> {
    if has_programs() {
        return Ok(());
    }
    let mut missing = Missing::default();
    install_programs(&mut missing);
    missing.into_result()
}

/// Runs setup if something is missing.
///
/// # Errors
/// See [`run`].
pub fn ensure_for_tests() -> Result<()> {
    if is_complete() { Ok(()) } else { install() }
}

/// Installs everything that is missing.
///
/// # Errors
/// Something is missing that it may not or cannot install. The text lists what to do.
pub fn run(args: &Args) -> Result<()> {
    install()?;
    if args.e2e {
        ensure_for_e2e()?;
    }
    progress::say("setup: everything is there");
    Ok(())
}

fn install() -> Result<()> {
    let mut missing = Missing::default();
    install_programs(&mut missing);
    missing.note(kustomize::install());
    missing.note(compiled::install(Compiled::Helm));
    for folder in GoFolder::ALL {
        missing.note(folder.install());
    }
    missing.into_result()
}

fn install_programs(missing: &mut Missing) {
    missing.note(system_packages());
    missing.note(linker::install());
    for program in Unpacked::ALL {
        missing.note(unpacked::install(program));
    }
    missing.note(venv::GRPC.install().map(drop));
}

/// Unpacks what only a cluster needs, unless it exists.
///
/// # Errors
/// Something is missing that cannot be unpacked. The text lists what to do.
pub fn ensure_for_cluster() -> Result<()> {
    let mut missing = Missing::default();
    for program in Unpacked::FOR_CLUSTER {
        missing.note(unpacked::install(program));
    }
    missing.into_result()
}

/// Compiles what only the end-to-end run needs, unless it exists.
///
/// # Errors
/// Something is missing that cannot be compiled. The text lists what to do.
pub fn ensure_for_e2e() -> Result<()> {
    let mut missing = Missing::default();
    for program in Compiled::FOR_E2E {
        missing.note(compiled::install(program));
    }
    missing.into_result()
}

impl Missing {
    fn note(&mut self, step: Result<()>) {
        if let Err(error) = step {
            self.0.push(format!("{error:#}"));
        }
    }

    fn into_result(self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        bail!(
            "setup could not do everything:\n  - {}",
            self.0.join("\n  - ")
        );
    }
}

fn packages_to_install() -> Vec<&'static str> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| workspace::find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if build_ebpf::Toolchain::find().is_none() {
        packages.extend(EBPF_COMPILER);
    }
    if build_ebpf::linker().is_none() {
        packages.extend(LINKER_NEEDS);
    }
    if python_with_grpc().is_none() {
        packages.push("python3-venv");
    }
    packages.dedup();
    packages
}

fn system_packages() -> Result<()> {
    let packages = packages_to_install();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !apt::is_there() {
        let programs: Vec<_> = PROGRAMS
            .iter()
            .map(|(program, _)| *program)
            .filter(|program| workspace::find_program(program).is_none())
            .collect();
        bail!(
            "this is not Debian or Ubuntu: install the programs [{}], an eBPF compiler (`rustup \
             toolchain install nightly --component rust-src`) \
             and its linker (`cargo install bpf-linker --version 0.13.0`); Debian's names for all \
             of it: {list}",
            programs.join(" ")
        );
    }
    apt::install(&packages).context(
        "if a package of that list does not exist on this release: the compiler for eBPF is in \
         Debian 12 with security updates; elsewhere use `rustup toolchain install nightly \
         --component rust-src` and `cargo install bpf-linker --version 0.13.0`",
    )
}
