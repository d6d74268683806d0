//! The few `bpf()` commands that aya 0.14 does not export. All of the redirector's `unsafe` code is
//! here.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

/// `enum bpf_cmd` of linux/bpf.h.
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_UPDATE: libc::c_long = 29;

/// `struct { ... } /* BPF_OBJ_* */` of `union bpf_attr`.
#[repr(C)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// `struct { ... } info`.
#[repr(C)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// `struct { ... } link_update`.
#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// `struct { ... } query`, the fields for cgroups.
#[repr(C)]
struct ProgQuery {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
}

/// The start of `struct bpf_link_info`, with the fields of cgroup links.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawLinkInfo {
    kind: u32,
    id: u32,
    prog_id: u32,
    padding: u32,
    cgroup_id: u64,
    attach_type: u32,
    padding_after: u32,
}

/// The kernel's description of a cgroup link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkInfo {
    pub(super) id: u32,
    /// The id of the program that it runs.
    pub(super) program: u32,
    /// The cgroup that it is attached to; 0 once that is removed.
    pub(super) cgroup: u64,
    /// `enum bpf_attach_type`: its attach point in the kernel.
    pub(super) attach_type: u32,
}

/// Opens a pinned link.
pub(super) fn open_link(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let mut attr = ObjGet {
        pathname: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    let fd = bpf(BPF_OBJ_GET, &mut attr)?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given us this descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces the program of a link atomically.
pub(super) fn update_link(link: &OwnedFd, program: &impl AsFd) -> io::Result<()> {
    let mut attr = LinkUpdate {
        link_fd: number(link.as_raw_fd())?,
        new_prog_fd: number(program.as_fd().as_raw_fd())?,
        flags: 0,
        old_prog_fd: 0,
    };
    bpf(BPF_LINK_UPDATE, &mut attr).map(|_zero| ())
}

/// Reads the description of a link.
pub(super) fn link_info(link: &OwnedFd) -> io::Result<LinkInfo> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut info: RawLinkInfo = unsafe { zeroed() };
    let mut attr = InfoByFd {
        bpf_fd: number(link.as_raw_fd())?,
        info_len: u32::try_from(size_of::<RawLinkInfo>()).map_err(io::Error::other)?,
        info: (&raw mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(LinkInfo {
        id: info.id,
        program: info.prog_id,
        cgroup: info.cgroup_id,
        attach_type: info.attach_type,
    })
}

/// The ids of the programs that are attached to `cgroup` itself, in the order in which they run.
pub(super) fn attached_programs(cgroup: &File, attach_type: u32) -> io::Result<Vec<u32>> {
    // The kernel's limit for one cgroup (BPF_CGROUP_MAX_PROGS).
    let mut ids = [0_u32; 64];
    let mut attr = ProgQuery {
        target_fd: number(cgroup.as_raw_fd())?,
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: 64,
        padding: 0,
    };
    bpf(BPF_PROG_QUERY, &mut attr)?;
    Ok(ids
        .into_iter()
        .take(usize::try_from(attr.prog_cnt).unwrap_or(usize::MAX))
        .collect())
}

/// The cookie of this thread's network namespace. The kernel programs read the same number.
pub(super) fn netns_cookie() -> io::Result<u64> {
    /// `SO_NETNS_COOKIE` of asm-generic/socket.h.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes into `cookie`, which outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(cookie)
    }
}

fn number(fd: RawFd) -> io::Result<u32> {
    u32::try_from(fd).map_err(io::Error::other)
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is one of the kernel's attribute structures, of the given size. The kernel
    // treats the missing rest of the union as zero, and the pointers in it outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
