//! Where the cluster is: its folder, and what is in it. Commands that run while it is up find it
//! there.

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::{cgroup, workspace};

use crate::network;
use crate::node::{NAME, Node};

/// The folder of all files. Only root may write there, and paths of sockets stay short.
const FOLDER: &str = "/run/culvert-cluster";

/// The folder of images, containers and objects in the target folder: `/run` is in memory.
const DISK: &str = "cluster";

/// Locked while the cluster is started or removed.
const LOCK: &str = "/run/culvert-cluster.lock";

/// Files in the folder.
const NODES: &str = "nodes";
const PROGRAMS: &str = "programs";
/// Lists the hosts' own folders that this machine did not have.
const MADE: &str = "made";

/// Folders of which each host has its own.
pub(crate) const PRIVATE: [&str; 8] = [
    "/run/culvert",
    "/var/lib/culvert",
    "/var/log/pods",
    "/var/log/containers",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/run/containerd",
    "/usr/libexec/kubernetes",
];

/// The cluster of this machine. There is one at most.
pub(crate) struct Cluster {
    folder: PathBuf,
    disk: PathBuf,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            folder: FOLDER.into(),
            disk: workspace::target_dir().join(DISK),
        }
    }
}

impl Cluster {
    /// Whether there is a cluster, or what is left of one.
    pub(crate) fn exists(&self) -> bool {
        self.folder.exists()
    }

    /// Makes the folder, with the names of the nodes and the folder of programs in it.
    pub(crate) fn create(&self, nodes: &[Node], programs: &Path) -> Result<()> {
        ensure!(
            !self.exists(),
            "there is a cluster, or the rest of one, in {}: `cargo xtask cluster down` removes it",
            self.folder.display()
        );
        ensure!(
            programs.join("kube-apiserver").is_file(),
            "{} has no kube-apiserver: `cargo xtask kube` makes and names such a folder",
            programs.display()
        );
        for folder in [&self.folder, &self.disk] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
                .with_context(|| format!("protect {}", folder.display()))?;
        }
        let mut made = PRIVATE.to_vec();
        made.retain(|path| !Path::new(path).exists());
        self.write(MADE, &made.join(" "))?;
        let names: Vec<String> = nodes.iter().map(Node::to_string).collect();
        self.write(NODES, &names.join(" "))?;
        self.write(PROGRAMS, &programs.display().to_string())
    }

    /// Keeps others from starting or removing the cluster at the same time.
    ///
    /// # Errors
    /// Another process does that now.
    pub(crate) fn lock() -> Result<File> {
        let lock = File::create(LOCK).with_context(|| format!("create {LOCK}"))?;
        lock.try_lock()
            .context("another program starts or removes the cluster now")?;
        Ok(lock)
    }

    /// The nodes of the cluster that is up.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>> {
        let names = self.read(NODES).context("no cluster is up")?;
        names.split_whitespace().map(str::parse).collect()
    }

    /// One of its nodes.
    pub(crate) fn node(&self, name: &str) -> Result<Node> {
        let node: Node = name.parse()?;
        ensure!(self.nodes()?.contains(&node), "the cluster has no {name}");
        Ok(node)
    }

    /// One of the programs of Kubernetes.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        Ok(Path::new(&self.read(PROGRAMS)?).join(name))
    }

    /// The minor version, such as 36 of 1.36.3.
    pub(crate) fn minor_version(&self) -> Result<u32> {
        // "Kubernetes v1.36.3"
        let said = workspace::output(Command::new(self.program("kubelet")?).arg("--version"))?;
        let minor = said
            .split('.')
            .nth(1)
            .with_context(|| format!("no version in {said:?}"))?;
        minor
            .parse()
            .with_context(|| format!("no version in {said:?}"))
    }

    /// A file or folder in the folder.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }

    /// The same as a text, for JSON and flags.
    pub(crate) fn path_text(&self, name: impl AsRef<Path>) -> String {
        self.path(name).display().to_string()
    }

    /// A file or folder of more than some megabytes.
    pub(crate) fn on_disk(&self, name: impl AsRef<Path>) -> PathBuf {
        self.disk.join(name)
    }

    /// The folder of one of the nodes.
    pub(crate) fn folder_of(&self, node: Node) -> PathBuf {
        self.path(node.to_string())
    }

    pub(crate) fn write(&self, name: impl AsRef<Path>, text: &str) -> Result<()> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    pub(crate) fn read(&self, name: impl AsRef<Path>) -> Result<String> {
        let path = self.path(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// The cgroup of a node's processes, of version 2.
    pub(crate) fn cgroup(&self, node: Node) -> Result<PathBuf> {
        Ok(cgroup::mount_point()?.join(NAME).join(node.to_string()))
    }

    /// kubectl as an administrator, on the master.
    pub(crate) fn kubectl(&self) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", network::path(Node::Master).display()))
            .arg(self.program("kubectl")?)
            .arg("--kubeconfig")
            .arg(self.path("admin.kubeconfig"));
        Ok(command)
    }

    /// Variables of a shell that say where all is.
    pub(crate) fn variables(&self) -> Result<String> {
        let nodes = self.nodes()?;
        let names: Vec<String> = nodes.iter().map(Node::to_string).collect();
        let mut text = format!(
            "CK_DIR={FOLDER}\nCK_BIN={}\nCK_KUBECONFIG={}\nCK_NODES=\"{}\"\n",
            self.read(PROGRAMS)?,
            self.path("admin.kubeconfig").display(),
            names.join(" ")
        );
        for node in nodes {
            let name = node.to_string().to_uppercase().replace('-', "_");
            writeln!(
                text,
                "CK_{name}_PID={} CK_{name}_NETNS={} CK_{name}_CGROUP={} CK_{name}_ADDRESS={} \
                 CK_{name}_CONTAINERD={}",
                self.read(format!("{node}/host.pid"))?.trim(),
                network::name(node),
                self.cgroup(node)?.display(),
                node.address(),
                self.path(format!("{node}/containerd.sock")).display(),
            )?;
        }
        Ok(text)
    }

    /// Ends all processes of the cluster, and removes all that it made.
    pub(crate) fn remove(&self) -> Result<()> {
        // First where all processes are: a kubelet would make the other cgroups again. Mounts end with
        // the processes, except those of containers' images.
        cgroup::remove(&cgroup::mount_point()?.join(NAME))?;
        for hierarchy in cgroup::hierarchies()? {
            cgroup::remove(&hierarchy.join(NAME))?;
        }
        network::remove()?;
        for folder in self.read(MADE).unwrap_or_default().split_whitespace() {
            // Unless something else of the machine uses it by now.
            fs::remove_dir(folder).ok();
        }
        // What says that there is a cluster comes last.
        for folder in [&self.disk, &self.folder] {
            unmount_below(folder)?;
            if folder.exists() {
                fs::remove_dir_all(folder)
                    .with_context(|| format!("remove {}", folder.display()))?;
            }
        }
        Ok(())
    }
}

/// Unmounts everything below a folder, the innermost first.
fn unmount_below(folder: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts").context("read /proc/mounts")?;
    let mut below = Vec::new();
    for line in mounts.lines() {
        if let Some(point) = line.split(' ').nth(1)
            && Path::new(point).starts_with(folder)
        {
            below.push(point);
        }
    }
    below.sort_unstable();
    for point in below.into_iter().rev() {
        workspace::output(Command::new("umount").args(["--lazy", point]))?;
    }
    Ok(())
}
