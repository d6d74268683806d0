//! Tests of the packages: dpkg and rpm install, remove and purge them in a copy of this machine's
//! root, which is an overlay in a mount namespace, and apt in two machines with systemd. The programs
//! are those of the tests.

mod install_page;
mod machine;
mod made;
mod neighbours;
mod service;

use std::process::Command;

use culvert_lab::{skip, workspace};
use xtask::dist::package::{Kind, PACKAGES};

use made::{MADE, make};

/// Runs `$2` in the copy, which has the packages in `/packages`. Prints what it prints, then each
/// path that this machine does not have.
const IN_A_COPY: &str = r#"
mount -t tmpfs tmpfs "$0"
cd "$0"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mkdir root/packages
mount --bind "$1" root/packages
chroot root sh -e -c "$2" 2>&1
cd upper
find . -mindepth 1 | sort | while read -r path; do [ -e "/$path" ] || echo "new: $path"; done
"#;

/// Files in which dpkg, rpm and this test keep records.
const RECORDS: [&str; 6] = [
    "./packages",
    // Debian's rpm locks this one too. The distributions of rpm have the other one.
    "./root/.rpmdb",
    "./var/lib/dpkg",
    "./var/lib/rpm",
    "./var/log",
    "./var/cache",
];

/// What happened in a copy of this machine.
struct Done {
    said: String,
    /// Paths, without the records of dpkg and rpm.
    left: Vec<String>,
}

/// Runs a script with the packages at hand; nothing if this machine cannot.
fn in_a_copy(script: &str) -> Option<Done> {
    let has = |program| workspace::find_program(program).is_some();
    if !workspace::is_root() || !has("dpkg-deb") || !has("rpmbuild") {
        skip::skip("installing packages needs root, dpkg and rpm");
        return None;
    }
    let copy = tempfile::tempdir().expect("a folder");
    let mut unshare = Command::new("unshare");
    // Its own network: the redirector removes what it finds in the kernel.
    unshare.args(["--mount", "--net", "sh", "-e", "-c", IN_A_COPY]);
    unshare.args([copy.path(), &*MADE]).arg(script);
    let said = workspace::output(&mut unshare).unwrap_or_else(|error| panic!("{error:#}"));
    let is_record = |path: &str| RECORDS.iter().any(|record| path.starts_with(record));
    let left = said.lines().filter_map(|line| line.strip_prefix("new: "));
    let left = left.filter(|path| !is_record(path)).map(str::to_owned);
    Some(Done {
        left: left.collect(),
        said,
    })
}

fn assert_has(done: &Done, line: &str) {
    assert!(
        done.said.lines().any(|said| said == line),
        "no {line:?} in:\n{}",
        done.said
    );
}

#[test]
fn an_installation_starts_and_enables_nothing() {
    let Some(done) = in_a_copy(
        "dpkg --install --force-depends /packages/*.deb
         for name in proxy redirector agent hub; do
             culvert-$name --version
             systemctl is-enabled culvert-$name.service || true
         done
         getent passwd culvert | cut -d: -f1,6,7
         ls -d /var/lib/culvert || true",
    ) else {
        return;
    };
    assert_eq!(
        done.said.lines().filter(|line| *line == "disabled").count(),
        4,
        "{}",
        done.said
    );
    assert_has(&done, "culvert:/nonexistent:/usr/sbin/nologin");
    // Without it, the units of agent and hub do not start.
    assert!(
        !done
            .left
            .iter()
            .any(|path| path.contains("var/lib/culvert")),
        "{:?}",
        done.left
    );
    for path in [
        "./usr/bin/culvert",
        "./usr/bin/culvert-proxy",
        "./usr/bin/kubectl-culvert",
        "./usr/bin/kubectl_complete-culvert",
        "./usr/lib/systemd/system/culvert-hub.service",
        "./usr/lib/NetworkManager/conf.d/culvert.conf",
        "./usr/lib/modules-load.d/10-culvert-agent.conf",
        "./usr/lib/sysctl.d/10-culvert-proxy.conf",
        "./usr/lib/systemd/network/05-culvert.network",
        "./usr/share/bash-completion/completions/culvert-redirector",
        "./usr/share/fish/vendor_completions.d/culvert-agent.fish",
        "./usr/share/man/man1/culvert-token-create.1.gz",
        "./usr/share/zsh/vendor-completions/_culvert-agent",
    ] {
        assert!(
            done.left.iter().any(|left| left == path),
            "no {path} in {:?}",
            done.left
        );
    }
}

