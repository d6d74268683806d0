//! Other names for nodes, hosts and users, and other addresses, the same in all texts of an archive:
//! what belongs together still does.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use super::KnownName;
use super::found_names::found_names;

/// Pieces of an address: `0:0:0:0:0:ffff:10.0.0.7` has ten.
const MAX_PIECES_OF_ADDRESS: usize = 10;

/// Names and addresses that were met.
#[derive(Debug)]
pub(super) struct Anonymous {
    known: HashSet<String>,
    names: HashMap<String, String>,
    /// Names with other letters than [`is_part`], such as `ada@example.org`, by their first run of
    /// these; the longest first.
    mixed: HashMap<String, Vec<MixedName>>,
    /// Of such a run, in bytes.
    longest_start: usize,
    addresses: HashMap<IpAddr, String>,
    /// The number of pieces that the longest name or address has.
    most_pieces: usize,
}

#[derive(Debug)]
struct MixedName {
    name: String,
    other: String,
}

impl Anonymous {
    pub(super) fn of(names: &[KnownName]) -> Self {
        let mut anonymous = Self {
            known: HashSet::new(),
            names: HashMap::new(),
            mixed: HashMap::new(),
            longest_start: 0,
            addresses: HashMap::new(),
            most_pieces: MAX_PIECES_OF_ADDRESS,
        };
        for name in names {
            anonymous.add_name(name.clone());
        }
        anonymous
    }

    /// Reads which users and other hosts a text names. It has to be all texts before the first is
    /// changed.
    pub(super) fn learn(&mut self, text: &str) {
        for name in found_names(text, &self.known) {
            self.add_name(name);
        }
    }

    fn add_name(&mut self, known: KnownName) {
        let KnownName { name, kind } = known;
        if !self.known.insert(name.clone()) {
            return;
        }
        let number = self.known.len();
        let other = format!("{kind}-x{number}");
        let name = name.trim_start_matches(|letter| !is_part(letter));
        match name.find(|letter| !is_part(letter)) {
            None => {
                self.most_pieces = self.most_pieces.max(pieces(name).len());
                self.names.insert(name.to_owned(), other);
            }
            Some(end) => {
                self.longest_start = self.longest_start.max(end);
                let alike = self.mixed.entry(name[..end].to_owned()).or_default();
                let name = name.to_owned();
                alike.push(MixedName { name, other });
                alike.sort_by_key(|mixed| Reverse(mixed.name.len()));
            }
        }
    }

    /// The text with other names and addresses.
    pub(super) fn replace(&mut self, text: &str) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_part) {
            let start = start + escape(&rest[..start], &rest[start..]);
            replaced += &rest[..start];
            rest = &rest[start..];
            let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
            if let Some((start, mixed)) = self.mixed_name(rest, end) {
                let length = mixed.name.len();
                let other = mixed.other.clone();
                self.add(&rest[..start], &mut replaced);
                replaced += &other;
                rest = &rest[start + length..];
                continue;
            }
            self.add(&rest[..end], &mut replaced);
            rest = &rest[end..];
        }
        replaced + rest
    }

    /// The name that begins in the first word of a text and goes on after it, with where it begins.
    fn mixed_name(&self, text: &str, word_end: usize) -> Option<(usize, &MixedName)> {
        for piece in pieces(&text[..word_end]) {
            let start = piece.start;
            if word_end - start > self.longest_start {
                continue;
            }
            let Some(alike) = self.mixed.get(&text[start..word_end]) else {
                continue;
            };
            for mixed in alike {
                let is_name = text[start..].starts_with(&mixed.name);
                if is_name && !text[start + mixed.name.len()..].starts_with(is_inner) {
                    return Some((start, mixed));
                }
            }
        }
        None
    }

    /// Adds a run of letters that names and addresses are made of, such as an address with a port, a
    /// range of addresses, a folder's name, or a sentence's last word: from each piece of it the
    /// longest name or address that begins there becomes another one.
    fn add(&mut self, word: &str, text: &mut String) {
        let pieces = pieces(word);
        let mut first = 0;
        let mut done = 0;
        while first < pieces.len() {
            let start = pieces[first].start;
            let most = pieces.len().min(first + self.most_pieces);
            let mut next = first + 1;
            for last in (first..most).rev() {
                let end = pieces[last].end;
                if let Some(other) = self.other(word, start..end) {
                    *text += &word[done..start];
                    *text += &other;
                    done = end;
                    next = last + 1;
                    break;
                }
            }
            first = next;
        }
        *text += &word[done..];
    }

    /// What a part of a word becomes, if it is a name or an address.
    fn other(&mut self, word: &str, part: Range<usize>) -> Option<String> {
        let found = &word[part.clone()];
        // `edge-1` is not in `edge-1-2`.
        let is_whole = !word[..part.start].ends_with('-') && !word[part.end..].starts_with('-');
        if is_whole && let Some(other) = self.names.get(found) {
            return Some(other.clone());
        }
        let address = found.parse::<IpAddr>().ok()?;
        Some(self.address(address))
    }

    /// Addresses that are the same everywhere stay.
    fn address(&mut self, address: IpAddr) -> String {
        let is_general = address.is_loopback()
            || address.is_unspecified()
            || address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if is_general {
            return address.to_string();
        }
        let number = self.addresses.len() + 1;
        let kind = if address.is_ipv4() { "ip4" } else { "ip6" };
        let other = self.addresses.entry(address);
        other.or_insert_with(|| format!("{kind}-x{number}")).clone()
    }
}

