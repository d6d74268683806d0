//! Programs of Go whose source is a folder of this repository: its `go.mod` names the versions of
//! what else is compiled.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, workspace};

/// A program in Go.
#[derive(Clone, Copy, Debug)]
pub struct GoFolder {
    name: &'static str,
    source: &'static str,
    /// What needs it.
    used_by: &'static str,
}

/// CoreDNS with only the plugins in docs/dns.md. With all plugins, which need the SDKs of several
/// clouds, the compilation takes many times as long. The version is the oldest that docs/dns.md
/// allows, which is the first with `failover`.
pub const COREDNS: GoFolder = GoFolder {
    name: "coredns",
    source: "xtask/src/setup/coredns",
    used_by: "tests of names in pods",
};

/// client-go's informers in a program of their own. The version of client-go is one that streams its
/// lists by default.
const INFORMERS: GoFolder = GoFolder {
    name: "informers",
    source: "hub/tests/client-go",
    used_by: "tests of the hub",
};

/// Checks the files that it is given by the types of Grafana and of the Prometheus Operator.
pub const MONITORING_CHECK: GoFolder = GoFolder {
    name: "monitoring",
    source: "xtask/src/setup/monitoring",
    used_by: "tests of deploy/monitoring",
};

/// Go's HTTP client, which keeps connections by proxy.
pub const GO_TRANSPORT: GoFolder = GoFolder {
    name: "transport",
    source: "xtask/src/setup/transport",
    used_by: "tests of name-routed ports",
};

impl GoFolder {
    pub(super) const ALL: [Self; 4] = [COREDNS, INFORMERS, MONITORING_CHECK, GO_TRANSPORT];

    /// The program, if it is compiled.
    pub fn program(self) -> Option<PathBuf> {
        let program = self.path();
        program.is_file().then_some(program)
    }

    /// Compiles it into `target/tools` unless it is there and newer than its source.
    pub(super) fn install(self) -> Result<()> {
        let source = workspace::root().join(self.source);
        let read = || format!("read {}", source.display());
        if self.is_newer_than(&source).with_context(read)? {
            return Ok(());
        }
        let Self {
            name,
            source,
            used_by,
        } = self;
        ensure!(
            workspace::find_program("go").is_some(),
            "{used_by} need {name}, which Go compiles, and Go is not installed: with it, `go build` \
             in {source}"
        );
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-buildvcs=false", "-o"])
            .arg(self.path())
            .arg(".")
            .current_dir(workspace::root().join(source))
            .env("CGO_ENABLED", "0")
            .env_remove("GOFLAGS");
        progress::run(&format!("compile {name} in {source}"), &mut go)?;
        // Go leaves a program as it is if the change makes no difference to it.
        let program = File::options().append(true).open(self.path());
        let touched = program.and_then(|program| program.set_modified(SystemTime::now()));
        touched.with_context(|| format!("touch {}", self.path().display()))
    }

    fn is_newer_than(self, source: &Path) -> io::Result<bool> {
        let Some(program) = self.program() else {
            return Ok(false);
        };
        let compiled = program.metadata()?.modified()?;
        for file in source.read_dir()? {
            if file?.metadata()?.modified()? > compiled {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn path(self) -> PathBuf {
        workspace::tools_dir().join("bin").join(self.name)
    }
}