#[test]
fn removal_keeps_settings_and_state_and_a_new_version_takes_them() {
    let Some(done) = in_a_copy(
        "dpkg --install --force-depends /packages/*.deb
         mkdir -p /var/lib/culvert/agent
         echo key >/var/lib/culvert/agent/agent.key
         echo CULVERT_PORTS=22 >/etc/culvert/agent.env
         systemctl enable culvert-agent.service
         dpkg --install --force-depends /packages/culvert-agent_*.deb
         echo upgraded: $(systemctl is-enabled culvert-agent.service) $(cat /etc/culvert/agent.env)
         dpkg --remove culvert culvert-proxy culvert-redirector culvert-agent culvert-hub
         echo removed: $(cat /var/lib/culvert/agent/agent.key /etc/culvert/agent.env)
         dpkg --install --force-depends /packages/culvert-agent_*.deb
         echo again: $(cat /var/lib/culvert/agent/agent.key /etc/culvert/agent.env)
         dpkg --remove culvert-agent",
    ) else {
        return;
    };
    assert_has(&done, "upgraded: enabled CULVERT_PORTS=22");
    assert_has(&done, "removed: key CULVERT_PORTS=22");
    assert_has(&done, "again: key CULVERT_PORTS=22");
    let kept = ["./etc/culvert", "./var/lib/culvert"];
    let other = |path: &&String| !kept.iter().any(|kept| path.starts_with(kept));
    let other: Vec<_> = done.left.iter().filter(other).collect();
    assert!(other.is_empty(), "removal left {other:?}");
}

#[test]
fn purge_removes_what_the_programs_made_too_and_says_so() {
    let Some(done) = in_a_copy(
        "dpkg --install --force-depends /packages/*.deb
         for name in proxy redirector agent hub; do
             mkdir -p /var/lib/culvert/$name /run/culvert/$name
             echo state >/var/lib/culvert/$name/state
             systemctl enable culvert-$name.service
         done
         touch /run/culvert/control.sock
         dpkg --purge culvert culvert-proxy culvert-redirector culvert-agent culvert-hub
         getent passwd culvert || echo no user",
    ) else {
        return;
    };
    assert!(
        done.left.is_empty(),
        "purge left {:?}:\n{}",
        done.left,
        done.said
    );
    assert_has(&done, "no user");
    for package in PACKAGES
        .iter()
        .filter(|package| package.kind == Kind::Daemon)
    {
        let removed = format!("{}: removed /var/lib/culvert/", package.name);
        assert!(
            done.said.contains(&removed),
            "no {removed:?} in:\n{}",
            done.said
        );
    }
}

#[test]
fn a_hub_that_cannot_give_kubelet_its_kubeconfig_back_is_not_removed() {
    assert_hub_stays(
        "dpkg --install --force-depends /packages/culvert-hub_*.deb",
        "dpkg --remove culvert-hub",
    );
}

