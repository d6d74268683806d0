//! Ports of Culvert that the kernel may give to outgoing connections of other programs. Pure.

use culvert_api::ports::RESERVED;

/// What the kernel gives to outgoing connections, as in `/proc/sys/net/ipv4`.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalPorts {
    /// `ip_local_port_range`: the first and the last port.
    pub(super) range: String,
    /// `ip_local_reserved_ports`: ports and ranges, with commas.
    pub(super) reserved: String,
}

impl LocalPorts {
    /// The ports of Culvert that an outgoing connection may get.
    pub(super) fn unreserved(&self) -> Vec<u16> {
        let mut bounds = self.range.split_whitespace();
        let Some(Ok(first)) = bounds.next().map(str::parse::<u16>) else {
            return Vec::new();
        };
        let Some(Ok(last)) = bounds.next().map(str::parse::<u16>) else {
            return Vec::new();
        };
        let reserved = ranges(&self.reserved);
        let mut unreserved = Vec::new();
        for (from, to) in ranges(RESERVED) {
            for port in from..=to {
                let is_reserved = reserved
                    .iter()
                    .any(|(from, to)| (from..=to).contains(&&port));
                if (first..=last).contains(&port) && !is_reserved {
                    unreserved.push(port);
                }
            }
        }
        unreserved
    }
}

/// Ports and ranges, with commas between them.
fn ranges(text: &str) -> Vec<(u16, u16)> {
    let mut ranges = Vec::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse(), to.parse()) {
            ranges.push((from, to));
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreserved(range: &str, reserved: &str) -> Vec<u16> {
        let ports = LocalPorts {
            range: range.to_owned(),
            reserved: reserved.to_owned(),
        };
        ports.unreserved()
    }

    #[test]
    fn ports_in_the_range_count_unless_they_are_reserved() {
        assert_eq!(unreserved("32768\t60999\n", "\n"), [0; 0]);
        assert_eq!(unreserved("7408 7411", ""), [7408, 7409, 7410, 7411]);
        assert_eq!(unreserved("7408 7411", "22,7408-7410\n"), [7411]);
        assert_eq!(unreserved("1024 65535", RESERVED), [0; 0]);
        assert!(unreserved("1024 65535", "").contains(&7429));
        assert_eq!(unreserved("", ""), [0; 0]);
    }
}
