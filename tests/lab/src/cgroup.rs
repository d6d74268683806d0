//! Control groups. Connect hooks are attached to those of version 2, and all processes of a host are
//! found and ended by them. Containers may be in those of version 1 too.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait;

/// Time for the kernel to end processes that it was told to kill.
const KILL_TIME: Duration = Duration::from_secs(10);

/// Where cgroup2 is mounted: `/sys/fs/cgroup`, or a folder below it on hosts that also use version
/// 1.
///
/// # Errors
/// It is not mounted.
pub fn mount_point() -> Result<PathBuf> {
    mounts(&["cgroup2"])?
        .into_iter()
        .next()
        .context("cgroup2 is not mounted: `mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified`")
}

/// Where the hierarchies of both versions are mounted.
///
/// # Errors
/// The mounts cannot be read.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    mounts(&["cgroup", "cgroup2"])
}

/// The mount points of file systems of these types.
fn mounts(types: &[&str]) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/mounts").context("read /proc/mounts")?;
    let mut points = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        if let (Some(point), Some(kind)) = (fields.next(), fields.next())
            && types.contains(&kind)
        {
            points.push(point.into());
        }
    }
    Ok(points)
}

/// Ends every process in a cgroup and below it, and removes these cgroups. A missing cgroup is no
/// error.
///
/// # Errors
/// A process does not end.
pub fn remove(cgroup: &Path) -> Result<()> {
    if !cgroup.exists() {
        return Ok(());
    }
    let what = format!("end all processes in {}", cgroup.display());
    // Not with `wait::until`, which fails after an interruption: cleaning up must continue.
    let rounds = KILL_TIME.as_millis() / 50;
    for _ in 0..rounds {
        kill_all(cgroup)?;
        // A process that is no longer listed may have threads that are still ending.
        match remove_folders(cgroup) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => wait::pause(),
            removed => {
                return removed.with_context(|| format!("remove cgroup {}", cgroup.display()));
            }
        }
    }
    bail!("{what}: still there: {:?}", processes(cgroup));
}

fn kill_all(cgroup: &Path) -> Result<()> {
    // Since Linux 5.14 one write ends the whole tree, without a race against new children.
    if fs::write(cgroup.join("cgroup.kill"), "1").is_ok() {
        return Ok(());
    }
    for pid in processes(cgroup) {
        let pid = nix::unistd::Pid::from_raw(pid);
        match nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL) {
            Ok(()) | Err(nix::Error::ESRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("kill {pid}")),
        }
    }
    Ok(())
}

/// The processes in a cgroup and below it.
fn processes(cgroup: &Path) -> Vec<i32> {
    let own = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).collect();
    for child in below(cgroup) {
        all.extend(processes(&child));
    }
    all
}

fn below(cgroup: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(cgroup) else {
        return Vec::new();
    };
    let mut folders = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders
}

fn remove_folders(cgroup: &Path) -> io::Result<()> {
    for child in below(cgroup) {
        remove_folders(&child)?;
    }
    match fs::remove_dir(cgroup) {
        // The run that made it may remove it at the same time.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