#[test]
fn an_installation_by_rpm_starts_and_enables_nothing() {
    let Some(done) = in_a_copy(
        "rpm --install --force-debian --nodeps /packages/*.rpm
         for name in proxy redirector agent hub; do
             culvert-$name --version
             systemctl is-enabled culvert-$name.service || true
             rpm --verify --nodeps culvert-$name
             rpm --query --configfiles culvert-$name
         done
         getent passwd culvert | cut -d: -f1,6,7",
    ) else {
        return;
    };
    let disabled = done.said.lines().filter(|line| *line == "disabled").count();
    assert_eq!(disabled, 4, "{}", done.said);
    assert_has(&done, "culvert:/nonexistent:/usr/sbin/nologin");
    assert_has(&done, "/etc/culvert/agent.env");
    for path in [
        "./usr/bin/culvert",
        "./usr/bin/culvert-proxy",
        "./usr/bin/kubectl-culvert",
        "./usr/bin/kubectl_complete-culvert",
        "./usr/lib/NetworkManager/conf.d/culvert.conf",
        "./usr/lib/systemd/network/05-culvert.network",
        "./usr/lib/systemd/system/culvert-hub.service",
        "./usr/share/licenses/culvert-agent/LICENSES",
        "./usr/share/man/man1/culvert-token-create.1.gz",
        "./usr/share/zsh/site-functions/_culvert-agent",
    ] {
        let is_there = done.left.iter().any(|left| left == path);
        assert!(is_there, "no {path} in {:?}", done.left);
    }
}

#[test]
fn removal_by_rpm_keeps_state_and_what_was_changed_in_the_settings() {
    let Some(done) = in_a_copy(
        "rpm --install --force-debian --nodeps /packages/*.rpm
         mkdir -p /var/lib/culvert/agent
         echo key >/var/lib/culvert/agent/agent.key
         echo CULVERT_PORTS=22 >/etc/culvert/agent.env
         systemctl enable culvert-agent.service
         rpm --upgrade --replacepkgs --force-debian --nodeps /packages/culvert-agent-*.rpm
         echo upgraded: $(systemctl is-enabled culvert-agent.service) $(cat /etc/culvert/agent.env)
         rpm --erase culvert culvert-proxy culvert-redirector culvert-agent culvert-hub
         echo removed: $(cat /var/lib/culvert/agent/agent.key)",
    ) else {
        return;
    };
    assert_has(&done, "upgraded: enabled CULVERT_PORTS=22");
    assert_has(&done, "removed: key");
    let left = done.left.iter().map(String::as_str);
    // The copied machine may have them, with the settings and state of its own Culvert.
    let folders = ["./etc/culvert", "./var/lib/culvert"];
    let left: Vec<_> = left.filter(|path| !folders.contains(path)).collect();
    let expected = [
        "./etc/culvert/agent.env.rpmsave",
        // Distributions with rpm have these.
        "./usr/lib/NetworkManager",
        "./usr/lib/NetworkManager/conf.d",
        "./usr/share/licenses",
        "./var/lib/culvert/agent",
        "./var/lib/culvert/agent/agent.key",
    ];
    assert_eq!(left, expected, "{}", done.said);
}

#[test]
fn rpm_does_not_remove_a_hub_that_cannot_give_kubelet_its_kubeconfig_back() {
    assert_hub_stays(
        "rpm --install --force-debian --nodeps /packages/culvert-hub-*.rpm",
        "rpm --erase culvert-hub",
    );
}

/// Removes a hub that has kubelet's kubeconfig, and no kubelet to give it to.
fn assert_hub_stays(install: &str, remove: &str) {
    let Some(done) = in_a_copy(&format!(
        "{install}
         mkdir -p /var/lib/culvert/hub
         echo kubeconfig >/var/lib/culvert/hub/cloud.kubeconfig
         {remove} || echo refused
         ls /usr/bin/culvert-hub"
    )) else {
        return;
    };
    assert_has(&done, "refused");
    assert_has(&done, "/usr/bin/culvert-hub");
}

#[test]
fn two_packages_of_the_same_parts_are_equal() {
    if !workspace::binary("culvert-redirector").exists() {
        skip::skip("culvert-redirector is not compiled: run `cargo xtask setup`");
        return;
    }
    let again = tempfile::tempdir().expect("a folder");
    make(again.path());
    let mut names = 0;
    for made in std::fs::read_dir(&*MADE).expect("the folder") {
        let made = made.expect("a file");
        let bytes = |path| std::fs::read(path).expect("read it");
        let other = again.path().join(made.file_name());
        assert!(bytes(made.path()) == bytes(other), "{made:?} differs");
        names += 1;
    }
    assert_eq!(names, 2 * PACKAGES.len());
}
