//! The program `culvert`: asks proxies of this host and, by a real sshd, those of others. One of
//! them is stopped, one is gone, and a node is offline.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, page, workspace};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::connect;
use crate::proxies::{self, SECOND, THIRD, peer_flags};
use crate::world::{self, ECHO, FORBIDDEN, GREET, World};

const EDGES: &[Host] = &[Host::Edge1, Host::Edge2];
/// In the agents' allow-list; no program listens there.
const CLOSED: u16 = 9777;
/// The page with the fields of all answers.
const PAGE: &str = "json.md";

/// Starts sshd as root: `$1` its program, `$2` its configuration, `$3` a file for the users. The
/// machine need not have the user and the folder of sshd's unprivileged child. Root's shell reads no
/// settings of this machine.
const START_SSHD: &str = r#"
  mkdir -p -m 755 /run/sshd
  echo 'root:x:0:0:root:/root:/bin/sh' > "$3"
  echo 'sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin' >> "$3"
  mount --bind "$3" /etc/passwd
  exec "$1" -D -e -f "$2"
"#;

/// A first proxy with a redirector, on this host, and a second and a third one that only ssh reaches.
struct People<'lab> {
    lab: &'lab Lab,
    folder: PathBuf,
    _sshd: Process,
}

/// Three proxies of one authority; the agents know the first one.
fn three(lab: &Lab) -> Result<Options> {
    let mut options = proxies::prepare_three(lab, EDGES)?;
    options.ports.push(CLOSED);
    Ok(options)
}

impl<'lab> People<'lab> {
    fn start(world: &World<'lab>) -> Result<Self> {
        let cloud = world.lab.site(Host::Cloud);
        let folder = cloud.file("people");
        std::fs::create_dir_all(folder.join("bin"))?;
        for key in ["user", "server"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            workspace::output(command.arg(folder.join(key)))?;
        }
        write_ssh(&folder)?;
        let sshd = start_sshd(world, &folder)?;
        let people = Self {
            lab: world.lab,
            folder,
            _sshd: sshd,
        };
        wait::until("ssh logs in", PATIENCE, || {
            let mut command = people.command("ssh");
            let said = workspace::output(command.args(["cloud-5", "echo", "in"]))?;
            ensure!(said.trim() == "in", "{said}");
            Ok(())
        })?;
        Ok(people)
    }

    /// A command of the cloud host, with this test's ssh.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.lab.site(Host::Cloud).command(program);
        let programs = workspace::binary("");
        let usual = std::env::var("PATH").unwrap_or_default();
        let path = format!(
            "{}:{}:{usual}",
            self.folder.join("bin").display(),
            programs.display()
        );
        command
            .env("PATH", path)
            .env("CULVERT_RUN_DIR", self.lab.site(Host::Cloud).file("run"))
            .env("KUBECONFIG", "/nonexistent");
        command
    }

    fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = self.command(workspace::binary("culvert"));
        Ok(command.args(words).output()?)
    }

    /// The answer in JSON, whether or not something is wrong.
    fn json(&self, words: &[&str]) -> Result<Value> {
        let done = self.run(&[words, &["--output", "json"]].concat())?;
        serde_json::from_slice(&done.stdout).with_context(|| format!("{words:?}: {done:?}"))
    }

    /// Waits until nothing is wrong with the first and the second proxy.
    fn wait_well(&self) -> Result<()> {
        wait::until("nothing is wrong", PATIENCE, || {
            let status = self.json(&["status", "--local", "--ssh", "cloud-5"])?;
            ensure!(status["verdict"] != "failure", "{status:#}");
            ensure!(status["nodes"]["online"] == 2, "{status:#}");
            Ok(())
        })
    }
}