/// How many letters at the start of a word belong to the backslash before it, as in `\\nedge-1`.
fn escape(before: &str, word: &str) -> usize {
    let backslashes = before.len() - before.trim_end_matches('\\').len();
    if backslashes.is_multiple_of(2) {
        return 0;
    }
    match word.as_bytes().first() {
        Some(b'n' | b'r' | b't' | b'b' | b'f') => 1,
        Some(b'u') if word.len() > 4 && word.as_bytes()[1..5].iter().all(u8::is_ascii_hexdigit) => {
            5
        }
        _ => 0,
    }
}

/// What is between `.`, `:`, `-` and `_`.
fn pieces(word: &str) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for piece in word.split(['.', ':', '-', '_']) {
        let end = start + piece.len();
        pieces.push(start..end);
        start = end + 1;
    }
    pieces
}

fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | ':' | '-' | '_')
}

/// Letters after which a name is a longer one.
fn is_inner(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous() -> Anonymous {
        let mut names = Vec::new();
        for (name, kind) in [("edge-1", "node"), ("edge-12", "node"), ("cloud-1", "host")] {
            names.push(KnownName {
                name: name.to_owned(),
                kind,
            });
        }
        Anonymous::of(&names)
    }

    #[test]
    fn names_and_addresses_become_others_wherever_they_are() {
        let mut anonymous = anonymous();
        let text = "edge-1 edge-12:9100 edge-1.site. \"cloud-1\" root@cloud-1 10.0.0.7:41000, \
            10.0.0.7. [fd00::7]:80 fd00::7 ::ffff:10.0.0.7 edge-123 127.0.0.1:7409 19:23:51 0.1.0";
        assert_eq!(
            anonymous.replace(text),
            "node-x1 node-x2:9100 node-x1.site. \"host-x3\" root@host-x3 ip4-x1:41000, ip4-x1. \
             [ip6-x2]:80 ip6-x2 ip6-x3 edge-123 127.0.0.1:7409 19:23:51 0.1.0"
        );
    }

    #[test]
    fn names_and_addresses_are_found_within_words() {
        let mut anonymous = anonymous();
        let text = "hosts/root_cloud-1/check.json hosts/ssh___root_cloud-1_22 ssh://root@cloud-1:22 \
            10.0.0.1-10.0.0.9 tcp:10.0.0.7:80 {\"log\": \"x\\nedge-1\\u000aedge-1\\tedge-1 x\\\\nedge-1\"} \
            edge-1-2 my-edge-1 culvert_proxy::streams 2026-11-29T21:19:12.123456Z";
        assert_eq!(
            anonymous.replace(text),
            "hosts/root_host-x3/check.json hosts/ssh___root_host-x3_22 ssh://root@host-x3:22 \
             ip4-x1-ip4-x2 tcp:ip4-x3:80 {\"log\": \"x\\nnode-x1\\u000anode-x1\\tnode-x1 x\\\\nedge-1\"} \
             edge-1-2 my-edge-1 culvert_proxy::streams 2026-11-29T21:19:12.123456Z"
        );
    }

    #[test]
    fn users_that_a_text_names_become_others_in_all_texts() {
        let mut anonymous = anonymous();
        let log = "user=ada client.addr=\"user bob@corp.example\" User \"Eve Örn\" may";
        anonymous.learn(log);
        let replaced = anonymous.replace(log);
        for name in ["ada", "bob", "corp", "Eve", "Örn"] {
            assert!(!replaced.contains(name), "{replaced}");
        }
        let later = "hosts/ada_cloud-1 adam bob@corp.example's oidc:bob@corp.example x-Eve Örn";
        assert_eq!(
            anonymous.replace(later),
            "hosts/user-x4_host-x3 adam user-x5's oidc:user-x5 x-user-x6"
        );
    }

    #[test]
    fn a_long_run_of_letters_takes_no_long_time() {
        let mut anonymous = anonymous();
        let text = "-".repeat(1 << 20);
        assert_eq!(anonymous.replace(&text), text);
    }

    #[test]
    fn the_same_name_is_the_same_in_another_text() {
        let mut anonymous = anonymous();
        let first = anonymous.replace("198.51.100.7");
        assert_eq!(anonymous.replace("198.51.100.7"), first);
        assert_ne!(anonymous.replace("198.51.100.8"), first);
    }
}
