//! `cargo xtask kube`: compiles a release of Kubernetes, and the etcd that belongs to it, from their
//! published Go modules. Nothing is downloaded but sources.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::kubernetes::{ASSETS, DEFAULT_VERSION, ETCD, PROGRAMS, Programs, Release};
use culvert_lab::process::bound;
use culvert_lab::{interrupt, progress, workspace};

const MODULE: &str = "k8s.io/kubernetes";

/// The package of etcd's server, whose program Go names after the folder.
const ETCD_PACKAGE: &str = "go.etcd.io/etcd/server/v3";
const ETCD_PROGRAM: &str = "server";

/// The packages whose variables hold the version that a program reports.
const VERSION_PACKAGES: [&str; 2] = [
    "k8s.io/component-base/version",
    "k8s.io/client-go/pkg/version",
];

/// Which release.
#[derive(clap::Args)]
pub struct Args {
    /// The release
    #[arg(long, default_value = DEFAULT_VERSION, value_name = "VERSION")]
    version: Release,
}

/// Compiles the programs unless they are there, and prints their folder.
///
/// # Errors
/// Go is missing or too old, or the module proxy does not have the release.
pub fn run(args: &Args) -> Result<()> {
    interrupt::install()?;
    ensure_compiled(&args.version)?;
    println!("{}", args.version.folder().display());
    Ok(())
}

/// Whether Go can compile what is not there.
pub(crate) fn can_compile() -> bool {
    workspace::find_program("go").is_some()
}

/// Compiles the programs that are to be compiled, unless they are there.
///
/// # Errors
/// See [`run`].
pub(crate) fn ensure_there(programs: &Programs) -> Result<()> {
    match programs {
        Programs::Compiled(release) => ensure_compiled(release),
        Programs::Folder(_) => Ok(()),
    }
}

/// Compiles the programs of a release unless they are there.
///
/// # Errors
/// See [`run`].
pub(crate) fn ensure_compiled(release: &Release) -> Result<()> {
    if release.is_there() {
        return Ok(());
    }
    ensure!(
        can_compile(),
        "Kubernetes {release} is compiled by Go, which is not installed: install Go 1.21 or later, \
         or let {ASSETS} name a folder with the programs of a release"
    );
    let folder = release.folder();
    let unfinished = folder.with_file_name(format!("{release}.unfinished"));
    // Another program may be compiling the same: then this one waits, and finds the programs.
    let parent = folder.parent().context("a folder is in another one")?;
    create(parent)?;
    let lock = parent.join(format!("{release}.lock"));
    let lock = File::create(&lock).with_context(|| format!("create {}", lock.display()))?;
    lock.lock().context("lock the folder of Kubernetes")?;
    if release.is_there() {
        return Ok(());
    }
    remove(&folder)?;
    remove(&unfinished)?;
    // It has the cache of the compiler too, which takes gigabytes.
    let source = unfinished.join("source");
    create(&source)?;
    write_module(release, &source)?;
    compile(release, &source, &unfinished)?;
    fs::rename(unfinished.join(ETCD_PROGRAM), unfinished.join(ETCD)).context("name etcd")?;
    remove(&source)?;
    fs::rename(&unfinished, &folder)
        .with_context(|| format!("move the programs to {}", folder.display()))?;
    ensure!(release.is_there(), "Go did not make all of {PROGRAMS:?}");
    Ok(())
}

/// Writes a `go.mod` that requires the release. Its own one replaces the modules that are developed
/// in its repository by folders, which a published module does not have: here they are replaced by
/// what is published of them.
fn write_module(release: &Release, source: &Path) -> Result<()> {
    let versions = workspace::output(go(source).args(["list", "-m", "-versions", MODULE]))
        .context("ask the Go module proxy for Kubernetes")?;
    let wanted = format!("v{release}");
    ensure!(
        versions.split_whitespace().any(|version| version == wanted),
        "the Go module proxy has no Kubernetes {release}; it has {}",
        versions.trim().trim_start_matches(MODULE)
    );
    let module = format!("{MODULE}@{wanted}");
    let said = workspace::output(go(source).args(["mod", "download", "-json", &module]))
        .with_context(|| format!("download {module}"))?;
    let said: serde_json::Value = serde_json::from_str(&said).context("what Go says")?;
    let file = said["GoMod"].as_str().context("Go names no go.mod")?;
    let its = fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    let path = source.join("go.mod");
    fs::write(&path, module_text(release, &its))
        .with_context(|| format!("write {}", path.display()))
}

fn module_text(release: &Release, its: &str) -> String {
    let mut text = "module culvert.test/kubernetes\n".to_owned();
    for line in its.lines() {
        if line.starts_with("go ") || line.starts_with("godebug ") {
            text += &format!("{line}\n");
        } else if let Some((module, _)) = line.trim().split_once(" => ./staging/") {
            let version = release.staging_version();
            text += &format!("replace {module} => {module} {version}\n");
        }
    }
    text + &format!("require {MODULE} v{release}\n")
}

fn compile(release: &Release, source: &Path, into: &Path) -> Result<()> {
    let mut go = in_folder(bound(Path::new("go")), source);
    go.args(["build", "-v", "-mod=mod", "-trimpath", "-buildvcs=false"])
        .args(["-ldflags", &linker_flags(release)])
        .arg("-o")
        // A folder, as its end says.
        .arg(into.join(""))
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", source.join("cache"));
    for name in PROGRAMS {
        go.arg(if name == ETCD {
            ETCD_PACKAGE.to_owned()
        } else {
            format!("{MODULE}/cmd/{name}")
        });
    }
    progress::run(
        &format!("compile Kubernetes {release} and etcd (once, 6 minutes on 2 idle processors)"),
        &mut go,
    )
    .map(drop)
}

/// Go in the folder where it finds `go.mod`, and writes `go.sum`.
fn go(folder: &Path) -> Command {
    in_folder(Command::new("go"), folder)
}

fn in_folder(mut go: Command, folder: &Path) -> Command {
    go.current_dir(folder)
        .env("GOWORK", "off")
        .env_remove("GOFLAGS");
    go
}

/// The version as a release of Kubernetes has it, without tables of symbols.
fn linker_flags(release: &Release) -> String {
    let mut flags = "-s -w".to_owned();
    for package in VERSION_PACKAGES {
        let minor = release.minor();
        for (variable, value) in [
            ("gitVersion", format!("v{release}")),
            ("gitMajor", "1".to_owned()),
            ("gitMinor", minor.to_string()),
            ("gitTreeState", "clean".to_owned()),
        ] {
            flags += &format!(" -X {package}.{variable}={value}");
        }
    }
    flags
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_of_its_repository_are_replaced_by_what_is_published() {
        let its = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nrequire (\n\t\
                   k8s.io/api v0.0.0\n\tgo.etcd.io/etcd/api/v3 v3.6.8\n)\n\nreplace (\n\tk8s.io/api \
                   => ./staging/src/k8s.io/api\n\tk8s.io/mount-utils => \
                   ./staging/src/k8s.io/mount-utils\n)\n";
        let release = "1.36.3".parse().unwrap();
        assert_eq!(
            module_text(&release, its),
            "module culvert.test/kubernetes\ngo 1.26.0\ngodebug default=go1.26\n\
             replace k8s.io/api => k8s.io/api v0.36.3\n\
             replace k8s.io/mount-utils => k8s.io/mount-utils v0.36.3\n\
             require k8s.io/kubernetes v1.36.3\n"
        );
    }
}