/// An `ssh` with a configuration of its own: `cloud-N` is the host of proxy N, and nothing listens on
/// `cloud-9`.
fn write_ssh(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let [user, server] = ["user", "server"].map(|key| folder.join(key));
    let key = std::fs::read_to_string(server.with_extension("pub"))?;
    let mut known = String::new();
    let mut configuration = String::new();
    for number in [SECOND, THIRD, 9] {
        let port = 2200 + number;
        known += &format!("[127.0.0.1]:{port} {key}");
        configuration += &format!(
            "Host cloud-{number}\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  \
             IdentityFile {}\n  UserKnownHostsFile {}\n",
            user.display(),
            folder.join("known").display()
        );
    }
    std::fs::write(folder.join("known"), known)?;
    std::fs::write(folder.join("ssh_config"), configuration)?;
    let ssh = workspace::find_program("ssh").context("there is no ssh")?;
    let wrapper = folder.join("bin/ssh");
    let script = format!(
        "#!/bin/sh\nexec {} -F {} \"$@\"\n",
        ssh.display(),
        folder.join("ssh_config").display()
    );
    std::fs::write(&wrapper, script)?;
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// An sshd whose ports lead to the sockets of one proxy each.
fn start_sshd(world: &World<'_>, folder: &Path) -> Result<Process> {
    let cloud = world.lab.site(Host::Cloud);
    let mut configuration = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
         PermitRootLogin yes\n",
        folder.join("server").display(),
        folder.join("user.pub").display()
    );
    for number in [SECOND, THIRD] {
        configuration += &format!("Port {}\n", 2200 + number);
    }
    for number in [SECOND, THIRD] {
        configuration += &format!("Match LocalPort {}\n  SetEnv", 2200 + number);
        for socket in ["control", "connect", "admin"] {
            let path = world.culvert.socket(&format!("{socket}-{number}.sock"));
            let name = socket.to_uppercase();
            configuration += &format!(" CULVERT_{name}_SOCKET={}", path.display());
        }
        let programs = workspace::binary("");
        configuration += &format!(
            " CULVERT_REDIRECTOR_ADMIN_SOCKET=/nonexistent/socket PATH={}:/usr/bin:/bin\n",
            programs.display()
        );
    }
    let file = folder.join("sshd_config");
    std::fs::write(&file, configuration)?;
    let mut command = cloud.command("unshare");
    command
        .args(["--mount", "sh", "-ec", START_SSHD, "sh"])
        .arg(Unpacked::SshServer.program())
        .arg(file)
        .arg(folder.join("passwd"))
        .env("LD_LIBRARY_PATH", Unpacked::SshServer.libraries());
    cloud.start_process("sshd", &mut command)
}

