//! Loads the programs and attaches them, or takes over the links that an earlier redirector left
//! pinned.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{MapError, MapInfo};
use aya::programs::links::{FdLink, LinkError};
use aya::programs::{CgroupAttachMode, Program, ProgramError};
use aya::{Ebpf, EbpfError, EbpfLoader};
use culvert_api::installed::{self, Refusal};
use culvert_redirector_common::names::{
    BINDING, CONNECT4, CONNECT6, MAPS, PROGRAMS, SOCKOPS, STEERING, TUPLES_MAP,
};
use nix::libc::{ENOLINK, EPERM};

use super::compatible::MapShape;
use super::lockdown::Lockdown;
use super::memory::{MemoryLimit, lift_limit};
use super::pins::cgroup_id;
use super::sys::{LinkInfo, attached_programs, link_info, netns_cookie, open_link, update_link};
use super::variants::Variants;
use super::{CgroupError, PinError, Pins, cgroup, object};
use culvert_api::installed::HookScope;

/// The programs, with all maps pinned, but not necessarily attached.
pub(crate) struct Hooks {
    ebpf: Ebpf,
    variants: Variants,
    pins: Pins,
    cgroup: PathBuf,
    /// Where destinations are carried over, and ports reserved. The proxy, which is not among the
    /// clients of a smaller cgroup, must be below it.
    root: PathBuf,
}

/// One attached program, as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) program: &'static str,
    /// Missing: not attached.
    pub(crate) link: Option<u32>,
    pub(crate) program_id: Option<u32>,
    pub(crate) cgroup_id: Option<u64>,
    /// The kernel's number of the place where programs of its kind are attached.
    pub(crate) attach_type: u32,
}

/// What surrounds an attached program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub(crate) cgroup: PathBuf,
    /// Other programs in the same place, by id, in the order in which they run: each may refuse or
    /// change what ours did.
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

/// How a program came to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookChange {
    /// There was no link.
    Attached,
    /// The link of an earlier redirector runs the new program now.
    TakenOver,
    /// The earlier link was on another cgroup, or on one that is gone.
    Replaced,
    /// Programs of others had come after it, and may make any address an edge node's.
    MovedLast,
}

impl HookChange {
    /// How the log calls it.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::TakenOver => "taken over",
            Self::Replaced => "moved from another cgroup",
            Self::MovedLast => "moved after other programs",
        }
    }
}

/// Hooks that cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(
        "load the kernel programs; needs root, or CAP_BPF and CAP_NET_ADMIN{}{}",
        MemoryLimit::causing(errno_of_map(.0)),
        Lockdown::causing(errno_of_map(.0))
    )]
    Load(#[from] EbpfError),
    #[error(
        "load the kernel program {program}; Linux 5.10 and later take it, and nftables does \
         without it \
         (--mechanism nftables){}{}",
        MemoryLimit::causing(errno_of_program(.source)),
        Lockdown::causing(errno_of_program(.source))
    )]
    LoadProgram {
        program: &'static str,
        source: ProgramError,
    },
    #[error("read the kernel program {program}")]
    Program {
        program: &'static str,
        source: ProgramError,
    },
    #[error("read the pinned map {path}")]
    ReadMap { path: PathBuf, source: MapError },
    #[error(
        "the pinned map {path} is of another layout ({found}; wanted: {wanted}); \
         remove what is installed: culvert-redirector uninstall"
    )]
    Incompatible {
        path: PathBuf,
        found: MapShape,
        wanted: MapShape,
    },
    #[error(
        "the embedded object has no program {0} of the right type; build it again: cargo xtask \
         build-ebpf"
    )]
    Missing(&'static str),
    #[error(
        "attach {program} to {cgroup}: a program of others is attached there, or above it, that \
         tolerates none beside it; \
         it is in `bpftool cgroup tree` without the flag multi. Without hooks: --mechanism nftables"
    )]
    Exclusive {
        program: &'static str,
        cgroup: PathBuf,
    },
    #[error("attach {program} to {cgroup}")]
    Attach {
        program: &'static str,
        cgroup: PathBuf,
        source: ProgramError,
    },
    #[error(
        "--hooks host needs Linux 5.14 or later (SO_NETNS_COOKIE); else --hooks all, or \
         --mechanism nftables"
    )]
    Netns(#[source] io::Error),
    #[error("{call} {path}")]
    Link {
        call: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("take the link of {program}")]
    TakeLink {
        program: &'static str,
        source: LinkError,
    },
}

