//! Names of programs, maps and pins. The kernel stores 15 characters of a name.

/// The directory of all pins, below the bpffs. `v1` is the version of all layouts in this crate.
pub const PIN_ROOT: &str = "culvert/v1";

/// [`crate::Config`], one entry.
pub const CONFIG_MAP: &str = "cv_config";
/// [`crate::ReservedPorts`], one entry.
pub const RESERVED_MAP: &str = "cv_reserved";
/// [`crate::DestinationKey`] to [`crate::DestinationValue`].
pub const DESTINATIONS_MAP: &str = "cv_destinations";
/// [`crate::Tuple`] to [`crate::SocketDst`], during a handshake.
pub const TUPLES_MAP: &str = "cv_tuples";
/// Socket storage: [`crate::SocketDst`] of clients and of accepted sockets.
pub const SOCKETS_MAP: &str = "cv_sockets";
/// Index [`crate::Counter`] to a count per CPU.
pub const COUNTERS_MAP: &str = "cv_counters";
/// All maps.
pub const MAPS: [&str; 6] = [
    CONFIG_MAP,
    RESERVED_MAP,
    DESTINATIONS_MAP,
    TUPLES_MAP,
    SOCKETS_MAP,
    COUNTERS_MAP,
];

/// Capacity for destinations: 50,000 nodes with four ports on two addresses and both VIPs need
/// 500,000. Entries are allocated when they are needed; the table without any takes 8 MB.
pub const DESTINATIONS_MAX: usize = 524_288;
/// Capacity for handshakes in progress. It must be at least 512 per CPU, because each CPU reserves
/// some free entries.
pub const TUPLES_MAX: usize = 65_536;
/// Capacity for counters, with some in reserve: a larger map would be another layout.
pub const COUNTERS_MAX: usize = 16;

/// Pin of the map in which the proxy looks up accepted sockets by file descriptor, below the bpffs.
pub const SOCKETS_PIN: &str = "culvert/v1/maps/cv_sockets";

/// Steers `connect()` of IPv4 sockets.
pub const CONNECT4: &str = "cv_connect4";
/// Steers `connect()` of IPv6 sockets, also to IPv4-mapped destinations.
pub const CONNECT6: &str = "cv_connect6";
/// [`CONNECT4`] for kernels whose connect programs cannot choose the error of a refused call. The
/// error is `EPERM` there.
pub const CONNECT4_OLD: &str = "cv_connect4_old";
/// [`CONNECT6`] for the same kernels.
pub const CONNECT6_OLD: &str = "cv_connect6_old";
/// Makes `getpeername()` of IPv4 clients return what they dialled.
pub const PEER4: &str = "cv_peer4";
/// Makes `getpeername()` of IPv6 clients return what they dialled.
pub const PEER6: &str = "cv_peer6";
/// Carries the original destination from the client's socket to the accepted one.
pub const SOCKOPS: &str = "cv_sockops";
/// [`SOCKOPS`] for kernels that do not show its programs the network namespace of a socket.
pub const SOCKOPS_OLD: &str = "cv_sockops_old";
/// The programs that steer, in the order in which they are attached: nothing is steered before its
/// destination can be carried over.
pub const STEERING: [&str; 5] = [SOCKOPS, PEER4, PEER6, CONNECT4, CONNECT6];
/// Keeps the intercept ports for the proxy, of IPv4 sockets.
pub const BIND4: &str = "cv_bind4";
/// Keeps the intercept ports for the proxy, of IPv6 sockets.
pub const BIND6: &str = "cv_bind6";
/// The programs that keep ports. Connections are steered without them too.
pub const BINDING: [&str; 2] = [BIND4, BIND6];
/// All programs.
pub const PROGRAMS: [&str; 7] = [SOCKOPS, PEER4, PEER6, CONNECT4, CONNECT6, BIND4, BIND6];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_keeps_every_name_whole() {
        for name in MAPS
            .iter()
            .chain(&PROGRAMS)
            .chain(&[CONNECT4_OLD, CONNECT6_OLD, SOCKOPS_OLD])
        {
            assert!(name.len() <= 15, "{name} is longer than 15 characters");
        }
    }

    #[test]
    fn the_sockets_pin_is_below_the_root() {
        assert_eq!(SOCKETS_PIN, std::format!("{PIN_ROOT}/maps/{SOCKETS_MAP}"));
    }
}
