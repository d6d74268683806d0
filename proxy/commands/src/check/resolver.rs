//! Whom this host, or this pod, asks for names.

use std::net::IpAddr;

/// The servers of a resolv.conf(5), in their order.
pub(super) fn servers(file: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words
            .next()
            .filter(|word| *word == "nameserver")
            .and(words.next())?;
        // `fe80::1%eth0` names an interface too.
        address.split('%').next()?.parse().ok()
    };
    file.lines().filter_map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_in_their_order_and_nothing_else_is() {
        let file = "# nameserver 9.9.9.9\nsearch corp.example\nnameserver\t10.0.0.1\nnameserver \
            fe80::1%eth0\nnameserver\noptions ndots:5\n";
        let expected: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(servers(file), expected);
    }
}