impl HookError {
    /// Something went wrong with the link pinned at `path`.
    fn link(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Link { call, path, source }
    }
}

impl Hooks {
    /// Creates the maps of programs for the processes of `cgroup`; re-uses pinned ones with all
    /// their contents.
    pub(crate) fn open(pins: Pins, cgroup: PathBuf, scope: HookScope) -> Result<Self, HookError> {
        let root = match cgroup::find(None) {
            Ok(root) => root,
            Err(error) => {
                tracing::warn!(
                    error = culvert_daemon::chain(&error),
                    "the proxy must be in --cgroup: there is no root to be seen"
                );
                cgroup.clone()
            }
        };
        pins.prepare()?;
        lift_limit();
        let variants = Variants::of_this_kernel();
        let host = netns_cookie();
        let known_host = host.as_ref().map_or(0, |cookie| *cookie);
        let only = match scope {
            HookScope::All => 0,
            HookScope::Host => host.map_err(HookError::Netns)?,
        };
        let mut loader = EbpfLoader::new();
        loader.override_global("ONLY_NETNS", &only, true);
        loader.override_global("HOST_NETNS", &known_host, true);
        for name in MAPS {
            check_compatible(&pins, name)?;
            loader.map_pin_path(name, pins.map(name));
        }
        Ok(Self {
            ebpf: loader.load(object::OBJECT)?,
            variants,
            pins,
            cgroup,
            root,
        })
    }

    /// Which error a refused connect gets.
    pub(crate) const fn refusal(&self) -> Refusal {
        self.variants.refusal
    }

    /// The cgroup of the programs that are not for clients alone.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Loads the programs that steer.
    pub(crate) fn load(&mut self) -> Result<(), HookError> {
        for program in STEERING {
            load_program(&mut self.ebpf, self.variants.name(program))?;
        }
        Ok(())
    }

    /// Attaches the programs that steer, in the order of [`STEERING`].
    pub(crate) fn attach(&mut self) -> Result<Vec<(&'static str, HookChange)>, HookError> {
        STEERING
            .iter()
            .map(|program| Ok((*program, self.install(program)?)))
            .collect()
    }

    /// Loads and attaches the programs that keep ports.
    pub(crate) fn attach_binding(&mut self) -> Result<(), HookError> {
        for program in BINDING {
            load_program(&mut self.ebpf, program)?;
            let change = self.install(program)?;
            tracing::info!(program, how = change.text(), "bind hook installed");
        }
        Ok(())
    }

    fn place(&self, program: &str) -> PathBuf {
        if program == SOCKOPS || BINDING.contains(&program) {
            self.root.clone()
        } else {
            self.cgroup.clone()
        }
    }

    fn install(&mut self, program: &'static str) -> Result<HookChange, HookError> {
        let place = self.place(program);
        let cgroup = cgroup_id(&place).map_err(|source| CgroupError::Open {
            path: place.clone(),
            source,
        })?;
        let pin = self.pins.link(program);
        if !pin.exists() {
            self.pin_new_link(program, &pin)?;
            return Ok(HookChange::Attached);
        }
        let replacement = self.pins.replacement(program);
        let taken_over = self.take_over(program, &pin, cgroup)?;
        if taken_over
            && Hook::read(&self.pins, program)?
                .followers(&place)
                .is_empty()
        {
            // Left by a redirector that died while it moved to another cgroup.
            remove_if_there(&replacement).map_err(HookError::link("remove", &replacement))?;
            return Ok(HookChange::TakenOver);
        }
        // The new link is there before the old one goes, so that no connect escapes. One that meets
        // both programs in that moment is reset: the second one sees a connection to the proxy,
        // which takes no destination along.
        remove_if_there(&replacement).map_err(HookError::link("remove", &replacement))?;
        self.pin_new_link(program, &replacement)?;
        std::fs::rename(&replacement, &pin).map_err(HookError::link("replace", &pin))?;
        Ok(if taken_over {
            HookChange::MovedLast
        } else {
            HookChange::Replaced
        })
    }

