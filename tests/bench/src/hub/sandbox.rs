//! Where the bench runs: a network namespace of its own, whose packets may be dropped, and a disk
//! of its own, whose writes and flushes are counted. Both end with this process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

/// The address by which everything that is measured reaches the API server, and which is cut. It
/// is the first one for services, so the API server's own certificate has it.
pub(super) const CUT_ADDRESS: &str = "10.96.0.1";
/// Size of the disk.
const DISK: &str = "1G";
/// A sector, as the kernel counts them.
const SECTOR: u64 = 512;

/// The sandbox, made for this thread and the programs that it starts.
pub(super) struct Sandbox {
    /// Where the disk is mounted.
    disk: PathBuf,
    /// The kernel's counters of the disk.
    counters: PathBuf,
}

/// What a disk has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskUse {
    pub(super) bytes: u64,
    pub(super) flushes: u64,
}

impl Sandbox {
    /// Leaves the machine's network and its mounts.
    pub(super) fn enter() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .context("make a network namespace")?;
        let nothing = None::<&str>;
        mount(
            nothing,
            "/",
            nothing,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            nothing,
        )
        .context("make the mounts private")?;
        workspace::output(Command::new("ip").args(["link", "set", "lo", "up"]))?;
        let address = format!("{CUT_ADDRESS}/32");
        workspace::output(Command::new("ip").args(["address", "add", &address, "dev", "lo"]))?;
        let folder = workspace::target_dir().join("bench-hub");
        let disk = folder.join("disk");
        std::fs::create_dir_all(&disk).with_context(|| format!("create {}", disk.display()))?;
        let counters = mount_disk(&folder.join("disk.img"), &disk)?;
        Ok(Self { disk, counters })
    }

    /// A new folder on the disk.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.disk.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(folder)
    }

    /// Lets programs change a folder of the machine: no other process sees it, and nothing stays.
    pub(super) fn own_folder(&self, folder: &Path) -> Result<()> {
        let name = folder.display().to_string().replace('/', "-");
        let is_owned = self.disk.join(format!("upper{name}")).exists();
        if is_owned {
            // The mount is from the round before. The kernel stacks two of them at most.
            umount(folder).with_context(|| format!("unmount {}", folder.display()))?;
        }
        let upper = self.folder(&format!("upper{name}"))?;
        let work = self.folder(&format!("work{name}"))?;
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            folder.display(),
            upper.display(),
            work.display()
        );
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]);
        workspace::output(mount.arg(folder)).map(drop)
    }

    /// What the disk has done so far. What programs wrote and did not flush is not in it yet.
    pub(super) fn disk_use(&self) -> Result<DiskUse> {
        let text = std::fs::read_to_string(&self.counters)
            .with_context(|| format!("read {}", self.counters.display()))?;
        // Documentation/block/stat.rst of the kernel.
        let fields: Vec<u64> = text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        ensure!(fields.len() >= 17, "this kernel does not count flushes");
        Ok(DiskUse {
            bytes: fields[6] * SECTOR,
            flushes: fields[15],
        })
    }

    /// Writes everything that programs have written.
    pub(super) fn sync(&self) -> Result<()> {
        workspace::output(Command::new("sync").arg("--file-system").arg(&self.disk)).map(drop)
    }
}

/// Makes an ext4 in a file, mounts it, and returns where the kernel counts what it does.
fn mount_disk(image: &Path, folder: &Path) -> Result<PathBuf> {
    workspace::output(Command::new("truncate").args(["--size", DISK]).arg(image))?;
    // Complete from the start: otherwise the kernel writes the rest while programs are measured.
    workspace::output(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(image),
    )?;
    workspace::output(
        Command::new("mount")
            .args(["-o", "loop,noatime"])
            .args([image, folder]),
    )?;
    let device = workspace::output(
        Command::new("findmnt")
            .args(["--noheadings", "--output", "SOURCE", "--mountpoint"])
            .arg(folder),
    )?;
    let device = device.trim().trim_start_matches("/dev/");
    Ok(Path::new("/sys/block").join(device).join("stat"))
}
