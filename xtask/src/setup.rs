//! `cargo xtask setup`: installs what building and testing need, or says exactly what to install. A
//! second run changes nothing and takes no time. Programs that must not run as daemons on a
//! developer's machine are unpacked under `target/`.

pub(crate) mod apt;
mod go;
mod linker;
mod unpacked;
pub(crate) mod venv;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::go_program::GoProgram;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{progress, workspace};

use crate::build_ebpf;

pub use venv::python_with_grpc;

/// What to install.
#[derive(clap::Args)]
pub struct Args {
    /// Compile too what only `cargo xtask e2e` needs
    #[arg(long)]
    e2e: bool,
}

/// What needs something that is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Compiling the kernel programs.
    Ebpf,
    /// Labs with Culvert's programs: the demo, benches and tests.
    Labs,
    /// Making packages.
    Packages,
    Tests,
}

impl Use {
    const ALL: [Self; 4] = [Self::Ebpf, Self::Labs, Self::Packages, Self::Tests];
}

/// Programs, each with its Debian package and its use.
const PROGRAMS: [(&str, &str, Use); 22] = [
    ("nft", "nftables", Use::Labs),
    ("bpftool", "bpftool", Use::Labs),
    ("ip", "iproute2", Use::Labs),
    ("curl", "curl", Use::Labs),
    ("openssl", "openssl", Use::Labs),
    ("cc", "gcc", Use::Labs),
    ("nsenter", "util-linux", Use::Labs),
    ("unshare", "util-linux", Use::Labs),
    ("setpriv", "util-linux", Use::Labs),
    ("sysctl", "procps", Use::Labs),
    ("mount", "mount", Use::Labs),
    ("hostname", "hostname", Use::Labs),
    ("python3", "python3", Use::Packages),
    ("rpmbuild", "rpm", Use::Packages),
    ("chromium", "chromium", Use::Tests),
    ("conntrack", "conntrack", Use::Tests),
    ("dbus-daemon", "dbus-daemon", Use::Tests),
    ("fish", "fish", Use::Tests),
    ("iptables-legacy", "iptables", Use::Tests),
    ("ssh", "openssh-client", Use::Tests),
    ("systemd-nspawn", "systemd-container", Use::Tests),
    ("zsh", "zsh", Use::Tests),
];

/// Programs that are unpacked, with their use.
const UNPACKED: [(Unpacked, Use); 10] = [
    (Unpacked::Prometheus, Use::Labs),
    (Unpacked::NodeExporter, Use::Labs),
    (Unpacked::SystemdResolved, Use::Tests),
    (Unpacked::SshServer, Use::Tests),
    (Unpacked::Nginx, Use::Tests),
    (Unpacked::Ufw, Use::Tests),
    (Unpacked::Firewalld, Use::Tests),
    (Unpacked::Slirp4netns, Use::Tests),
    (Unpacked::Passt, Use::Tests),
    (Unpacked::CniPlugins, Use::Tests),
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
    is_there(&Use::ALL) && GoProgram::FOR_TESTS.into_iter().all(GoProgram::is_current)
}

/// Whether all is there for these uses that needs no Go.
fn is_there(uses: &[Use]) -> bool {
    packages_to_install(uses).is_empty()
        && (!uses.contains(&Use::Ebpf) || can_compile_for_ebpf())
        && unpacked_for(uses).into_iter().all(Unpacked::is_there)
        && (!uses.contains(&Use::Tests) || python_with_grpc().is_some())
}

fn can_compile_for_ebpf() -> bool {
    build_ebpf::Toolchain::find().is_some() && build_ebpf::linker().is_some()
}

fn unpacked_for(uses: &[Use]) -> Vec<Unpacked> {
    let mut programs = Vec::new();
    for (program, its_use) in UNPACKED {
        if uses.contains(&its_use) {
            programs.push(program);
        }
    }
    programs
}

/// Installs what is missing for these uses. Tests also need programs that Go compiles:
/// [`ensure_for_tests`].
///
/// # Errors
/// See [`run`].
pub(crate) fn ensure(uses: &[Use]) -> Result<()> {
    if is_there(uses) {
        return Ok(());
    }
    let mut missing = Missing::default();
    install_programs(uses, &mut missing);
    missing.into_result()
}

/// What is missing for these uses, and what brings it.
pub(crate) fn lacks(uses: &[Use]) -> Option<String> {
    let mut names = Vec::new();
    for (program, _) in missing_programs(uses) {
        names.push(program.to_owned());
    }
    if uses.contains(&Use::Ebpf) && !can_compile_for_ebpf() {
        names.push("a compiler for eBPF".to_owned());
    }
    for program in unpacked_for(uses) {
        if !program.is_there() {
            names.push(program.packages()[0].to_owned());
        }
    }
    if uses.contains(&Use::Tests) && python_with_grpc().is_none() {
        names.push("Python with grpcio".to_owned());
    }
    if names.is_empty() {
        return None;
    }
    let list = names.join(", ");
    Some(format!("`cargo xtask setup` installs or names {list}"))
}

