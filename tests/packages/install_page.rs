//! docs/install.md as it stands: two machines with systemd, the packages, and what is typed.

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, page};

use crate::machine::{EXPORTER, Machine, with_lab};

/// The join on the page. The proxy prints the real one.
const JOIN: &str = "culvert-agent join --proxy cloud.example.org:7400 --ca-pin sha256:";

/// What the page takes for granted: a name in DNS, and a user who says yes to apt.
const PREPARE: &str = r#"
echo '203.0.113.1 cloud.example.org' >>/etc/hosts
echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/assume-yes
"#;
/// The machine is a container, whose root cgroup the redirector leaves alone unless it is named.
const CONTAINER: &str = "echo CULVERT_CGROUP=/sys/fs/cgroup >>/etc/culvert/redirector.env";
/// The same package with a higher version, in /newer.
const NEWER: &str = r#"
dpkg-deb --raw-extract $package_*.deb /unpacked
sed -i '/^Version:/s/$/.1/' /unpacked/DEBIAN/control
mkdir -p /newer
dpkg-deb --build -Znone /unpacked /newer
rm -r /unpacked
"#;
const IN_KERNEL: &str = r#"
nft list tables | grep culvert || true
ls -d /sys/fs/bpf/culvert* 2>/dev/null || true
ip route show table all | grep 198.18 || true
"#;
const ON_DISK: &str = r#"
find /etc /run /usr /var/lib -name '*culvert*' | sort
getent passwd culvert || true
"#;

#[test]
fn the_commands_of_the_page_install_two_machines_whose_packages_are_upgraded_and_purged() {
    with_lab(on_two_machines);
}

#[test]
fn the_minute_of_the_readme_connects_two_machines() {
    with_lab(as_the_readme_says);
}

fn as_the_readme_says(lab: &Lab) -> Result<()> {
    let cloud = Machine::boot(lab.site(Host::Cloud))?;
    let edge = Machine::boot(lab.site(Host::Edge1))?;
    for machine in [&cloud, &edge] {
        machine.run(PREPARE)?;
    }
    edge.run(&format!("systemd-run --unit=exporter {EXPORTER}"))?;
    let readme = page::read("../README.md")?;
    let minute = page::section(&readme, "## One minute on two machines")?;
    let steps = page::typed(minute, "# ");
    let [in_the_cloud, on_the_edge] = &steps[..] else {
        bail!("other steps: {steps:?}");
    };
    let (packages, start) = in_the_cloud.split_once('\n').context("one line")?;
    cloud.run(packages)?;
    cloud.run(CONTAINER)?;
    let said = cloud.run(start)?;
    let join = said.lines().find(|line| line.contains(JOIN));
    let join = join.context("the proxy printed no join")?;
    let (packages, example) = on_the_edge.split_once('\n').context("one line")?;
    edge.run(packages)?;
    let options = example.split_once(" --token ... ");
    let (example, options) = options.context("a join and its options")?;
    ensure!(example.starts_with(JOIN), "{example}");
    edge.run(&format!("{join} {options}"))?;
    let mut code = minute.split('`').skip(1).step_by(2);
    let curl = code.find(|code| code.starts_with("curl "));
    let curl = curl.context("nothing reaches the edge")?;
    wait::until("the cloud reaches the edge", PATIENCE, || {
        let said = cloud.run(curl)?;
        ensure!(said.contains("nodename=\"edge-1\""), "{said}");
        Ok(())
    })
}

fn on_two_machines(lab: &Lab) -> Result<()> {
    let cloud = Machine::boot(lab.site(Host::Cloud))?;
    let edge = Machine::boot(lab.site(Host::Edge1))?;
    for machine in [&cloud, &edge] {
        machine.run(PREPARE)?;
    }
    edge.run(&format!("systemd-run --unit=exporter {EXPORTER}"))?;
    let disks = [cloud.run(ON_DISK)?, edge.run(ON_DISK)?];

    let page = page::read("install.md")?;
    let typed = |heading| anyhow::Ok(page::typed(page::section(&page, heading)?, "# "));
    let steps = typed("## 2. Cloud machine")?;
    let [packages, _without_packages, start] = &steps[..] else {
        bail!("other steps in the cloud: {steps:?}");
    };
    cloud.run(packages)?;
    cloud.run(CONTAINER)?;
    cloud.run(start)?;
    let create = typed("## 3. Add the node")?;
    let join = cloud.run(create.first().context("no command for a token")?)?;
    let join = join.lines().find(|line| line.contains(JOIN));
    let join = join.context("the proxy printed no join")?;
    let steps = typed("## 4. Edge machine")?;
    let [packages, _without_packages, start] = &steps[..] else {
        bail!("other steps on the edge: {steps:?}");
    };
    edge.run(packages)?;
    let options = start.split_once(" --token ... ");
    let (example, options) = options.context("a join and its options")?;
    ensure!(example.starts_with(JOIN), "{example}");
    edge.run(&format!("{join} {options}"))?;

    let used = typed("## 5. Use it, on the cloud machine")?;
    let use_it = || {
        let said = cloud.run(&used[0])?;
        for part in ["nodename=\"edge-1\"", "mechanism     both"] {
            ensure!(said.contains(part), "no {part:?} in:\n{said}");
        }
        Ok(())
    };
    wait::until("the cloud reaches the edge", PATIENCE, use_it)?;

    let installed = [
        (&cloud, "culvert-proxy"),
        (&cloud, "culvert-redirector"),
        (&edge, "culvert-agent"),
    ];
    for (machine, package) in installed {
        let process = format!("systemctl show --property=MainPID,ActiveState {package}");
        let before = machine.run(&process)?;
        machine.run(&NEWER.replace("$package", package))?;
        machine.run(&format!("apt install /newer/{package}_*.deb"))?;
        let after = machine.run(&process)?;
        ensure!(before != after, "{package} was not restarted: {after}");
        ensure!(after.contains("ActiveState=active"), "{package}: {after}");
    }
    wait::until("the cloud reaches the edge again", PATIENCE, use_it)?;

    let steering = cloud.run(IN_KERNEL)?;
    for part in ["table ", "/sys/fs/bpf/culvert", "198.18."] {
        ensure!(
            steering.contains(part),
            "no {part:?} while the redirector runs: {steering}"
        );
    }
    cloud.run("apt remove culvert-redirector")?;
    let left = cloud.run(IN_KERNEL)?;
    ensure!(left.is_empty(), "the removed redirector left {left}");
    cloud.run("apt purge culvert culvert-proxy culvert-redirector")?;
    edge.run("apt purge culvert-agent")?;
    let now = [cloud.run(ON_DISK)?, edge.run(ON_DISK)?];
    ensure!(now == disks, "purge left {now:?}, and before was {disks:?}");
    Ok(())
}
