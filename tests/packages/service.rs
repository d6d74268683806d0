//! `culvert-agent join --service` on a machine with systemd and without packages: one command.

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Culvert, Options};
use culvert_lab::host::Host;
use culvert_lab::{Lab, workspace};

use crate::machine::{Machine, with_lab};

/// As in the archive.
const INSTALL: &str = "
dpkg-deb --extract culvert-agent_*.deb /unpacked
install -m 0755 /unpacked/usr/bin/culvert-agent /usr/local/bin/
";
const STATE: &str =
    "systemctl show --property=ActiveState,UnitFileState,User,MainPID culvert-agent";
const UNIT: &str = "/etc/systemd/system/culvert-agent.service";

/// The forward proxy is on the cloud host.
const FORWARDED: &str = "HTTPS_PROXY=http://user:p%40ss@203.0.113.1:3128";
/// The environment of the running service, and who reads the file that it is from.
const USED: &str = r#"
tr '\0' '\n' </proc/$(systemctl show --property=MainPID --value culvert-agent)/environ
stat -c '%a %U' /etc/culvert/agent.env
"#;

#[test]
fn one_command_joins_and_starts_a_service_that_has_a_tunnel() {
    with_lab(on_a_machine);
}

/// A command that joins with a new token.
fn join(culvert: &Culvert<'_>) -> Result<String> {
    let token = culvert.create_token(Host::Edge1, &[])?;
    Ok(format!("culvert-agent {} --service 2>&1", token.join(" ")))
}

fn on_a_machine(lab: &Lab) -> Result<()> {
    let culvert = Culvert::start(lab, &[], Options::default())?;
    let machine = Machine::boot(lab.site(Host::Edge1))?;
    machine.run(INSTALL)?;

    let said = machine.run(&join(&culvert)?)?;
    for part in ["edge-1", "198.18.", "culvert why"] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }
    culvert.wait_online(Host::Edge1)?;
    let state = machine.run(STATE)?;
    for line in [
        "ActiveState=active",
        "UnitFileState=enabled",
        "User=culvert",
    ] {
        ensure!(state.contains(line), "no {line:?} in {state}");
    }
    let owner = machine.run("stat -c %U /var/lib/culvert/agent/identity.pem")?;
    ensure!(owner.trim() == "culvert", "{owner}");

    // The unit is there, and the agent starts again with the new certificate.
    machine.run(&join(&culvert)?)?;
    let again = machine.run(STATE)?;
    ensure!(state != again, "it was not restarted: {again}");

    // The service comes by the way that the join was given.
    let cloud = lab.site(Host::Cloud);
    let mut forward = cloud.command(workspace::binary("xtask"));
    let forward = forward.args(["probe", "serve", "3128=http-proxy"]);
    let _forward = cloud.start_process("http-proxy", forward)?;
    let command = join(&culvert)?;
    let said = machine.run(&format!("{FORWARDED} {command} --tunnel-mss 1200"))?;
    ensure!(!said.contains("p%40ss"), "{said}");
    let used = machine.run(USED)?;
    for setting in ["HTTPS_PROXY=http://user:p%40ss@", "CULVERT_TUNNEL_MSS=1200"] {
        ensure!(used.contains(setting), "no {setting} in {used}");
    }
    ensure!(used.contains("\n600 root\n"), "others read it: {used}");
    culvert.wait_online(Host::Edge1)?;

    // What cannot be done is known before a token is used up.
    let command = join(&culvert)?;
    machine.run(&format!(
        "sed -i s/^User=.*/User=nobody/ {UNIT}; systemctl daemon-reload"
    ))?;
    let said = machine.run(&format!("{command} && exit 1 || true"))?;
    ensure!(
        said.contains(UNIT) && said.contains("User=nobody"),
        "{said}"
    );
    let elsewhere = format!("{command} --state-dir /srv/agent && exit 1 || true");
    let said = machine.run(&elsewhere)?;
    ensure!(said.contains("--state-dir"), "{said}");
    let said = machine.run(&format!(
        "setpriv --reuid nobody --clear-groups {command} && exit 1 || true"
    ))?;
    ensure!(said.contains("root"), "{said}");
    machine.run(&format!("rm {UNIT}; systemctl daemon-reload"))?;
    let said = machine.run(&command).context("the token is still good")?;
    ensure!(said.contains("culvert why"), "{said}");
    Ok(())
}
