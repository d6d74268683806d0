//! docs/five-machines.md as it stands: its commands, and its configuration of Prometheus.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, page, workspace};

use crate::world;

/// The machines, by the names that they get.
const MACHINES: [(&str, Host); 2] = [("machine-1", Host::Edge1), ("machine-2", Host::Edge2)];
/// The folder of the page. It is in the home directory.
const FOLDER: &str = "/home/me/culvert";
/// Prometheus, on the cloud's loopback.
const WEB: u16 = 9090;

#[test]
fn the_commands_of_the_page_lead_to_a_prometheus_that_scrapes_every_machine() {
    world::in_lab(|lab| {
        let page = Page::read()?;
        let user = User::of(lab)?;
        let [keys, start, token, check, .., scrape] = &page.commands[..] else {
            anyhow::bail!("the page has other commands: {:?}", page.commands);
        };
        user.run(keys)?;
        let (settings, start) = start.split_once('\n').context("settings and a program")?;
        let mut proxy = user.start("proxy", &format!("{settings}\nexec {start}"))?;
        wait::until("the proxy is ready", PATIENCE, || {
            proxy.check()?;
            user.get(PROXY_ADMIN, "/readyz").map(drop)
        })?;
        user.check_sockets()?;
        let mut running = Vec::new();
        for (name, host) in MACHINES {
            let create = token.replace("machine-1", name);
            let join = user.run(&format!("{settings}\n{create}"))?;
            running.extend(machine(lab, host, &join)?);
        }
        let config = user.home.join("prometheus.yml");
        std::fs::write(&config, page.prometheus(&user)?)?;
        let script = format!(
            "exec {} --config.file={} --storage.tsdb.path={} --web.listen-address=127.0.0.1:{WEB}",
            Unpacked::Prometheus.program().display(),
            config.display(),
            user.home.join("data").display()
        );
        let mut prometheus = user.start("prometheus", &script)?;
        for (name, host) in MACHINES {
            let path = format!("/api/v1/query?query=node_uname_info{{node=\"{name}\"}}");
            let own = format!("\"nodename\":\"{}\"", host.name());
            wait::until(&format!("Prometheus scrapes {name}"), PATIENCE, || {
                prometheus.check()?;
                let found = user.get(WEB, &path)?;
                ensure!(
                    found.contains(&own),
                    "{}",
                    user.get(WEB, "/api/v1/targets")?
                );
                Ok(())
            })?;
        }
        ensure!(check.ends_with(" check"), "{check}");
        user.run(&format!("{settings}\n{check}"))?;
        let asked = user.run(scrape)?;
        ensure!(asked.contains("\"machine-2:9100\""), "{asked}");
        ensure!(asked.contains("nodename=\"edge-1\""), "{asked}");
        Ok(())
    });
}

/// What a reader types and writes.
struct Page {
    /// What is typed as a user, for each block of commands.
    commands: Vec<String>,
    scrape: String,
}

impl Page {
    fn read() -> Result<Self> {
        let page = page::read("five-machines.md")?;
        let scrape = page::blocks(&page, "yaml").pop();
        Ok(Self {
            commands: page::typed(&page, "$ "),
            scrape: scrape.context("no configuration of Prometheus")?.to_owned(),
        })
    }

    /// The configuration, at the pace of a test.
    fn prometheus(&self, user: &User<'_>) -> Result<String> {
        ensure!(self.scrape.contains(FOLDER), "no {FOLDER}: {}", self.scrape);
        let here = user.home.join("culvert").display().to_string();
        let pace = "global: {scrape_interval: 1s, scrape_timeout: 1s}\n";
        Ok(pace.to_owned() + &self.scrape.replace(FOLDER, &here))
    }
}

/// A user in the cloud without root, and the programs in the path.
struct User<'lab> {
    lab: &'lab Lab,
    home: PathBuf,
}

impl<'lab> User<'lab> {
    fn of(lab: &'lab Lab) -> Result<Self> {
        let home = lab.site(Host::Cloud).file("home");
        std::fs::create_dir(&home)?;
        Ok(Self { lab, home })
    }

    /// What a script prints. It begins in the folder of the page, once that is there.
    fn run(&self, script: &str) -> Result<String> {
        workspace::output(&mut self.shell(script)?)
    }

    fn start(&self, name: &str, script: &str) -> Result<Process> {
        let site = self.lab.site(Host::Cloud);
        site.start_process(name, &mut self.shell(script)?)
    }

    fn get(&self, port: u16, path: &str) -> Result<String> {
        self.lab.site(Host::Cloud).http_get(port, path)
    }

    /// Fails if a Unix socket of the cloud is where a real user may not write: this one is still root.
    fn check_sockets(&self) -> Result<()> {
        let sockets = self.run("cat /proc/net/unix")?;
        let paths = sockets
            .lines()
            .filter_map(|line| Some(&line[line.find('/')?..]));
        let paths: Vec<_> = paths.collect();
        ensure!(!paths.is_empty(), "no sockets: {sockets}");
        for path in paths {
            ensure!(Path::new(path).starts_with(&self.home), "{path}");
        }
        Ok(())
    }

    fn shell(&self, script: &str) -> Result<Command> {
        let mut command = self.lab.site(Host::Cloud).command("setpriv");
        command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]);
        command.args(["sh", "-e", "-c"]);
        command.arg(format!("cd ~/culvert 2>/dev/null || cd\n{script}"));
        command.env("HOME", &self.home).env("PATH", path()?);
        Ok(command)
    }
}

/// Runs the printed command on a machine, then its agent and an exporter.
fn machine(lab: &Lab, host: Host, join: &str) -> Result<[Process; 2]> {
    let site = lab.site(host);
    let shell = |script: &str| -> Result<Command> {
        let mut command = site.command("sh");
        command.args(["-e", "-c", script]).env("PATH", path()?);
        // Where its files are: all machines of a lab have one disk.
        command.env("CULVERT_STATE_DIR", site.file("agent"));
        command.env("CULVERT_ADMIN_SOCKET", site.file("agent.sock"));
        Ok(command)
    };
    workspace::output(&mut shell(join)?)?;
    let mut agent = site.start_process("culvert-agent", &mut shell("exec culvert-agent run")?)?;
    wait::until("the agent is ready", PATIENCE, || {
        agent.check()?;
        site.http_get(AGENT_ADMIN, "/readyz").map(drop)
    })?;
    let mut exporter = site.command(Unpacked::NodeExporter.program());
    exporter.args(["--collector.disable-defaults", "--collector.uname"]);
    let exporter = site.start_process("exporter", &mut exporter)?;
    Ok([agent, exporter])
}

/// `PATH` with the programs before all others.
fn path() -> Result<OsString> {
    workspace::path_with_folder_of(&workspace::binary("culvert-proxy"))
}
