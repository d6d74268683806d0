//! What to do, where several commands say the same.

/// For a proxy that does not run.
pub const START_PROXY: &str = "start culvert-proxy there: `journalctl -u culvert-proxy`, or \
    the log of its pod, says why it ended";
/// For a redirector that does not answer.
pub const START_REDIRECTOR: &str = "start culvert-redirector there: `journalctl -u \
    culvert-redirector`, or the log of its pod, says why it ended";
/// For a program that is not ready.
pub const CHECK: &str = "`culvert check` goes through all that it rests on";
/// For a certificate that is not renewed.
pub const RENEW: &str = "docs/certificates.md: how it is renewed, and what prevents that";
