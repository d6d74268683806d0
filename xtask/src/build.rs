//! Which commit the files are made of, and when it was made.

use std::process::Command;

use anyhow::{Result, bail};
use culvert_lab::workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As many digits of the commit in any clone, however many commits it has.
const DIGITS: &str = "--abbrev=12";

/// A version of the source.
#[derive(Debug)]
pub struct Build {
    commit: String,
    /// Seconds since 1970, for `SOURCE_DATE_EPOCH`.
    pub(crate) epoch: String,
    /// In UTC, as `2026-11-26 06:42:49`.
    time: String,
    is_release: bool,
}

impl Build {
    /// The commit of the work tree. Changes that are not committed are noted.
    ///
    /// # Errors
    /// It is not a work tree of git.
    pub fn of_work_tree() -> Result<Self> {
        let shown = git(&[
            "show",
            "--no-patch",
            DIGITS,
            "--date=format-local:%Y-%m-%d %H:%M:%S",
            "--format=%h%n%ct%n%cd",
        ])?;
        let lines: Vec<&str> = shown.lines().collect();
        let [commit, epoch, time, ..] = lines[..] else {
            bail!("git show prints three lines");
        };
        let mut commit = commit.to_owned();
        let tags = git(&["tag", "--points-at", "HEAD"])?;
        let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        if is_changed {
            commit.push_str("+changes");
        }
        let is_release = !is_changed && tags.lines().any(|tag| tag == format!("v{VERSION}"));
        Ok(Self {
            commit,
            epoch: epoch.to_owned(),
            time: time.to_owned(),
            is_release,
        })
    }

    /// What the programs print for `--version`.
    pub(crate) fn program_version(&self) -> String {
        let date = self.time.split(' ').next().unwrap_or_default();
        format!("{VERSION} ({} {date})", self.commit)
    }

    /// In the form of ISO 8601.
    pub(crate) fn timestamp(&self) -> String {
        self.time.replace(' ', "T") + "Z"
    }

    /// The version of packages: that of the tag `v...`. Without the tag it is older than that, and
    /// newer than packages of earlier commits.
    pub fn package_version(&self) -> String {
        if self.is_release {
            return VERSION.to_owned();
        }
        let digits: String = self.time.chars().filter(char::is_ascii_digit).collect();
        format!("{VERSION}~{digits}.{}", self.commit)
    }
}

fn git(args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(args).current_dir(workspace::root());
    workspace::output(git.env("TZ", "UTC"))
}

#[cfg(test)]
mod tests {
    use culvert_lab::skip;

    use super::*;

    fn build(time: &str, is_release: bool) -> Build {
        Build {
            commit: "73f7c30bd12f".to_owned(),
            epoch: "1764139369".to_owned(),
            time: time.to_owned(),
            is_release,
        }
    }

    #[test]
    fn a_program_names_commit_and_date() {
        let said = build("2026-11-26 06:42:49", true).program_version();
        assert_eq!(said, format!("{VERSION} (73f7c30bd12f 2026-11-26)"));
    }

    #[test]
    fn dpkg_orders_commits_by_time_and_the_release_last() {
        if workspace::find_program("dpkg").is_none() {
            return skip::skip("there is no dpkg here");
        }
        let versions = [
            build("2026-11-25 23:59:59", false).package_version(),
            build("2026-11-26 06:42:49", false).package_version(),
            build("2026-11-25 23:59:59", true).package_version(),
        ];
        for pair in versions.windows(2) {
            let mut dpkg = Command::new("dpkg");
            dpkg.args(["--compare-versions", &pair[0], "lt", &pair[1]]);
            assert!(dpkg.status().expect("run dpkg").success(), "{pair:?}");
        }
    }
}