/// Runs a test with the second and the third proxy up.
fn with_three(test: impl FnOnce(&mut World<'_>, [Process; 2]) -> Result<()>) {
    world::prepared(EDGES, three, |world| {
        let second = proxies::start(world, SECOND, &peer_flags())?;
        let third = proxies::start(world, THIRD, &peer_flags())?;
        test(world, [second, third])
    });
}

#[test]
fn a_dead_and_a_slow_host_are_rows_and_an_offline_node_is_a_problem_with_its_fix() {
    with_three(|world, [_second, third]| {
        world.culvert.agent(1).kill()?;
        third.signal(Signal::SIGSTOP)?;
        let people = People::start(world)?;
        let asked = wait::until("the node is offline", PATIENCE, || {
            let hosts = ["--ssh", "cloud-5", "--ssh", "cloud-6", "--ssh", "cloud-9"];
            let words = [&["status", "--local", "--timeout", "4s"], &hosts[..]].concat();
            let status = people.json(&words)?;
            ensure!(status["nodes"]["offline"] == 1, "{status:#}");
            let text = people.run(&words)?;
            ensure!(text.status.code() == Some(1), "{text:?}");
            Ok((status, String::from_utf8_lossy(&text.stdout).into_owned()))
        });
        third.signal(Signal::SIGCONT)?;
        let (status, text) = asked?;
        let rows = status["proxies"].as_array().context("no proxies")?;
        let row = |name: &str| rows.iter().find(|row| row["asked_as"] == name);
        for (name, state) in [
            ("this host", "ready"),
            ("cloud-5", "ready"),
            ("cloud-6", "no answer"),
            ("cloud-9", "no answer"),
        ] {
            let row = row(name).with_context(|| format!("no row {name}: {status:#}"))?;
            ensure!(row["state"] == state, "{name}: {row:#}");
        }
        ensure!(status["verdict"] == "failure", "{status:#}");
        ensure!(
            status["problems"][0]["verdict"] == "failure",
            "the worst is not first"
        );
        for subject in ["edge-2", "cloud-6", "cloud-9"] {
            let problems = status["problems"].as_array().into_iter().flatten();
            let mut about = problems.filter(|problem| problem["subject"] == subject);
            let fix = about.next().and_then(|problem| problem["fix"].as_str());
            ensure!(
                fix.is_some_and(|fix| !fix.is_empty()),
                "{subject}: {status:#}"
            );
        }
        let first = text.lines().next().unwrap_or_default();
        ensure!(first.starts_with("FAILURE"), "{text}");
        ensure!(!text.contains('\u{1b}'), "a pipe has colours: {text:?}");
        Ok(())
    });
}

#[test]
fn why_marks_the_broken_hop_from_every_host() {
    with_three(|world, _proxies| {
        let people = People::start(world)?;
        people.wait_well()?;
        let why = |target: &str| people.json(&["why", target, "--local", "--ssh", "cloud-5"]);
        let well = why(&format!("edge-1:{GREET}"))?;
        ensure!(well["reachable"] == true, "{well:#}");
        ensure!(
            well["from"].as_array().is_some_and(|from| from.len() == 2),
            "{well:#}"
        );
        ensure!(broken(&well).is_empty(), "{well:#}");
        // The second proxy has no tunnel of the node: it knows the agent's word by the dial alone.
        for (target, hops) in [
            (format!("edge-1:{FORBIDDEN}"), &["agent", "dial"][..]),
            (format!("edge-1:{CLOSED}"), &["dial"]),
        ] {
            let why = why(&target)?;
            ensure!(why["reachable"] == false, "{why:#}");
            ensure!(broken(&why) == hops, "{target}: {why:#}");
            let first = why["from"][0]["fixes"].as_array();
            ensure!(first.is_some_and(|fixes| !fixes.is_empty()), "{why:#}");
        }
        Ok(())
    });
}

#[test]
fn a_node_that_no_proxy_knows_is_said_to_be_none_with_near_names() {
    world::with(EDGES, Options::default(), |world| {
        for words in [
            &["why", "egde-1:9100"][..],
            &["why", "egde-1"],
            &["node", "egde-1"],
            &["ping", "egde-1"],
            &["connectivity-test", "egde-1"],
        ] {
            let done = world.culvert.control(words).output()?;
            ensure!(done.status.code() == Some(1), "{words:?}: {done:?}");
            let said = String::from_utf8_lossy(&done.stderr);
            for part in ["egde-1", "edge-1", "`culvert nodes`"] {
                ensure!(said.contains(part), "{words:?}: no {part:?} in {said}");
            }
        }
        let why = world.culvert.why("egde-1:9100")?;
        ensure!(
            !why.contains("culvert-redirector") && why.contains("edge-1"),
            "{why}"
        );
        Ok(())
    });
}

#[test]
fn why_says_that_an_offline_node_has_no_tunnel() {
    world::prepared(EDGES, three, |world| {
        world.culvert.agent(1).kill()?;
        world.culvert.wait_offline(Host::Edge2, PATIENCE)?;
        let people = People::start(world)?;
        wait::until("the kernel refuses it too", PATIENCE, || {
            let why = people.json(&["why", &format!("edge-2:{GREET}"), "--local"])?;
            let broken = broken(&why);
            ensure!(
                broken == ["kernel", "tunnel", "dial"],
                "{broken:?}: {why:#}"
            );
            Ok(())
        })?;
        // As the fix of an offline node says it.
        let why = people.json(&["why", "edge-2", "--local"])?;
        ensure!(broken(&why).contains(&"tunnel"), "{why:#}");
        Ok(())
    });
}

/// The hops that are broken anywhere, each once.
fn broken(why: &Value) -> Vec<&str> {
    let mut broken = Vec::new();
    for from in why["from"].as_array().into_iter().flatten() {
        for hop in from["hops"].as_array().into_iter().flatten() {
            let name = hop["hop"].as_str().unwrap_or_default();
            if hop["ok"] == false && !broken.contains(&name) {
                broken.push(name);
            }
        }
    }
    broken
}

#[test]
fn every_field_of_every_answer_is_documented_and_no_other() {
    with_three(|world, _proxies| {
        let people = People::start(world)?;
        people.wait_well()?;
        let _held = world.hold(format!("edge-1:{ECHO}"), 1)?;
        wait::until("all has been measured", PATIENCE, || {
            let node = people.json(&["node", "edge-1", "--local"])?;
            ensure!(node["agent"]["ready"] == true, "{node:#}");
            ensure!(node["round_trip_ms"].is_number(), "{node:#}");
            Ok(())
        })?;
        world.culvert.agent(1).kill()?;
        world.culvert.wait_offline(Host::Edge2, PATIENCE)?;
        workspace::output(
            people
                .command(workspace::binary("culvert"))
                .args(["token", "create", "edge-7", "--local"]),
        )?;
        let page = page::read(PAGE)?;
        for words in [
            "status",
            "nodes",
            "node edge-1",
            "streams",
            "check",
            "why edge-2:9004",
            "connectivity-test edge-1 edge-2 --port 9004",
            "ping edge-1 -c 2 -i 100ms",
            "token list",
            "version --all",
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            let hosts = ["--local", "--ssh", "cloud-9"];
            let answer = people.json(&[&words[..], &hosts].concat())?;
            let mut real = BTreeSet::new();
            fields(&answer, "", &mut real);
            let title = match words[0] {
                "token" => "token list",
                "version" => "version --all",
                word => word,
            };
            let section = page::section(&page, &format!("## Fields of `{title}`"))?;
            let written = documented(section);
            let missing: Vec<_> = real.difference(&written).collect();
            let invented: Vec<_> = written.difference(&real).collect();
            ensure!(
                missing.is_empty() && invented.is_empty(),
                "{title}: not in {PAGE} {missing:?}, only there {invented:?}: {answer:#}"
            );
        }
        Ok(())
    });
}

/// The paths of all values: `proxies[].host`. What a hub says is its own.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let dot = if path.is_empty() { "" } else { "." };
                fields(member, &format!("{path}{dot}{name}"), found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for item in items {
                fields(item, &format!("{path}[]"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            found.insert(path.to_owned());
        }
    }
}

/// The fields in the tables of a section: the first cells of their rows.
fn documented(section: &str) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    for line in section.lines() {
        let Some(row) = line.strip_prefix("| `") else {
            continue;
        };
        let Some((cell, _)) = row.split_once(" |") else {
            continue;
        };
        for field in cell.split('`').step_by(2) {
            if !field.is_empty() {
                fields.insert(field.to_owned());
            }
        }
    }
    fields
}

#[test]
fn observe_shows_what_begins_and_ends_and_its_counts_are_those_of_the_metrics() {
    world::prepared(EDGES, three, |world| {
        let people = People::start(world)?;
        let mut command = people.command(workspace::binary("culvert"));
        command.args(["observe", "-f", "-o", "json", "--local"]);
        let following = world
            .lab
            .site(Host::Cloud)
            .start_process("observe", &mut command)?;
        world.greeting("edge-1")?;
        world.failing_client(&Client::talk(format!("edge-1:{CLOSED}"), ""))?;
        let ended = || -> Result<Vec<Value>> {
            let mut ended = Vec::new();
            for line in following.log().lines() {
                let event: Value = serde_json::from_str(line).context(line.to_owned())?;
                if event["event"] == "ended" {
                    ended.push(event);
                }
            }
            Ok(ended)
        };
        let all = wait::until("both ends are observed", PATIENCE, || {
            let ended = ended()?;
            for outcome in ["finished", "refused"] {
                let is_there = ended.iter().any(|event| event["outcome"] == outcome);
                ensure!(is_there, "no {outcome}: {ended:?}");
            }
            Ok(ended)
        })?;
        let mut counted = 0.0;
        for line in world
            .lab
            .site(Host::Cloud)
            .http_get(PROXY_ADMIN, "/metrics")?
            .lines()
        {
            if line.starts_with("culvert_proxy_streams_total{")
                && let Some((_, count)) = line.rsplit_once(' ')
            {
                counted += count.parse::<f64>()?;
            }
        }
        ensure!(
            counted == all.len() as f64,
            "{counted} are counted: {all:?}"
        );
        // The last ones, for clients that come later.
        let mut later = people.command(workspace::binary("culvert"));
        later.args(["observe", "--local", "-o", "json", "--outcome", "refused"]);
        let said = workspace::output(&mut later)?;
        let event: Value = serde_json::from_str(said.trim())?;
        ensure!(event["node"] == "edge-1", "{said}");
        let page = page::read(PAGE)?;
        let mut real = BTreeSet::new();
        fields(&event, "", &mut real);
        let written = documented(page::section(&page, "## Fields of `observe`")?);
        ensure!(real == written, "{PAGE}: {written:?}, not {real:?}");
        Ok(())
    });
}

#[test]
fn observe_idle_shows_each_connection_once_when_nothing_moves_and_again_after_bytes() {
    world::with(EDGES, Options::default(), |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 1)?;
        let words = [
            "observe", "-f", "-o", "json", "--idle", "1s", "--node", "edge-1",
        ];
        let mut command = world.culvert.control(&words);
        let following = world
            .lab
            .site(Host::Cloud)
            .start_process("idle", &mut command)?;
        let idle = |count: usize| {
            wait::until("it is idle", PATIENCE, || {
                let mut events = Vec::new();
                for line in following.log().lines() {
                    let event: Value = serde_json::from_str(line).context(line.to_owned())?;
                    events.push(event);
                }
                ensure!(events.len() == count, "{events:?}");
                Ok(events)
            })
        };
        let first = idle(1)?;
        ensure!(first[0]["event"] == "idle", "{first:?}");
        ensure!(first[0]["node"] == "edge-1", "{first:?}");
        ensure!(first[0]["idle_seconds"].as_u64() >= Some(1), "{first:?}");
        held.check()?;
        let second = idle(2)?;
        ensure!(second[0]["stream"] == second[1]["stream"], "{second:?}");
        let other = ["observe", "-o", "json", "--idle", "1s", "--node", "edge-2"];
        let other = workspace::output(&mut world.culvert.control(&other))?;
        ensure!(other.is_empty(), "{other}");
        Ok(())
    });
}

