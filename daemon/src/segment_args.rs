//! A flag that both ends of a tunnel have.

/// How large the segments of tunnels may be.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct SegmentArgs {
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
