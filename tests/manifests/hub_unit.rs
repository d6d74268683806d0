//! The commands of the hub's unit, in a network namespace of a node with a pod and a neighbour.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::skip::may_make_labs;
use culvert_lab::{wait, workspace};

const UNIT: &str = "deploy/systemd/culvert-hub.service";
const DEADLINE: Duration = Duration::from_secs(20);
const ADDRESS: &str = "169.254.74.40";

/// Three namespaces, which go with this.
struct Node {
    suffix: u32,
}

/// A web server; it ends with this.
struct Server(Child);

#[test]
fn a_pod_reaches_the_pod_port_and_a_neighbour_of_the_node_does_not() {
    if may_make_labs()
        && let Err(error) = reached()
    {
        panic!("{error:#}");
    }
}

fn reached() -> Result<()> {
    let node = Node::make()?;
    let commands = unit_commands()?;
    let (address, rules) = commands.split_at(1);
    node.run_in("node", &address[0])?;
    let mut server = node.command_in("node", "python3");
    server.args(["-m", "http.server", "7440", "--bind", ADDRESS]);
    let _server = Server(server.spawn()?);
    wait::until("the neighbour has a route of its own", DEADLINE, || {
        ensure!(node.reaches("lan"), "it does not reach the port");
        Ok(())
    })?;
    // Each start of the unit runs them again.
    for _ in 0..2 {
        for rule in rules {
            node.run_in("node", rule)?;
        }
    }
    ensure!(node.reaches("pod"), "the pod does not reach the port");
    ensure!(node.reaches("node"), "the node does not reach the port");
    ensure!(!node.reaches("lan"), "the neighbour reaches the port");
    Ok(())
}

/// What the unit runs before the hub, as arguments.
fn unit_commands() -> Result<Vec<Vec<String>>> {
    let path = workspace::root().join(UNIT);
    let unit =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut commands = Vec::new();
    for line in unit.lines() {
        let Some(command) = line.strip_prefix("ExecStartPre=-+") else {
            continue;
        };
        let (plain, quoted) = command.split_once(" '").unwrap_or((command, ""));
        let mut words = Vec::new();
        for word in plain.split(' ') {
            words.push(word.to_owned());
        }
        if !quoted.is_empty() {
            words.push(quoted.trim_end_matches('\'').to_owned());
        }
        commands.push(words);
    }
    ensure!(commands.len() == 2, "{commands:?}");
    Ok(commands)
}

impl Node {
    fn make() -> Result<Self> {
        let node = Self {
            suffix: std::process::id(),
        };
        let host = node.netns("node");
        let pod = node.netns("pod");
        let lan = node.netns("lan");
        let commands = format!(
            "netns add {host}\nnetns add {pod}\nnetns add {lan}\n\
             link add pod netns {host} type veth peer name eth0 netns {pod}\n\
             link add nic netns {host} type veth peer name nic netns {lan}\n"
        );
        batch(&[], &commands)?;
        // The uplink is no veth, as a real one is none.
        batch(
            &["-n", &host],
            "link set lo up\nlink set pod up\naddr add 10.1.0.1/24 dev pod\nlink set nic up arp off\n\
             link add wan link nic type macvlan mode bridge\nlink set wan up\naddr add 10.2.0.1/24 dev wan\n",
        )?;
        batch(
            &["-n", &pod],
            "link set eth0 up\naddr add 10.1.0.2/24 dev eth0\nroute add default via 10.1.0.1\n",
        )?;
        let neighbour = format!(
            "link set nic up arp off\nlink add wan link nic type macvlan mode bridge\nlink set wan up\n\
             addr add 10.2.0.2/24 dev wan\nroute add {ADDRESS}/32 via 10.2.0.1\n"
        );
        batch(&["-n", &lan], &neighbour)?;
        Ok(node)
    }

    fn netns(&self, name: &str) -> String {
        format!("hub-unit-{}-{name}", self.suffix)
    }

    fn command_in(&self, name: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.netns(name), program]);
        command
    }

    fn run_in(&self, name: &str, words: &[String]) -> Result<()> {
        let mut command = self.command_in(name, &words[0]);
        workspace::output(command.args(&words[1..]))?;
        Ok(())
    }

    fn reaches(&self, name: &str) -> bool {
        let mut curl = self.command_in(name, "curl");
        let url = format!("http://{ADDRESS}:7440/");
        curl.args(["-s", "-o", "/dev/null", "-m", "2", &url]);
        match curl.status() {
            Ok(status) => status.success(),
            Err(_) => false,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for name in ["node", "pod", "lan"] {
            let mut delete = Command::new("ip");
            delete
                .args(["netns", "del", &self.netns(name)])
                .status()
                .ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn batch(options: &[&str], commands: &str) -> Result<()> {
    let mut ip = Command::new("ip");
    ip.args(options).args(["-batch", "-"]);
    let mut ip = ip.stdin(Stdio::piped()).spawn()?;
    let mut input = ip.stdin.take().context("it has an input")?;
    input.write_all(commands.as_bytes())?;
    drop(input);
    ensure!(ip.wait()?.success(), "ip does not take {commands}");
    Ok(())
}