    /// Makes the pinned link run our program; false if it is on another cgroup, or on one that is
    /// gone.
    fn take_over(&self, program: &'static str, pin: &Path, cgroup: u64) -> Result<bool, HookError> {
        let link = open_link(pin).map_err(HookError::link("open the pinned link", pin))?;
        if link_info(&link)
            .map_err(HookError::link("read the pinned link", pin))?
            .cgroup
            != cgroup
        {
            return Ok(false);
        }
        let fd = self
            .ebpf
            .program(self.variants.name(program))
            .ok_or(HookError::Missing(program))?
            .fd();
        match update_link(
            &link,
            fd.map_err(|source| HookError::Program { program, source })?,
        ) {
            Ok(()) => Ok(true),
            Err(gone) if gone.raw_os_error() == Some(ENOLINK) => Ok(false),
            Err(source) => Err(HookError::link("update the pinned link", pin)(source)),
        }
    }

    fn pin_new_link(&mut self, program: &'static str, pin: &Path) -> Result<(), HookError> {
        self.attach_program(program)?
            .pin(pin)
            .map_err(|error| HookError::link("pin", pin)(io::Error::other(error)))?;
        Ok(())
    }

    fn attach_program(&mut self, program: &'static str) -> Result<FdLink, HookError> {
        let place = self.place(program);
        let cgroup = File::open(&place).map_err(|source| CgroupError::Open {
            path: place.clone(),
            source,
        })?;
        // The kernel refuses flags on cgroup links, which always allow other programs beside them:
        // aya calls that "single".
        let mode = CgroupAttachMode::Single;
        let link = match self.ebpf.program_mut(self.variants.name(program)) {
            Some(Program::CgroupSockAddr(hook)) => hook
                .attach(cgroup, mode)
                .and_then(|id| hook.take_link(id))
                .map(FdLink::try_from),
            Some(Program::SockOps(hook)) => hook
                .attach(cgroup, mode)
                .and_then(|id| hook.take_link(id))
                .map(FdLink::try_from),
            _ => return Err(HookError::Missing(program)),
        };
        link.map_err(|source| not_attached(program, place, source))?
            .map_err(|source| HookError::TakeLink { program, source })
    }
}

impl Hook {
    /// The programs that steer, as the kernel has them, without loading anything.
    pub(crate) fn read_steering(pins: &Pins) -> Result<Vec<Self>, HookError> {
        Self::read_each(pins, &STEERING)
    }

    /// The same for the programs that keep ports.
    pub(crate) fn read_binding(pins: &Pins) -> Result<Vec<Self>, HookError> {
        Self::read_each(pins, &BINDING)
    }

    /// All of them.
    pub(crate) fn read_all(pins: &Pins) -> Result<Vec<Self>, HookError> {
        Self::read_each(pins, &PROGRAMS)
    }