#[test]
fn a_terminal_has_marks_and_colours_in_80_columns_and_no_color_takes_them_away() {
    world::prepared(EDGES, three, |world| {
        let people = People::start(world)?;
        wait::until("both nodes are online", PATIENCE, || {
            let status = people.json(&["status", "--local"])?;
            ensure!(status["nodes"]["online"] == 2, "{status:#}");
            Ok(())
        })?;
        let _held = world.hold(format!("edge-1:{ECHO}"), 1)?;
        let why = format!("why edge-1:{GREET}");
        for words in ["status", "nodes", "node edge-1", "streams", "check", &why] {
            let coloured = on_a_terminal(&people, words, "")?;
            ensure!(
                coloured.contains('\u{1b}'),
                "{words}: no colour: {coloured:?}"
            );
            ensure!(!coloured.contains("FAILURE"), "{words}: {coloured}");
            let plain = on_a_terminal(&people, words, "NO_COLOR=1")?;
            ensure!(!plain.contains('\u{1b}'), "{words}: NO_COLOR: {plain:?}");
            for line in plain.lines() {
                let columns = line.trim_end().chars().count();
                ensure!(columns <= 80, "{words}: {columns} columns: {plain}");
            }
        }
        Ok(())
    });
}

/// What `culvert` prints on a terminal of 80 columns.
fn on_a_terminal(people: &People<'_>, words: &str, setting: &str) -> Result<String> {
    let line = format!(
        "stty cols 80; {setting} {} {words} --local",
        workspace::binary("culvert").display()
    );
    let mut command = people.command("script");
    command
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    let done = command.output()?;
    Ok(String::from_utf8_lossy(&done.stdout).replace('\r', ""))
}

