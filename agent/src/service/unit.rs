//! The text of the agent's unit. Pure.

use std::path::Path;

use anyhow::{Result, ensure};

/// As packages and archives have it.
const UNIT: &str = include_str!("../../../deploy/systemd/culvert-agent.service");
/// The program in it.
const PROGRAM: &str = "/usr/local/bin/culvert-agent";
/// The line that starts the program.
const START: &str = "ExecStart=";
/// Folders that the unit's sandbox hides, or that are emptied.
const HIDDEN: [&str; 6] = ["/home", "/root", "/run", "/tmp", "/var/tmp", "/dev"];

/// The unit that runs this file.
///
/// # Errors
/// The service could not run it.
pub(super) fn installed_unit(program: &Path) -> Result<String> {
    let text = program.display().to_string();
    ensure!(
        !HIDDEN.iter().any(|folder| program.starts_with(folder)),
        "--service: a service cannot run {text}: `install -m 0755 {text} {PROGRAM}`, and run the \
         command with that"
    );
    ensure!(
        text.chars().all(is_plain),
        "--service: the path {text:?} has letters that systemd reads in its own way: `install -m \
         0755` it as {PROGRAM}"
    );
    Ok(UNIT.replace(PROGRAM, &text))
}

/// Whether systemd reads it as it stands in a command line.
fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "/._-".contains(letter)
}

/// The first setting in which one unit differs from the other. The package's unit runs the program
/// of the package, and leads to its manual page.
pub(super) fn difference(found: &str, expected: &str) -> Option<String> {
    let found = settings(found);
    let expected = settings(expected);
    for line in &found {
        if !expected.contains(line) {
            return Some(format!("it has {line}"));
        }
    }
    for line in &expected {
        if !found.contains(line) {
            return Some(format!("it lacks {line}"));
        }
    }
    None
}

/// The lines that say what the service is, whichever file it runs.
fn settings(unit: &str) -> Vec<String> {
    let mut settings = Vec::new();
    for line in unit.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with("Documentation=") {
            continue;
        }
        match line.strip_prefix(START) {
            Some(command) => {
                let name = command.rsplit('/').next().unwrap_or_default();
                settings.push(format!("{START}{name}"));
            }
            None => settings.push(line.to_owned()),
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_runs_the_program_where_it_is() {
        let unit = installed_unit(Path::new("/opt/culvert/culvert-agent")).unwrap();
        assert!(
            unit.contains("\nExecStart=/opt/culvert/culvert-agent\n"),
            "{unit}"
        );
    }

    #[test]
    fn a_program_that_the_service_could_not_run_is_refused() {
        for path in [
            "/home/a/culvert-agent",
            "/root/culvert-agent",
            "/tmp/culvert-agent",
            "/opt/my programs/culvert-agent",
            "/opt/%n/culvert-agent",
        ] {
            let refused = installed_unit(Path::new(path)).unwrap_err().to_string();
            assert!(
                refused.contains(path) && refused.contains(PROGRAM),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_unit_of_a_package_is_equal_and_that_of_somebody_else_is_not() {
        let expected = installed_unit(Path::new(PROGRAM)).unwrap();
        let package = expected
            .replace("/usr/local/bin/", "/usr/bin/")
            .replace("Documentation=file", "Documentation=man");
        assert_eq!(difference(&package, &expected), None);
        let other_user = expected.replace("User=culvert", "User=root");
        let found = difference(&other_user, &expected).unwrap();
        assert!(found.contains("User=root"), "{found}");
        let less = expected.replace("NoNewPrivileges=yes\n", "");
        let found = difference(&less, &expected).unwrap();
        assert!(found.contains("NoNewPrivileges"), "{found}");
        let other_program = expected.replace("culvert-agent\n", "something --else\n");
        assert!(difference(&other_program, &expected).is_some());
    }
}
