/// Which end of a tunnel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The gRPC client: its messages just end, or it resets the stream. It pings first.
    Proxy,
    /// The gRPC server: it ends a stream with trailers. They arrive after the data and report
    /// whether that was all.
    Agent,
}