    fn read_each(pins: &Pins, programs: &[&'static str]) -> Result<Vec<Self>, HookError> {
        programs
            .iter()
            .map(|program| Self::read(pins, program))
            .collect()
    }

    /// As the admin server's pages have it.
    pub(crate) fn report(&self) -> installed::Hook {
        installed::Hook {
            program: self.program.to_owned(),
            link: self.link,
            program_id: self.program_id,
            cgroup_id: self.cgroup_id,
        }
    }

    /// Whether connects meet the program.
    pub(crate) fn is_attached(&self) -> bool {
        // The kernel answers 0 once the link is detached or its cgroup gone.
        self.cgroup_id.is_some_and(|id| id != 0)
    }

    /// The cgroup and who else is there; none if it cannot be found from here.
    pub(crate) fn surroundings(&self) -> Option<Surroundings> {
        if !self.is_attached() {
            return None;
        }
        let cgroup = cgroup::path_of(self.cgroup_id?)?;
        let programs = attached_programs(&File::open(&cgroup).ok()?, self.attach_type).ok()?;
        let ours = programs
            .iter()
            .position(|id| Some(*id) == self.program_id)?;
        Some(Surroundings {
            cgroup,
            before: programs[..ours].to_vec(),
            after: programs[ours + 1..].to_vec(),
        })
    }

    /// The programs of others on `cgroup` that see what this one has decided: those of a connect
    /// may lead to an edge node what was none before. What others do to `getpeername()` is well
    /// done after ours.
    pub(crate) fn followers(&self, cgroup: &Path) -> Vec<u32> {
        if ![CONNECT4, CONNECT6].contains(&self.program) {
            return Vec::new();
        }
        let Ok(cgroup) = File::open(cgroup) else {
            return Vec::new();
        };
        let programs = attached_programs(&cgroup, self.attach_type).unwrap_or_default();
        match programs.iter().position(|id| Some(*id) == self.program_id) {
            Some(ours) => programs[ours + 1..].to_vec(),
            None => Vec::new(),
        }
    }

    fn read(pins: &Pins, program: &'static str) -> Result<Self, HookError> {
        let path = pins.link(program);
        let none = Self {
            program,
            ..Self::default()
        };
        let link = match open_link(&path) {
            Ok(link) => link,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(none),
            Err(source) => return Err(HookError::link("open the pinned link", &path)(source)),
        };
        let LinkInfo {
            id,
            program: program_id,
            cgroup: cgroup_id,
            attach_type,
        } = link_info(&link).map_err(|source| HookError::Link {
            call: "read the pinned link",
            path,
            source,
        })?;
        Ok(Self {
            link: Some(id),
            program_id: Some(program_id),
            cgroup_id: Some(cgroup_id),
            attach_type,
            ..none
        })
    }
}

fn check_compatible(pins: &Pins, name: &str) -> Result<(), HookError> {
    let path = pins.map(name);
    if !path.exists() {
        return Ok(());
    }
    let info = MapInfo::from_pin(&path).map_err(|source| HookError::ReadMap {
        path: path.clone(),
        source,
    })?;
    match MapShape::required(name) {
        // It has only handshakes in progress. The programs of an earlier redirector keep theirs
        // until they are replaced.
        Some(wanted) if wanted != MapShape::found(&info) && name == TUPLES_MAP => {
            remove_if_there(&path).map_err(HookError::link("remove", &path))
        }
        Some(wanted) if wanted != MapShape::found(&info) => Err(HookError::Incompatible {
            path,
            found: MapShape::found(&info),
            wanted,
        }),
        _ => Ok(()),
    }
}

fn load_program(ebpf: &mut Ebpf, program: &'static str) -> Result<(), HookError> {
    let loaded = match ebpf.program_mut(program) {
        Some(Program::CgroupSockAddr(hook)) => hook.load(),
        Some(Program::SockOps(hook)) => hook.load(),
        _ => return Err(HookError::Missing(program)),
    };
    loaded.map_err(|source| HookError::LoadProgram { program, source })
}

fn errno_of_program(error: &ProgramError) -> Option<i32> {
    if let ProgramError::LoadError { io_error, .. } = error {
        io_error.raw_os_error()
    } else {
        None
    }
}

/// The errno with which one of the object's maps was not created: nearly always why the object is
/// not loaded.
fn errno_of_map(error: &EbpfError) -> Option<i32> {
    if let EbpfError::MapError(MapError::CreateError { io_error, .. }) = error {
        io_error.raw_os_error()
    } else {
        None
    }
}

fn not_attached(program: &'static str, cgroup: PathBuf, source: ProgramError) -> HookError {
    // A process that may not attach could not have loaded the program either.
    if let ProgramError::SyscallError(call) = &source
        && call.io_error.raw_os_error() == Some(EPERM)
    {
        return HookError::Exclusive { program, cgroup };
    }
    HookError::Attach {
        program,
        cgroup,
        source,
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
