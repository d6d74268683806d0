//! Whom this host, or this pod, asks for names.

use std::net::IpAddr;

/// The servers of a resolv.conf(5), in their order.
pub(super) fn servers(file: &str) -> Vec<IpAddr> {
    file.lines().filter_map(server).collect()
}

fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    if words.next() != Some("nameserver") {
        return None;
    }
    // `fe80::1%eth0` names an interface too.
    words.next()?.split('%').next()?.parse().ok()
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