#[test]
fn an_edge_node_is_asked_for_its_agent() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let edge = world.lab.site(Host::Edge1);
        let run = edge.file("run");
        std::fs::create_dir_all(run.join("agent"))?;
        std::os::unix::fs::symlink(edge.file("agent.sock"), run.join("agent/admin.sock"))?;
        let status = || -> Result<Value> {
            let mut command = edge.command(workspace::binary("culvert"));
            command
                .args(["status", "-o", "json"])
                .env("CULVERT_RUN_DIR", &run);
            Ok(serde_json::from_slice(&command.output()?.stdout)?)
        };
        let well = status()?;
        ensure!(well["edge"][0]["program"] == "culvert-agent", "{well:#}");
        ensure!(well["verdict"] == "ok", "{well:#}");
        world.culvert.agent(0).kill()?;
        let gone = status()?;
        ensure!(gone["verdict"] == "failure", "{gone:#}");
        Ok(())
    });
}

#[test]
fn status_waits_until_nothing_is_wrong() {
    world::prepared(EDGES, three, |world| {
        world.culvert.agent(1).kill()?;
        world.culvert.wait_offline(Host::Edge2, PATIENCE)?;
        let people = People::start(world)?;
        let mut command = people.command(workspace::binary("culvert"));
        command.args(["status", "--local", "--wait=120s"]);
        let mut waiting = world
            .lab
            .site(Host::Cloud)
            .start_process("waiting", &mut command)?;
        wait::until("it says what it waits for", PATIENCE, || {
            waiting.check()?;
            ensure!(waiting.log().contains("edge-2"), "{}", waiting.log());
            Ok(())
        })?;
        // Its first tunnel ends the wait.
        let restarted = world.culvert.restart_agent(1, Host::Edge2);
        restarted.and_then(|()| {
            wait::until("it ends", PATIENCE, || {
                ensure!(waiting.check().is_err(), "it runs on");
                ensure!(waiting.log().contains("0 offline"), "{}", waiting.log());
                Ok(())
            })
        })
    });
}

#[test]
fn without_anything_to_ask_it_says_how_to_name_somebody() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let done = Command::new(workspace::binary("culvert"))
        .arg("status")
        .env("CULVERT_RUN_DIR", folder.path())
        .env("KUBECONFIG", folder.path().join("none"))
        .env("HOME", folder.path())
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.code() == Some(1), "{done:?}");
    ensure!(
        said.contains("--ssh") && said.contains("--kubeconfig"),
        "{said}"
    );
    Ok(())
}

