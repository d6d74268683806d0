//! TUN devices: what is sent to them is read here as IP packets, what is written here arrives there.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use culvert_lab::inside;
use nix::errno::Errno;
use nix::libc;

/// Makes a device in a network namespace. It does not block, and is gone once the file is closed.
pub(super) fn open(netns: &Path, device: &str) -> Result<File> {
    inside::run(netns, || {
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .context("open /dev/net/tun")?;
        attach(&file, device).with_context(|| format!("make the device {device}"))?;
        Ok(file)
    })
}

#[expect(unsafe_code, reason = "no crate at hand makes TUN devices")]
fn attach(file: &File, device: &str) -> Result<()> {
    ensure!(
        device.len() < libc::IFNAMSIZ,
        "its name has {} bytes",
        device.len()
    );
    // SAFETY: an ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(done)?;
    Ok(())
}
