//! `culvert-agent join --service`: runs the agent as a service of systemd, as the packages and
//! docs/install.md do it: the user, the unit of `deploy/systemd`, and its start.

mod settings;
mod unit;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_daemon::{AdminSocket, write_atomic};
use nix::unistd::{User, geteuid};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use settings::Settings;
use unit::installed_unit;

/// The name of the unit.
const UNIT: &str = "culvert-agent.service";
/// Where an administrator's units are.
const UNIT_FOLDER: &str = "/etc/systemd/system";
/// The settings of the unit. systemd reads them as root, and they may have a password.
const SETTINGS: &str = "/etc/culvert/agent.env";
const SETTINGS_MODE: u32 = 0o600;
/// The user of the unit, as the packages make it.
const USER: &str = "culvert";
/// The state directory of the unit.
const STATE_DIR: &str = "/var/lib/culvert/agent";
/// systemd makes it (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
/// Longer than the unit may take to start: it reports after 20 s at the latest.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for the first tunnel, after the start.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between two looks at the agent's page.
const PAUSE: Duration = Duration::from_millis(500);

/// A service that can be started once the node has joined.
#[derive(Debug)]
pub(crate) struct Service {
    /// The text of a unit that is to be written. `None`: there is one.
    unit: Option<String>,
}

impl Service {
    /// Checks all that a start needs, before a token is used up, and makes the user.
    ///
    /// # Errors
    /// There is no systemd, this is not root, the state is elsewhere, the program is where the
    /// service cannot run it, there is another unit of the name, or the user cannot be made.
    pub(crate) async fn prepare(state_dir: &Path) -> Result<Self> {
        ensure!(
            Path::new(SYSTEMD).is_dir(),
            "--service: systemd does not run this host: leave --service out, and let what starts \
             services here run `culvert-agent run`"
        );
        ensure!(
            geteuid().is_root(),
            "--service: only root can install a service: run the command as root"
        );
        ensure!(
            state_dir == Path::new(STATE_DIR),
            "--service: the service has its state in {STATE_DIR}: leave --state-dir out"
        );
        let program = std::env::current_exe().context("find this program's file")?;
        let expected = installed_unit(&program)?;
        let unit = match existing_unit().await? {
            None => Some(expected),
            Some(path) => {
                ensure_equal(&path, &expected)?;
                None
            }
        };
        make_user().await?;
        Ok(Self { unit })
    }

    /// Writes the settings and the unit, and starts the service now and at each boot.
    ///
    /// # Errors
    /// They cannot be written, or systemd does not start it.
    pub(crate) async fn start(self, settings: &Settings) -> Result<()> {
        write_settings(settings).with_context(|| format!("write {SETTINGS}"))?;
        if let Some(text) = self.unit {
            let path = Path::new(UNIT_FOLDER).join(UNIT);
            write_atomic(&path, text.as_bytes(), 0o644)
                .with_context(|| format!("write {}", path.display()))?;
            systemctl(&["daemon-reload"]).await?;
        }
        systemctl(&["enable", UNIT]).await?;
        // An agent that runs already has the former certificate.
        systemctl(&["restart", UNIT]).await?;
        Ok(())
    }
}

/// Waits until the agent of the service has a tunnel.
///
/// # Errors
/// It has none in time.
pub(crate) async fn wait_for_tunnel(admin_socket: &Path) -> Result<()> {
    let deadline = Instant::now() + TUNNEL_TIMEOUT;
    loop {
        let missing = match AdminSocket(admin_socket).get("/readyz").await {
            Ok((status, _)) if status.is_success() => return Ok(()),
            Ok((_, text)) => text.trim().replace('\n', "; "),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= deadline {
            bail!(
                "the node has joined and its service runs, but it has no tunnel after {} s: \
                 {missing}. It tries again until it has one; `journalctl -u culvert-agent` says \
                 more. Settings of the service, such as HTTPS_PROXY, are in {SETTINGS}",
                TUNNEL_TIMEOUT.as_secs()
            );
        }
        sleep(PAUSE).await;
    }
}

fn write_settings(settings: &Settings) -> Result<()> {
    let path = Path::new(SETTINGS);
    let before = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let after = settings.added_to(&before);
    if after == before {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    write_atomic(path, after.as_bytes(), SETTINGS_MODE)?;
    println!("{SETTINGS} has what this join was given: {settings}.");
    Ok(())
}

/// The file of the unit that systemd has of this name.
async fn existing_unit() -> Result<Option<PathBuf>> {
    let shown = systemctl(&["show", "--property=FragmentPath", "--value", UNIT]).await?;
    match shown.trim() {
        "" => Ok(None),
        path => Ok(Some(path.into())),
    }
}

fn ensure_equal(path: &Path, expected: &str) -> Result<()> {
    let found =
        std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    if let Some(line) = unit::difference(&found, expected) {
        bail!(
            "--service: {} is another unit than that of this version: {line}. To replace it, remove \
             the file and repeat the command. To use it, leave --service out and run `systemctl \
             enable --now culvert-agent` after the join",
            path.display()
        );
    }
    Ok(())
}

async fn make_user() -> Result<()> {
    let found = User::from_name(USER).with_context(|| format!("look up the user {USER}"))?;
    if found.is_some() {
        return Ok(());
    }
    let mut useradd = Command::new("useradd");
    useradd.args(["--system", "--no-create-home", "--home-dir", "/nonexistent"]);
    useradd.args(["--shell", "/usr/sbin/nologin", USER]);
    let made = output(&mut useradd).await;
    made.with_context(|| format!("--service: make the system user {USER}"))?;
    Ok(())
}

async fn systemctl(words: &[&str]) -> Result<String> {
    let ran = output(Command::new("systemctl").args(words)).await;
    ran.with_context(|| format!("--service: systemctl {}", words.join(" ")))
}

/// What a command prints.
async fn output(command: &mut Command) -> Result<String> {
    let ran = timeout(COMMAND_TIMEOUT, command.kill_on_drop(true).output()).await;
    let seconds = COMMAND_TIMEOUT.as_secs();
    let ran = ran.with_context(|| format!("it has not ended within {seconds} s"))?;
    let Output {
        status,
        stdout,
        stderr,
    } = ran.context("start it")?;
    ensure!(
        status.success(),
        "{status}: {}",
        String::from_utf8_lossy(&stderr).trim()
    );
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
