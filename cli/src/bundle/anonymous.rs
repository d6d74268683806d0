//! Other names for nodes and hosts, and other addresses, the same in all texts of an archive: what
//! belongs together still does.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use super::KnownName;

/// Names and addresses that were met.
#[derive(Debug, Default)]
pub(super) struct Anonymous {
    names: HashMap<String, String>,
    addresses: HashMap<IpAddr, String>,
}

impl Anonymous {
    pub(super) fn of(names: &[KnownName]) -> Self {
        let mut anonymous = Self::default();
        for KnownName { name, kind } in names {
            let number = anonymous.names.len() + 1;
            let other = format!("{kind}-x{number}");
            anonymous.names.entry(name.clone()).or_insert(other);
        }
        anonymous
    }

    /// The text with other names and addresses.
    pub(super) fn replace(&mut self, text: &str) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_part) {
            replaced += &rest[..start];
            rest = &rest[start..];
            let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
            self.add(&rest[..end], &mut replaced);
            rest = &rest[end..];
        }
        replaced + rest
    }

    /// Adds a run of letters that names and addresses are made of.
    fn add(&mut self, word: &str, text: &mut String) {
        if let Some(other) = self.names.get(word) {
            *text += other;
            return;
        }
        if let Ok(address) = word.parse::<IpAddr>() {
            *text += &self.address(address);
            return;
        }
        // An address with a port, a sentence that ends with one, a name with a port or a zone.
        for (index, letter) in word.char_indices().rev() {
            if !matches!(letter, ':' | '.') {
                continue;
            }
            let (first, last) = word.split_at(index);
            if let Some(other) = self.names.get(first) {
                *text += other;
                *text += last;
                return;
            }
            if let Ok(address) = first.parse::<IpAddr>() {
                *text += &self.address(address);
                *text += last;
                return;
            }
        }
        *text += word;
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

fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | ':' | '-' | '_')
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
    fn the_same_name_is_the_same_in_another_text() {
        let mut anonymous = anonymous();
        let first = anonymous.replace("198.51.100.7");
        assert_eq!(anonymous.replace("198.51.100.7"), first);
        assert_ne!(anonymous.replace("198.51.100.8"), first);
    }
}
