//! OpenSSH's server with one user, root, who has one key.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::unpacked::Unpacked;
use crate::workspace;

/// Starts sshd as root: `$1` its program, `$2` its configuration, `$3` a file for the users. The
/// machine need not have the user and the folder of sshd's unprivileged child.
const START: &str = r#"
  mkdir -p -m 755 /run/sshd
  echo 'sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin' | cat /etc/passwd - > "$3"
  mount --bind "$3" /etc/passwd
  exec "$1" -D -e -f "$2"
"#;

/// A server with its key, and the key of its user.
pub struct Sshd {
    folder: PathBuf,
}

impl Sshd {
    /// Makes the keys in a folder.
    ///
    /// # Errors
    /// ssh-keygen fails.
    pub fn make(folder: &Path) -> Result<Self> {
        for key in ["user", "server"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            workspace::output(command.arg(folder.join(key)))?;
        }
        let folder = folder.to_owned();
        Ok(Self { folder })
    }

    /// The user's key.
    #[must_use]
    pub fn user_key(&self) -> PathBuf {
        self.folder.join("user")
    }

    /// Where a client may have the keys of servers.
    #[must_use]
    pub fn known_hosts(&self) -> PathBuf {
        self.folder.join("known")
    }

    /// Writes there that this server is the one that a client calls `name`, and no other is known.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn make_known(&self, name: &str) -> Result<()> {
        let key = std::fs::read_to_string(self.folder.join("server.pub"));
        let key = key.context("the server's key")?;
        std::fs::write(self.known_hosts(), format!("{name} {key}")).context("known hosts")
    }

    /// Lets `unshare` be the server, with a line of its configuration that says where it listens.
    ///
    /// # Errors
    /// The configuration cannot be written.
    pub fn serve<'a>(&self, unshare: &'a mut Command, listen: &str) -> Result<&'a mut Command> {
        let configuration = self.folder.join("sshd_config");
        let text = format!(
            "{listen}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PidFile none\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
            self.folder.join("server").display(),
            self.folder.join("user.pub").display()
        );
        std::fs::write(&configuration, text).context("the server's configuration")?;
        Ok(unshare
            .args(["--mount", "sh", "-ec", START, "sh"])
            .arg(Unpacked::SshServer.program())
            .arg(configuration)
            .arg(self.folder.join("passwd"))
            .env("LD_LIBRARY_PATH", Unpacked::SshServer.libraries()))
    }
}