/// What is missing of the programs in Go that tests need, and what brings it.
pub(crate) fn lacks_go_programs() -> Option<String> {
    let mut names = Vec::new();
    for program in GoProgram::FOR_TESTS {
        if program.find().is_none() {
            names.push(program.name());
        }
    }
    if names.is_empty() {
        return None;
    }
    let list = names.join(", ");
    Some(format!(
        "install Go 1.21 or later, with which `cargo xtask setup` compiles {list}"
    ))
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
    install_programs(&Use::ALL, &mut missing);
    missing.record(go::install(&GoProgram::FOR_TESTS));
    missing.into_result()
}

fn install_programs(uses: &[Use], missing: &mut Missing) {
    missing.record(system_packages(uses));
    if uses.contains(&Use::Ebpf) {
        missing.record(linker::install());
    }
    for program in unpacked_for(uses) {
        missing.record(unpacked::install(program));
    }
    if uses.contains(&Use::Tests) {
        missing.record(venv::GRPC.install().map(drop));
    }
}

/// Unpacks what only a cluster needs, unless it exists.
///
/// # Errors
/// Something is missing that cannot be unpacked. The text lists what to do.
pub fn ensure_for_cluster() -> Result<()> {
    let mut missing = Missing::default();
    for program in Unpacked::FOR_CLUSTER {
        missing.record(unpacked::install(program));
    }
    missing.into_result()
}

/// Compiles what only the end-to-end run needs, unless it exists.
///
/// # Errors
/// Go is missing, or cannot compile it.
pub fn ensure_for_e2e() -> Result<()> {
    go::install(&GoProgram::FOR_E2E)
}

impl Missing {
    /// Adds the reason of a step that failed.
    fn record(&mut self, step: Result<()>) {
        if let Err(error) = step {
            self.0.push(format!("{error:#}"));
        }
    }

    fn into_result(self) -> Result<()> {
        match self.0.as_slice() {
            [] => Ok(()),
            [reason] => bail!("setup could not do everything: {reason}"),
            reasons => bail!(
                "setup could not do everything:\n  - {}",
                reasons.join("\n  - ")
            ),
        }
    }
}

/// The programs for these uses that are not there, with their packages.
fn missing_programs(uses: &[Use]) -> Vec<(&'static str, &'static str)> {
    let mut missing = Vec::new();
    for (program, package, its_use) in PROGRAMS {
        if uses.contains(&its_use) && workspace::find_program(program).is_none() {
            missing.push((program, package));
        }
    }
    missing
}

fn packages_to_install(uses: &[Use]) -> Vec<&'static str> {
    let programs = missing_programs(uses).into_iter();
    let mut packages: Vec<&str> = programs.map(|(_, package)| package).collect();
    if uses.contains(&Use::Ebpf) && build_ebpf::Toolchain::find().is_none() {
        packages.extend(EBPF_COMPILER);
    }
    if uses.contains(&Use::Ebpf) && build_ebpf::linker().is_none() {
        packages.extend(LINKER_NEEDS);
    }
    if uses.contains(&Use::Packages) && !venv::can_be_made() {
        packages.push("python3-venv");
    }
    packages.dedup();
    packages
}

/// What is missing besides programs, as one installs it without Debian's packages. bpf-linker is not
/// a package: [`linker::install`] makes it, or says why not.
fn missing_elsewhere(uses: &[Use]) -> Vec<&'static str> {
    let mut missing = Vec::new();
    if uses.contains(&Use::Ebpf) && build_ebpf::Toolchain::find().is_none() {
        missing
            .push("a compiler for eBPF (`rustup toolchain install nightly --component rust-src`)");
    }
    if uses.contains(&Use::Packages) && !venv::can_be_made() {
        missing.push("venv and ensurepip of Python");
    }
    missing
}

/// Programs, each with its package where that has another name, and what else is missing.
fn list_elsewhere(programs: &[(&str, &str)], others: &[&str]) -> String {
    let mut list = Vec::new();
    for (program, package) in programs {
        list.push(if program == package {
            (*program).to_owned()
        } else {
            format!("{program} (Debian's package {package})")
        });
    }
    for other in others {
        list.push((*other).to_owned());
    }
    list.join(", ")
}

fn system_packages(uses: &[Use]) -> Result<()> {
    let packages = packages_to_install(uses);
    if packages.is_empty() {
        return Ok(());
    }
    if !apt::is_there() {
        let list = list_elsewhere(&missing_programs(uses), &missing_elsewhere(uses));
        ensure!(
            list.is_empty(),
            "this is not Debian or Ubuntu: install {list}"
        );
        return Ok(());
    }
    apt::install(&packages).context(
        "if a package of that list does not exist on this release: the compiler for eBPF is in \
         Debian 12 with security updates; elsewhere use `rustup toolchain install nightly \
         --component rust-src` and `cargo install bpf-linker --version 0.13.0`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elsewhere_only_what_is_missing_is_named_programs_with_another_package_by_both_names() {
        let programs = [("nft", "nftables"), ("curl", "curl")];
        assert_eq!(
            list_elsewhere(&programs, &[]),
            "nft (Debian's package nftables), curl"
        );
        assert_eq!(list_elsewhere(&[], &["a compiler"]), "a compiler");
    }
}