/// What is left of time for a host that never answers is not waited for.
#[test]
fn a_host_that_takes_everything_and_says_nothing_is_given_up() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let _silent = std::os::unix::net::UnixListener::bind(folder.path().join("control.sock"))?;
    std::fs::create_dir(folder.path().join("proxy"))?;
    let _pages = std::os::unix::net::UnixListener::bind(folder.path().join("proxy/admin.sock"))?;
    let mut command = Command::new("timeout");
    command
        .arg(Duration::from_secs(60).as_secs().to_string())
        .arg(workspace::binary("culvert"))
        .args(["nodes", "--local", "--timeout", "1s"])
        .env("CULVERT_RUN_DIR", folder.path());
    let done = command.output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.code() == Some(1), "{done:?}");
    ensure!(said.contains("no answer within 1 s"), "{said}");
    Ok(())
}

/// The address that `culvert dashboard` prints, as port and path.
fn printed_address(log: &str) -> Result<(u16, String)> {
    let line = log.lines().find(|line| line.starts_with("http://"));
    let rest = line.and_then(|line| line.strip_prefix("http://127.0.0.1:"));
    let (port, path) = rest
        .and_then(|rest| rest.split_once('/'))
        .with_context(|| format!("no address: {log}"))?;
    Ok((port.parse()?, format!("/{path}")))
}

#[test]
fn the_dashboard_shows_all_proxies_and_nodes_and_leaves_at_an_interrupt() {
    with_three(|world, _proxies| {
        let people = People::start(world)?;
        people.wait_well()?;
        world.failing_client(&Client::talk(format!("edge-1:{CLOSED}"), ""))?;
        world.culvert.agent(1).kill()?;
        world.culvert.wait_offline(Host::Edge2, PATIENCE)?;
        let cloud = world.lab.site(Host::Cloud);
        let mut command = people.command(workspace::binary("culvert"));
        command.args(["dashboard", "--interval", "1s", "--local"]);
        command.args(["--ssh", "cloud-5", "--ssh", "cloud-9"]);
        let mut dashboard = cloud.start_process("dashboard", &mut command)?;
        let (port, path) = wait::until("it says where", PATIENCE, || {
            dashboard.check()?;
            printed_address(&dashboard.log())
        })?;
        wait::until("the page has all of it", PATIENCE, || {
            let page = cloud.http_get(port, &path)?;
            // The dead host and the offline node.
            for text in ["edge-1", "edge-2", "cloud-9", "refused", "2 problems"] {
                ensure!(page.contains(text), "no {text}: {page}");
            }
            Ok(())
        })?;
        let node = cloud.http_get(port, &format!("{path}node/edge-1"))?;
        for text in ["directory", "tunnel", "Hop by hop"] {
            ensure!(node.contains(text), "no {text}: {node}");
        }
        let mut foreign = cloud.command("curl");
        let url = format!("http://127.0.0.1:{port}{path}");
        foreign.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &url]);
        let refused = workspace::output(foreign.args(["-H", "Host: rebound.example"]))?;
        ensure!(refused.trim() == "403", "{refused}");
        dashboard.signal(Signal::SIGINT)?;
        wait::until("it ends", PATIENCE, || {
            ensure!(dashboard.check().is_err(), "it runs on");
            Ok(())
        })
    });
}

#[test]
fn top_follows_keys_and_leaves_the_terminal_as_it_was() {
    world::prepared(EDGES, three, |world| {
        let people = People::start(world)?;
        let keys = people.folder.join("keys");
        workspace::output(Command::new("mkfifo").arg(&keys))?;
        let line = format!(
            "stty cols 100 rows 30; exec {} top --local --interval 1s",
            workspace::binary("culvert").display()
        );
        let mut command = people.command("sh");
        command
            .args([
                "-c",
                "exec script -q -e -f -c \"$1\" /dev/null < \"$2\"",
                "sh",
            ])
            .arg(line)
            .arg(&keys)
            .env("TERM", "xterm-256color");
        let mut top = world
            .lab
            .site(Host::Cloud)
            .start_process("top", &mut command)?;
        let mut typed = std::fs::OpenOptions::new().write(true).open(&keys)?;
        wait::until("it shows the nodes", PATIENCE, || {
            top.check()?;
            for text in ["edge-1", "edge-2", "2/2"] {
                ensure!(top.log().contains(text), "no {text}: {}", top.log());
            }
            Ok(())
        })?;
        typed.write_all(b"\r")?;
        wait::until("it shows the way to the chosen node", PATIENCE, || {
            top.check()?;
            // What is on the screen already is not sent once more.
            let words = ["directory", "steering", "tunnel"];
            let is_there = words.iter().any(|word| top.log().contains(word));
            ensure!(is_there, "{}", top.log());
            Ok(())
        })?;
        typed.write_all(b"xq")?;
        wait::until("it ends", PATIENCE, || {
            ensure!(top.check().is_err(), "it runs on");
            Ok(())
        })?;
        ensure!(top.log().contains("\u{1b}[?1049l"), "{:?}", top.log());
        Ok(())
    });
}

