//! Hooks of other programs, loaded from instructions in this file and attached by bpftool
//! or by a link.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::world::{World, sh};

/// `enum bpf_cmd`, `enum bpf_prog_type` and `enum bpf_attach_type` of linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_LINK_CREATE: libc::c_long = 28;
const CGROUP_SOCK_ADDR: u32 = 18;
/// Offsets in `struct bpf_sock_addr`.
const IP4: u16 = 4;
const IP6: u16 = 8;
const PORT: u16 = 24;
/// The client gets `EPERM`.
const DENY: i32 = 0;
const ALLOW: i32 = 1;

/// What another program does with connects to one address. It ignores all others.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    Deny(IpAddr),
    Rewrite(IpAddr, SocketAddr),
}

/// The call that a program sees: `connect()`, or `bind()`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
    Bind4,
}

/// A loaded program, pinned in the world's BPF file system.
pub(crate) struct Foreign {
    program: OwnedFd,
    pin: PathBuf,
    family: Family,
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct ObjPin {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

impl Foreign {
    /// Loads a program with the rules for its family.
    pub(crate) fn load(world: &World, name: &str, family: Family, rules: &[Rule]) -> Self {
        let instructions: Vec<u64> = rules
            .iter()
            .flat_map(|rule| rule.instructions(family))
            .chain(end(ALLOW))
            .collect();
        let program = load(name, family, &instructions).unwrap();
        std::fs::create_dir_all(world.bpffs().join("foreign")).unwrap();
        let pin = world.bpffs().join("foreign").join(name);
        pin_at(&program, &pin);
        Self {
            program,
            pin,
            family,
        }
    }

    /// Attaches it by bpftool, without a link: with `multi` beside others, without flags as the
    /// only one.
    pub(crate) fn attach(&self, cgroup: &Path, flags: &str) {
        self.run_bpftool("attach", cgroup, flags);
    }

    /// Removes what [`Self::attach`] attached.
    pub(crate) fn detach(&self, cgroup: &Path) {
        self.run_bpftool("detach", cgroup, "");
    }

    fn run_bpftool(&self, action: &str, cgroup: &Path, flags: &str) {
        sh(&format!(
            "bpftool cgroup {action} {} {} pinned {} {flags}",
            cgroup.display(),
            self.family.label(),
            self.pin.display()
        ));
    }

    /// Attaches it by a link, pinned at `pin`.
    pub(crate) fn link(&self, cgroup: &Path, pin: &Path) {
        let cgroup = File::open(cgroup).unwrap();
        let mut attr = LinkCreate {
            program: self.program.as_raw_fd().try_into().unwrap(),
            target: cgroup.as_raw_fd().try_into().unwrap(),
            attach_type: self.family.attach_type(),
            flags: 0,
        };
        let link = descriptor(BPF_LINK_CREATE, &mut attr);
        std::fs::create_dir_all(pin.parent().unwrap()).unwrap();
        pin_at(&link, pin);
    }
}

/// The error of a connect that the redirector's hooks refuse on this kernel. Without
/// `bpf_set_retval` in connect programs it is always the same.
pub(crate) fn errno_of_refusals() -> i32 {
    // r1 = 0; bpf_set_retval()
    let call = [
        instruction(0xb7, 0x01, 0, 0),
        instruction(0x85, 0x00, 0, 187),
    ];
    let instructions: Vec<u64> = call.into_iter().chain(end(ALLOW)).collect();
    match load("set_retval", Family::V4, &instructions) {
        Ok(_program) => libc::EHOSTUNREACH,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
            libc::EPERM
        }
    }
}

fn load(name: &str, family: Family, instructions: &[u64]) -> io::Result<OwnedFd> {
    let mut kernel_name = [0; 16];
    kernel_name[..name.len()].copy_from_slice(name.as_bytes());
    let mut attr = ProgLoad {
        kind: CGROUP_SOCK_ADDR,
        instruction_count: instructions.len().try_into().unwrap(),
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: kernel_name,
        interface: 0,
        expected_attach_type: family.attach_type(),
    };
    Ok(owned(try_bpf(BPF_PROG_LOAD, &mut attr)?))
}

impl Family {
    fn attach_type(self) -> u32 {
        match self {
            Self::V4 => 10,
            Self::V6 => 11,
            Self::Bind4 => 8,
        }
    }

