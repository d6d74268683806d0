//! Names that nobody lists: of users, groups and service accounts, and of hosts that are not
//! Culvert's. They are found by what is around them in a text.

use std::collections::HashSet;
use std::net::IpAddr;

use super::KnownName;
use super::secrets::{REMOVED, Separator, closing};

/// The longest name that is one: DNS names and user names are not longer.
const MAX_NAME_BYTES: usize = 256;
/// Fields that have the name of a user or of a group.
const USER_FIELDS: [&str; 4] = ["user", "username", "user_claimed", "group"];
/// The field that has the name of an image, whose registry is a host.
const IMAGE_FIELD: &str = "image";
/// The start of a service account's name as a user.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// The start of a kubelet's.
const KUBELET: &str = "system:node:";
/// Names of users that every cluster or host has.
const USUAL_USERS: [&str; 8] = [
    REMOVED,
    "root",
    "nobody",
    "culvert",
    "git",
    "admin",
    "kubernetes-admin",
    "kubernetes-super-admin",
];
/// Ends of names that are no hosts, or hosts that everybody has.
const USUAL_ENDS: [&str; 12] = [
    "cluster.local",
    "default.svc",
    "edge.internal",
    "culvert.dev",
    "github.com",
    "go",
    "invalid",
    "k8s.io",
    "kubernetes.io",
    "rs",
    "service",
    "sock",
];

/// The names in a text, beside those that are known.
pub(super) fn found_names(text: &str, known: &HashSet<String>) -> Vec<KnownName> {
    let mut found = NameFinder {
        known,
        listed: HashSet::new(),
        names: Vec::new(),
    };
    for line in text.lines() {
        found.read_fields(line);
        found.read_accounts(line);
        found.read_urls(line);
        found.read_logins(line);
        found.read_ports(line);
    }
    found.names
}

struct NameFinder<'a> {
    known: &'a HashSet<String>,
    /// All of `names`.
    listed: HashSet<String>,
    names: Vec<KnownName>,
}