/// What a client sends, which nothing but its backend may see.
const PAYLOAD: &str = "sesame-open-7718";

/// The lines of all private keys below a folder, one of each.
fn key_lines(folder: &Path, lines: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = path.symlink_metadata()?;
        if metadata.is_dir() {
            key_lines(&path, lines)?;
        } else if metadata.is_file()
            && let Ok(text) = std::fs::read_to_string(&path)
            && let Some((_, key)) = text.split_once("PRIVATE KEY-----\n")
        {
            lines.extend(key.lines().next().map(str::to_owned));
        }
    }
    Ok(())
}

/// All that is in an archive, with the paths.
fn unpacked(file: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new("tar");
    workspace::output(command.arg("-xzf").arg(file).arg("-C").arg(folder.path()))?;
    let mut command = Command::new("grep");
    // Each line after the path of its file.
    command
        .args(["-r", "-a", ""])
        .arg(".")
        .current_dir(folder.path());
    workspace::output(&mut command)
}

/// Who a client says it is.
const USER: &str = "grace@corp.example";

#[test]
fn a_bundle_has_every_host_but_no_secret_and_on_request_no_name() {
    with_three(|world, [_second, third]| {
        ensure!(
            world.talk(&format!("edge-1:{ECHO}"), PAYLOAD)? == PAYLOAD,
            "the echo"
        );
        let join = world.culvert.create_token(Host::Edge2, &[])?;
        let mut words = join.iter().skip_while(|word| *word != "--token");
        let token = words.nth(1).context("no token")?;
        let mut secrets = vec![PAYLOAD.to_owned()];
        secrets.extend(token.rsplit('.').next().map(str::to_owned));
        for host in Host::ALL {
            key_lines(world.lab.site(host).folder(), &mut secrets)?;
        }
        ensure!(secrets.len() > 4, "few secrets: {secrets:?}");
        world.culvert.agent(1).kill()?;
        world.culvert.wait_offline(Host::Edge2, PATIENCE)?;
        let people = People::start(world)?;
        let mut open = connect::unix_socket(world)?;
        open.write_all(&connect::request_of(USER, &format!("edge-1:{ECHO}")))?;
        third.signal(Signal::SIGSTOP)?;
        let bundles = [&[][..], &["--anonymize"]].map(|flags| bundle(&people, flags));
        third.signal(Signal::SIGCONT)?;
        let [plain, anonymous] = bundles;
        let plain = plain?;
        let anonymous = anonymous?;
        for secret in &secrets {
            ensure!(
                !plain.contains(secret.as_str()),
                "{secret} is in the bundle"
            );
        }
        for part in [
            "index.html",
            "status.json",
            "why/edge-2.json",
            "hosts/cloud-5/check.json",
            "culvert-proxy/debug/tunnels.txt",
            "culvert-redirector/debug/installed.txt",
            "nodes/edge-1/culvert-agent/readyz.txt",
        ] {
            ensure!(plain.contains(part), "no {part}: {plain:.4000}");
        }
        // The stopped one and the dead one are in the index.
        for host in ["cloud-6", "cloud-9"] {
            let pages = format!("hosts/{host}/culvert-proxy/");
            ensure!(plain.contains(&format!("{pages}index.txt")), "no {host}");
            ensure!(
                !plain.contains(&format!("{pages}readyz.txt")),
                "{host} answers"
            );
        }
        for name in ["edge-1", "edge-2", "cloud-9", "198.18.", USER] {
            ensure!(plain.contains(name), "no {name} in the bundle with names");
            ensure!(
                !anonymous.contains(name),
                "{name} is in the bundle without names"
            );
        }
        Ok(())
    });
}

fn bundle(people: &People<'_>, flags: &[&str]) -> Result<String> {
    let file = people.folder.join(format!("bundle{}.tar.gz", flags.len()));
    let mut command = people.command(workspace::binary("culvert"));
    command.args(["bundle", "--local", "--timeout", "8s"]);
    command.args(["--ssh", "cloud-5", "--ssh", "cloud-6", "--ssh", "cloud-9"]);
    workspace::output(command.args(flags).arg(&file))?;
    unpacked(&file)
}

