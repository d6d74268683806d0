//! How a join reached the proxies, as lines of the file with the service's settings: the service has
//! to reach them in the same way. Pure.

use std::fmt;

/// What the service needs too, by variables.
pub(crate) struct Settings(Vec<(&'static str, String)>);

impl Settings {
    /// `variable` looks up an environment variable. The lower-case name of one counts where the
    /// other is not set.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<String>, tunnel_mss: Option<u16>) -> Self {
        let mut settings = Vec::new();
        for (name, lower) in [("HTTPS_PROXY", "https_proxy"), ("NO_PROXY", "no_proxy")] {
            for given in [name, lower] {
                let value = variable(given).unwrap_or_default();
                let value = value.replace(char::is_control, " ").trim().to_owned();
                if !value.is_empty() {
                    settings.push((name, value));
                    break;
                }
            }
        }
        if let Some(bytes) = tunnel_mss {
            settings.push(("CULVERT_TUNNEL_MSS", bytes.to_string()));
        }
        Self(settings)
    }

    /// The file with these settings in the place of earlier values. All else stays.
    pub(super) fn added_to(&self, file: &str) -> String {
        let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
        for (name, value) in &self.0 {
            let setting = format!("{name}={}", quoted(value));
            // The last one counts.
            match lines
                .iter()
                .rposition(|line| variable_of(line) == Some(name))
            {
                Some(place) => lines[place] = setting,
                None => lines.push(setting),
            }
        }
        if lines.is_empty() {
            return String::new();
        }
        lines.join("\n") + "\n"
    }
}

impl fmt::Display for Settings {
    /// Names alone: a value may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, _)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name}")?;
        }
        Ok(())
    }
}

/// The variable that a line sets (systemd.exec(5), `EnvironmentFile=`).
fn variable_of(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with(['#', ';']) {
        return None;
    }
    let (name, _) = line.split_once('=')?;
    Some(name.trim_end())
}

/// A value as systemd reads it back.
fn quoted(value: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ":/@.,%+-_[]*".contains(letter);
    if value.chars().all(is_plain) {
        return value.to_owned();
    }
    let mut quoted = "\"".to_owned();
    for letter in value.chars() {
        if "\"\\`$".contains(letter) {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[(&str, &str)], tunnel_mss: Option<u16>) -> Settings {
        let value = |name: &str| {
            let mut given = given.iter();
            let (_, value) = given.find(|(given, _)| *given == name)?;
            Some((*value).to_owned())
        };
        Settings::of(value, tunnel_mss)
    }

    #[test]
    fn the_file_gets_what_the_join_was_given_and_keeps_the_rest() {
        let proxy = "http://user:p%40ss@proxy.corp:3128";
        let given = [("https_proxy", proxy), ("NO_PROXY", "10.0.0.0/8, .corp")];
        let settings = settings(&given, Some(1200));
        let before = "# HTTPS_PROXY=here\nCULVERT_PORTS=22\nHTTPS_PROXY=http://former:1\n";
        let after = settings.added_to(before);
        assert_eq!(
            after,
            "# HTTPS_PROXY=here\nCULVERT_PORTS=22\nHTTPS_PROXY=http://user:p%40ss@proxy.corp:3128\n\
             NO_PROXY=\"10.0.0.0/8, .corp\"\nCULVERT_TUNNEL_MSS=1200\n"
        );
        assert_eq!(settings.added_to(&after), after);
        assert!(!settings.to_string().contains("p%40ss"));
    }

    #[test]
    fn a_join_without_settings_changes_no_file() {
        let settings = settings(&[("HTTPS_PROXY", "")], None);
        for file in ["", "A=b\n"] {
            assert_eq!(settings.added_to(file), file);
        }
    }

    #[test]
    fn a_value_cannot_end_its_line_or_its_quotes() {
        let settings = settings(&[("NO_PROXY", "a\nX=y \"$b\\")], None);
        assert_eq!(settings.added_to(""), "NO_PROXY=\"a X=y \\\"\\$b\\\\\"\n");
    }
}
