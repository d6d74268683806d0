//! A host in miniature: unnamed namespaces, a BPF file system and a cgroup. All of it is removed
//! with the test.
//!
//! ```text
//!   outside ---- up0 [ cloud ] pod1 ---- pod 1
//!   10.9.0.2     10.9.0.1      pod2 ---- pod 2
//!   10.0.3.7 (an edge node, for connections that are not steered)
//! ```

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use parking_lot::Mutex;

/// The cloud's address, which connections are steered to.
pub(crate) const NODE4: &str = "10.9.0.1";
pub(crate) const NODE6: &str = "fd09::1";
/// Deadline of every wait. An emulated processor takes ten times as long as the machine's own.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// One world at a time: the test process itself moves into the world's cgroup.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The cloud host; the test's own thread is in its namespaces.
pub(crate) struct World {
    directory: tempfile::TempDir,
    cgroup: Cgroup,
    pub(crate) outside: Netns,
    pub(crate) pods: [Netns; 2],
}

/// A network namespace. It exists as long as this value.
pub(crate) struct Netns(File);

/// A cgroup that contains the test process.
pub(crate) struct Cgroup {
    path: PathBuf,
    before: PathBuf,
}

/// Runs a test in its own world, or reports why it is skipped.
pub(crate) fn in_a_world(test: impl FnOnce(&World) + Send) {
    if !nix::unistd::geteuid().is_root() {
        assert!(
            std::env::var_os("REQUIRE_PRIVILEGED").is_none_or(|value| value != "1"),
            "needs root"
        );
        // Not with eprintln, which libtest captures while a test passes. libtest may have printed the
        // name of the test without the end of its line.
        writeln!(std::io::stderr(), "\nskipped: needs root").ok();
        return;
    }
    // For programs that tests load themselves: kernels before 5.11 count them as locked memory.
    // Root without CAP_SYS_RESOURCE may not raise the limit, which newer kernels do not need.
    let _kept = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let _turn = ONE_AT_A_TIME.lock();
    // Namespaces belong to threads: they are removed when this thread ends.
    let outcome = std::thread::scope(|scope| scope.spawn(|| test(&World::new())).join());
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

impl World {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).unwrap();
        let no_type = None::<&str>;
        mount(
            no_type,
            "/",
            no_type,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            no_type,
        )
        .unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("bpffs")).unwrap();
        mount(
            Some("bpf"),
            &directory.path().join("bpffs"),
            Some("bpf"),
            MsFlags::empty(),
            no_type,
        )
        .unwrap();
        let world = Self {
            directory,
            cgroup: Cgroup::enter("cvr"),
            outside: Netns::new(),
            pods: [Netns::new(), Netns::new()],
        };
        world.connect_networks();
        world
    }

    fn connect_networks(&self) {
        sh("ip link set lo up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        cable(
            "up0",
            "10.9.0.1/24",
            "fd09::1/64",
            &self.outside,
            "10.9.0.2/24",
            "fd09::2/64",
        );
        sh("ip route add default via 10.9.0.2 && ip -6 route add default via fd09::2");
        self.outside
            .run(|| sh("ip addr add 10.0.3.7/32 dev lo && ip route add default via 10.9.0.1"));
        for (number, pod) in (1..).zip(&self.pods) {
            let near = (
                format!("10.244.{number}.1/24"),
                format!("fd44:{number}::1/64"),
            );
            let far = (
                format!("10.244.{number}.2/24"),
                format!("fd44:{number}::2/64"),
            );
            cable(
                &format!("pod{number}"),
                &near.0,
                &near.1,
                pod,
                &far.0,
                &far.1,
            );
            pod.run(|| {
                sh(&format!(
                    "ip route add default via 10.244.{number}.1 && ip -6 route add default via \
                     fd44:{number}::1"
                ));
            });
        }
    }

    pub(crate) fn bpffs(&self) -> PathBuf {
        self.directory.path().join("bpffs")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub(crate) fn directory_socket(&self) -> PathBuf {
        self.directory.path().join("directory.sock")
    }

    pub(crate) fn cgroup(&self) -> &Path {
        &self.cgroup.path
    }

    /// The root of all cgroups.
    pub(crate) fn root_cgroup(&self) -> &Path {
        self.cgroup.path.parent().unwrap()
    }

    /// A shell command in the cloud's network that the hooks do not see.
    pub(crate) fn outside_the_cgroup(&self, command: &str) -> Command {
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(format!(
            "echo $$ > {}/cgroup.procs && {command}",
            self.cgroup.before.display()
        ));
        shell
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Otherwise the parent directory could not be removed.
        umount2(&self.bpffs(), MntFlags::MNT_DETACH).unwrap();
    }
}

impl Netns {
    pub(crate) fn new() -> Self {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            sh("ip link set lo up");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        Self(made.join().unwrap())
    }

    /// The initial one, that of process 1.
    pub(crate) fn of_init() -> Self {
        Self(File::open("/proc/1/ns/net").unwrap())
    }

    /// Runs `action` in this namespace.
    pub(crate) fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
            action()
        };
        match std::thread::scope(|scope| scope.spawn(inside).join()) {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A veth pair between the cloud and another namespace, in which its interface is `eth0`.
pub(crate) fn cable(name: &str, near4: &str, near6: &str, far: &Netns, far4: &str, far6: &str) {
    let netns = format!("/proc/{}/fd/{}", std::process::id(), far.0.as_raw_fd());
    sh(&format!(
        "ip link add {name} type veth peer name eth0 netns {netns}"
    ));
    let set_up = |link: &str, v4: &str, v6: &str| {
        sh(&format!(
            "ip addr add {v4} dev {link} && ip addr add {v6} dev {link} nodad && ip link set \
             {link} up"
        ));
    };
    set_up(name, near4, near6);
    far.run(|| set_up("eth0", far4, far6));
}

impl Cgroup {
    /// Creates a child of the cgroup2 hierarchy's root and moves this process into it.
    pub(crate) fn enter(prefix: &str) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .expect("a cgroup2 mount");
        let root = PathBuf::from(mount.split(' ').nth(4).unwrap());
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap_or_default()
            .to_owned();
        let path = root.join(format!("{prefix}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let before = root.join(own);
        std::fs::write(path.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        Self { path, before }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        std::fs::write(
            self.before.join("cgroup.procs"),
            std::process::id().to_string(),
        )
        .unwrap();
        // Killed children take a moment to leave the cgroup.
        eventually("the cgroup is empty", || {
            std::fs::remove_dir(&self.path).ok()
        });
    }
}

/// Runs a shell command, which must succeed; returns its output.
#[track_caller]
pub(crate) fn sh(command: &str) -> String {
    let output = Command::new("bash").args(["-c", command]).output().unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until `check` returns a value.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, what, check)
}

/// Waits for something that takes several of the redirector's inspections.
#[track_caller]
pub(crate) fn within<T>(longest: Duration, what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + longest;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