    /// The name for bpftool.
    fn label(self) -> &'static str {
        match self {
            Self::V4 => "connect4",
            Self::V6 => "connect6",
            Self::Bind4 => "bind4",
        }
    }
}

impl Rule {
    fn instructions(self, family: Family) -> Vec<u64> {
        let (Self::Deny(from) | Self::Rewrite(from, _)) = self;
        if from.is_ipv4() == (family == Family::V6) {
            return Vec::new();
        }
        let action: Vec<u64> = match self {
            Self::Deny(_) => end(DENY).into(),
            Self::Rewrite(_, to) => {
                let port = (PORT, i32::from(to.port().to_be()));
                words(to.ip())
                    .chain([port])
                    .flat_map(|(offset, word)| store(offset, word))
                    .chain(end(ALLOW))
                    .collect()
            }
        };
        let words: Vec<_> = words(from).collect();
        let mut instructions = Vec::new();
        for (number, (offset, word)) in words.iter().enumerate() {
            // Skips two instructions for each remaining word, and the action.
            let skipped = 2 * (words.len() - 1 - number) + action.len();
            instructions.push(instruction(0x61, 0x12, *offset, 0));
            instructions.push(instruction(0x56, 0x02, skipped.try_into().unwrap(), *word));
        }
        instructions.extend(action);
        instructions
    }
}

/// An address as the words of the context, with their offsets.
fn words(ip: IpAddr) -> impl Iterator<Item = (u16, i32)> {
    let (first, bytes) = match ip {
        IpAddr::V4(v4) => (IP4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (IP6, v6.octets().to_vec()),
    };
    let words: Vec<i32> = bytes
        .chunks_exact(4)
        .map(|word| i32::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    (first..).step_by(4).zip(words)
}

/// `r3 = word; *(u32 *)(ctx + offset) = r3`.
fn store(offset: u16, word: i32) -> [u64; 2] {
    [
        instruction(0xb4, 0x03, 0, word),
        instruction(0x63, 0x31, offset, 0),
    ]
}

/// `r0 = verdict; exit`.
fn end(verdict: i32) -> [u64; 2] {
    [
        instruction(0xb7, 0x00, 0, verdict),
        instruction(0x95, 0x00, 0, 0),
    ]
}

/// `struct bpf_insn`: the opcode, source and destination register, an offset, a constant.
fn instruction(code: u8, registers: u8, offset: u16, constant: i32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = constant.to_le_bytes();
    u64::from_le_bytes([code, registers, low, high, a, b, c, d])
}

fn pin_at(object: &OwnedFd, pin: &Path) {
    let path = CString::new(pin.as_os_str().as_bytes()).unwrap();
    let mut attr = ObjPin {
        path: path.as_ptr() as u64,
        fd: object.as_raw_fd().try_into().unwrap(),
        flags: 0,
    };
    bpf(BPF_OBJ_PIN, &mut attr);
}

fn descriptor<T>(command: libc::c_long, attr: &mut T) -> OwnedFd {
    owned(bpf(command, attr))
}

/// Takes ownership of the descriptor that a call returned.
fn owned(fd: libc::c_long) -> OwnedFd {
    let fd = RawFd::try_from(fd).unwrap();
    // SAFETY: the kernel has just given us this descriptor, and nothing else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[track_caller]
fn bpf<T>(command: libc::c_long, attr: &mut T) -> libc::c_long {
    try_bpf(command, attr).unwrap_or_else(|error| panic!("bpf({command}): {error}"))
}

fn try_bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is one of the kernel's attribute structures, of the given size; the kernel
    // takes what is missing of the union as zero, and the pointers in it outlive the call.
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