impl NameFinder<'_> {
    /// Values of fields in logs, JSON and messages of the API server.
    fn read_fields(&mut self, line: &str) {
        for (start, word) in letter_runs(line, is_field_letter) {
            let field = word.to_ascii_lowercase();
            let is_user = USER_FIELDS.contains(&field.as_str());
            if !is_user && field != IMAGE_FIELD {
                continue;
            }
            let after = &line[start + word.len()..];
            let Some(value) = value(&line[..start], after) else {
                continue;
            };
            if is_user {
                self.add_user(value);
            } else if let Some((registry, _)) = value.split_once('/') {
                self.add_host(registry);
            }
        }
    }

    /// Service accounts and kubelets, wherever they are.
    fn read_accounts(&mut self, line: &str) {
        for start in [SERVICE_ACCOUNT, KUBELET] {
            for (at, _) in line.match_indices(start) {
                // Each run of letters is read once.
                if line[..at].ends_with(|letter| is_name_letter(letter) || letter == ':') {
                    continue;
                }
                let end = line[at..].find(|letter| !is_name_letter(letter) && letter != ':');
                let end = end.map_or(line.len(), |end| at + end);
                self.add_user(line[at..end].trim_end_matches([':', '.']));
            }
        }
    }

    /// Hosts of URLs, and their logins.
    fn read_urls(&mut self, line: &str) {
        for (at, separator) in line.match_indices("://") {
            let rest = &line[at + separator.len()..];
            let end = rest
                .find(|letter: char| letter.is_whitespace() || "/?#\"'<>\\,;)".contains(letter));
            let authority = &rest[..end.unwrap_or(rest.len())];
            let host = match authority.rsplit_once('@') {
                Some((login, host)) => {
                    self.add_user(login);
                    host
                }
                None => authority,
            };
            self.add_host(host.split(':').next().unwrap_or(host));
        }
    }

    /// `LOGIN@HOST`, and addresses of mail, which are users.
    fn read_logins(&mut self, line: &str) {
        for (at, _) in line.match_indices('@') {
            let before = &line[..at];
            let start = before.rfind(|letter| !is_name_letter(letter) && letter != '+');
            let start = start.map_or(0, |start| {
                start + line[start..].chars().next().map_or(1, char::len_utf8)
            });
            let login = &before[start..];
            let after = &line[at + 1..];
            let end = after.find(|letter| !is_name_letter(letter));
            let host = after[..end.unwrap_or(after.len())].trim_end_matches('.');
            let is_unit = host.is_empty() || host.ends_with(".service");
            let is_version = host.starts_with(|letter: char| letter.is_ascii_digit());
            if is_unit || login.is_empty() || (is_version && host.parse::<IpAddr>().is_err()) {
                continue;
            }
            let is_mail = host.contains('.') && !is_version && !self.known.contains(host);
            if is_mail && !is_usual_user(login) {
                self.add_user(&line[start..at + 1 + host.len()]);
            } else {
                self.add_user(login);
                self.add_host(host);
            }
        }
    }

    /// `HOST:PORT`.
    fn read_ports(&mut self, line: &str) {
        for (start, word) in letter_runs(line, is_name_letter) {
            let after = &line[start + word.len()..];
            let is_port = after.starts_with(':')
                && after[1..].starts_with(|letter: char| letter.is_ascii_digit());
            if is_port {
                self.add_host(word);
            }
        }
    }

    fn add_user(&mut self, name: &str) {
        if let Some(node) = name.strip_prefix(KUBELET) {
            return self.add(node, "node");
        }
        if is_usual_user(name) {
            return;
        }
        self.add(name, "user");
    }

    /// A name with dots; of a host that is known, what comes after its name.
    fn add_host(&mut self, name: &str) {
        let name = name.trim_end_matches('.');
        if name.len() > MAX_NAME_BYTES {
            return;
        }
        let mut rest = name;
        while let Some((_, after)) = rest.split_once('.') {
            let first = &name[..name.len() - after.len() - 1];
            if self.known.contains(first) {
                if is_host(after) {
                    self.add(after, "domain");
                }
                return;
            }
            rest = after;
        }
        if is_host(name) {
            self.add(name, "host");
        }
    }

    fn add(&mut self, name: &str, kind: &'static str) {
        let is_name = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
        if !is_name || self.known.contains(name) || self.listed.contains(name) {
            return;
        }
        let name = name.to_owned();
        self.listed.insert(name.clone());
        self.names.push(KnownName { name, kind });
    }
}

/// What a field has: after `=`, in quotes, or of `"user NAME"` the rest of the string.
fn value<'a>(before: &str, after: &'a str) -> Option<&'a str> {
    let separator = Separator::of(after)?;
    let value = &after[separator.bytes..];
    let longest = value.char_indices().nth(MAX_NAME_BYTES);
    let value = longest.map_or(value, |(end, _)| &value[..end]);
    if let Some(quote) = separator.quote {
        let end = closing(value, quote)?;
        return Some(&value[..end]);
    }
    if separator.sign == Some('=') {
        let end = value
            .find(|letter: char| letter.is_whitespace() || "\"'\\,;&<>{}[]()".contains(letter));
        return Some(&value[..end.unwrap_or(value.len())]);
    }
    for quote in ["\\\"", "\"", "'"] {
        if before.ends_with(quote) && after.starts_with(' ') {
            let end = closing(value, quote)?;
            return Some(&value[..end]);
        }
    }
    None
}

/// Runs of letters of a kind, with where they are.
fn letter_runs(line: &str, is_letter: fn(char) -> bool) -> Vec<(usize, &str)> {
    let mut runs = Vec::new();
    let mut start = 0;
    for word in line.split(|letter| !is_letter(letter)) {
        if !word.is_empty() {
            runs.push((start, word));
        }
        start += word.len();
        start += line[start..].chars().next().map_or(0, char::len_utf8);
    }
    runs
}

fn is_field_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')
}

fn is_name_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-')
}