#[test]
fn connect_and_forward_lead_to_a_port_of_a_node_and_an_interrupt_leaves_nothing() {
    with_three(|world, _proxies| {
        let people = People::start(world)?;
        people.wait_well()?;
        let culvert = workspace::binary("culvert");
        let mut echo = people.command("sh");
        let line = "seq 100000 | \"$0\" connect \"$1\" --local --ssh cloud-5 | tail -n 1";
        echo.args(["-c", line])
            .arg(&culvert)
            .arg(format!("edge-1:{ECHO}"));
        let said = workspace::output(&mut echo)?;
        ensure!(said.trim() == "100000", "{said}");
        let refused = people.run(&["connect", &format!("edge-1:{CLOSED}"), "--local"])?;
        ensure!(refused.status.code() == Some(1), "{refused:?}");

        let cloud = world.lab.site(Host::Cloud);
        let mut command = people.command(&culvert);
        command.args(["forward", &format!("edge-1:{ECHO}"), "--ssh", "cloud-5"]);
        command.args(["--listen", "127.0.0.1:7481"]);
        let mut forward = cloud.start_process("forward", &mut command)?;
        wait::until("it listens", PATIENCE, || {
            forward.check()?;
            ensure!(
                forward.log().contains("127.0.0.1:7481"),
                "{}",
                forward.log()
            );
            Ok(())
        })?;
        let mut client = cloud.command("bash");
        let line = "exec 3<>/dev/tcp/127.0.0.1/7481; echo through >&3; exec cat <&3";
        client.args(["-c", line]);
        let open = cloud.start_process("client", &mut client)?;
        wait::until("an answer comes through", PATIENCE, || {
            ensure!(open.log().contains("through"), "{}", open.log());
            Ok(())
        })?;
        forward.signal(Signal::SIGINT)?;
        wait::until("nothing of it is left", PATIENCE, || {
            ensure!(forward.check().is_err(), "it runs on");
            Ok(())
        })?;
        world.wait_for_no_streams()
    });
}

#[test]
fn a_connection_that_is_cut_does_not_look_like_one_that_ended() {
    with_three(|world, _proxies| {
        let people = People::start(world)?;
        people.wait_well()?;
        let cloud = world.lab.site(Host::Cloud);
        let mut command = people.command(workspace::binary("culvert"));
        command.args(["forward", &format!("edge-1:{ECHO}"), "--ssh", "cloud-5"]);
        command.args(["--listen", "127.0.0.1:7481"]);
        let forward = cloud.start_process("forward", &mut command)?;
        wait_logged(&forward, "127.0.0.1:7481")?;
        let mut client = cloud.command("bash");
        let line = "exec 3<>/dev/tcp/127.0.0.1/7481; echo through >&3; cat <&3; echo \"status $?\"";
        client.args(["-c", line]);
        let forwarded = cloud.start_process("client", &mut client)?;
        wait_logged(&forwarded, "through")?;
        let local = Connected::start(&people, &["--local"])?;
        let by_ssh = Connected::start(&people, &["--ssh", "cloud-5"])?;
        world.culvert.agent(0).kill()?;
        local.wait_failed().context("the agent is lost")?;
        by_ssh.wait_failed().context("the agent is lost, by ssh")?;
        wait_logged(&forwarded, "status 1")?;

        world.culvert.restart_agent(0, Host::Edge1)?;
        people.wait_well()?;
        let local = Connected::start(&people, &["--local"])?;
        world.culvert.proxy.kill()?;
        local.wait_failed().context("the proxy has ended")
    });
}

fn wait_logged(process: &Process, words: &str) -> Result<()> {
    wait::until(words, PATIENCE, || {
        ensure!(process.log().contains(words), "{}", process.log());
        Ok(())
    })
}

/// `culvert connect` with the echo of edge-1, whose input is open.
struct Connected {
    process: Child,
    _input: ChildStdin,
}

impl Connected {
    fn start(people: &People<'_>, hosts: &[&str]) -> Result<Self> {
        let mut command = people.command(workspace::binary("culvert"));
        command.args(["connect", &format!("edge-1:{ECHO}")]);
        command.args(hosts).args(["--timeout", "30s"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let mut input = process.stdin.take().context("no input")?;
        input.write_all(b"through")?;
        let mut echoed = [0; 7];
        let mut output = process.stdout.take().context("no output")?;
        output.read_exact(&mut echoed)?;
        ensure!(&echoed == b"through", "{echoed:?}");
        Ok(Self {
            process,
            _input: input,
        })
    }

    fn wait_failed(mut self) -> Result<()> {
        wait::until("it ends", PATIENCE, || {
            self.process.try_wait()?.context("it runs").map(drop)
        })?;
        let status = self.process.wait()?;
        ensure!(!status.success(), "the cut looks like an end");
        Ok(())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
