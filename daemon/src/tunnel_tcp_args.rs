//! Flags about TCP that both ends of a tunnel have.

/// The TCP connections of tunnels.
#[derive(clap::Args, Clone, Debug)]
pub struct TunnelTcpArgs {
    /// TCP congestion control of tunnels: `auto`, `system` or a name. `auto` is bbr where the round
    /// trip is 10 ms or more and the kernel has bbr, and the system's elsewhere. Bbr keeps its speed
    /// on a link that loses packets and after a pause, and leaves others on a full link little.
    #[arg(
        long,
        env = "CULVERT_TUNNEL_CONGESTION",
        value_name = "NAME",
        default_value = "auto"
    )]
    pub tunnel_congestion: String,

    /// Largest TCP segment of tunnels, in bytes, in both directions: for a link that silently loses
    /// large packets. One end is enough. Default: what the route's MTU allows.
    #[arg(
        long,
        env = "CULVERT_TUNNEL_MSS",
        value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(536..=32767),
    )]
    pub tunnel_mss: Option<u16>,
}