/// Culvert's own names stay.
fn is_usual_user(name: &str) -> bool {
    let account = match name.strip_prefix(SERVICE_ACCOUNT) {
        Some(account) => account.rsplit(':').next().unwrap_or_default(),
        None if name.starts_with("system:") => return true,
        None => name,
    };
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    is_number || account.starts_with("culvert-") || USUAL_USERS.contains(&account)
}

/// Whether it is the whole name of a host that not everybody has.
fn is_host(name: &str) -> bool {
    let Some((_, last)) = name.rsplit_once('.') else {
        return false;
    };
    let is_domain = last.len() > 1 && last.bytes().all(|byte| byte.is_ascii_alphabetic());
    let has_empty_label = name.split('.').any(str::is_empty);
    is_domain && !has_empty_label && !USUAL_ENDS.iter().any(|end| is_below(name, end))
}

fn is_below(name: &str, end: &str) -> bool {
    let start = name.strip_suffix(end);
    start.is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let known = HashSet::from(["cloud-1".to_owned()]);
        let names = found_names(text, &known).into_iter();
        names.map(|found| found.name).collect()
    }

    #[test]
    fn users_are_found_in_logs_json_and_messages() {
        for text in [
            "view opened user=ada client.addr=10.0.0.7:1 path=\"/view/control\"",
            "stream ended client.addr=\"user ada\" original_dst=\"edge-1:22\"",
            "{\"fields\":{\"client.addr\":\"user ada\"}}",
            "{\"log\": \"stream ended client.addr=\\\"user ada\\\" x\"}",
            "{\"user_claimed\": \"ada\"}",
            "user_claimed=\"ada\" node=\"edge-1\"",
            "pods is forbidden: User \"ada\" cannot list resource",
            "{\"message\": \"User \\\"ada\\\" cannot list\"}",
            "ssh ada@cloud-1 and ada@10.0.0.7",
            "ssh://ada@cloud-1:22",
            "groups: group=ada",
        ] {
            assert_eq!(found(text), ["ada"], "{text}");
        }
        for (text, user) in [
            ("client: \"user ada@corp.example\"", "ada@corp.example"),
            ("{\"user\":\"Ada Lovelace\"}", "Ada Lovelace"),
            (
                "User \"oidc:https://id.corp.example#ada\" may",
                "oidc:https://id.corp.example#ada",
            ),
            (
                "of system:serviceaccount:shop:ada.",
                "system:serviceaccount:shop:ada",
            ),
            ("user=system:node:far-1", "far-1"),
        ] {
            let found = found(text);
            assert!(found.iter().any(|name| name == user), "{text}: {found:?}");
        }
    }

    #[test]
    fn hosts_are_found_where_a_host_is_named() {
        for (text, name) in [
            (
                "https://api.prod.corp.example:6443/api",
                "api.prod.corp.example",
            ),
            (
                "advertised=\"cloud.corp.example:7400\"",
                "cloud.corp.example",
            ),
            (
                "\"image\": \"registry.corp.example/culvert-proxy:1\"",
                "registry.corp.example",
            ),
            ("root@bastion.corp.example", "bastion.corp.example"),
            ("cloud-1.corp.example:7400", "corp.example"),
        ] {
            assert_eq!(found(text), [name], "{text}");
        }
    }

    #[test]
    fn a_long_line_takes_no_long_time() {
        for part in ["user=\"", "system:node:", "a.", "@", "a@b.c:1"] {
            found(&part.repeat(1 << 16));
        }
    }

    #[test]
    fn what_everybody_has_is_not_found() {
        let text = "client.addr=\"uid 0 pid 12\" user=root user@1000.service crate@0.4.1 the user may \
            system:serviceaccount:culvert-system:culvert-proxy https://kubernetes.default.svc:443 \
            https://github.com/x main.rs:42 127.0.0.1:7409 user=system:anonymous 19:23:51 users: 3 \
            culvert_proxy::streams \"node-restriction.kubernetes.io/culvert-edge\" ssh://root@cloud-1:22 \
            http://localhost:80 User=culvert";
        assert_eq!(found(text), [""; 0]);
    }
}
