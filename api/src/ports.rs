//! Ports that several programs use.

/// The agent port of a proxy.
pub const AGENT_PORT: u16 = 7400;
/// The peer port of a proxy.
pub const PEER_PORT: u16 = 7401;
/// The port of a proxy's view, if it has one.
pub const VIEW_PORT: u16 = 7407;
/// Admin port of an agent, on loopback: `/metrics`, `/readyz`.
pub const AGENT_ADMIN_PORT: u16 = 7429;
/// The intercept ports of a proxy. There are four, so that one client address has four times as
/// many source ports.
pub const INTERCEPT_PORTS: [u16; 4] = [7410, 7411, 7412, 7413];
/// A connection to this port of a node's VIP ends at the proxy itself, which answers how the
/// connection was steered. Edge nodes must not serve anything on it.
pub const CHECK_PORT: u16 = INTERCEPT_PORTS[0];
/// All ports that Culvert's programs listen on, with those of `--name-service`, as
/// `net.ipv4.ip_local_reserved_ports` writes them (`deploy/sysctl.d/culvert-ports.conf`).
pub const RESERVED: &str = "7400-7402,7407-7413,7418-7419,7429,7438-7440,7450-7489";
/// Ports of an edge node that are steered and that its agent dials, unless the operator names
/// others: the agent's own admin port, node_exporter, kubelet, and kubelet's read-only port.
pub const NODE_PORTS: [u16; 4] = [AGENT_ADMIN_PORT, 9100, 10250, 10255];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_for_sysctl_reserves_all_ports() {
        let file = include_str!("../../deploy/sysctl.d/culvert-ports.conf");
        let line = format!("\nnet.ipv4.ip_local_reserved_ports = {RESERVED}\n");
        assert!(file.contains(&line), "{file}");
    }
}
