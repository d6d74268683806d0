//! The processors that packages and images are made for.

pub(crate) mod foreign;
pub(crate) mod toolchain;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use culvert_lab::workspace;

/// A processor, with its names in different worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Processor {
    /// 64-bit Intel and AMD.
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit ARM.
    Aarch64,
    /// 32-bit ARM, only for edge nodes.
    Armv7,
}

impl Processor {
    /// The one of this machine.
    ///
    /// # Errors
    /// It is another one.
    pub fn here() -> Result<Self> {
        let name = std::env::consts::ARCH;
        Self::from_str(name, false)
            .ok()
            .with_context(|| format!("nothing is made on {name}"))
    }

    /// Takes the names of those with 64 bits. Programs of the cloud, which images have too, are not
    /// made for others.
    pub(crate) fn parser_of_64_bit() -> impl TypedValueParser<Value = Self> {
        let all = Self::value_variants().iter();
        let names = all.filter(|it| it.is_64_bit()).map(|it| it.name());
        PossibleValuesParser::new(names)
            .map(|name| Self::from_str(&name, false).expect("it is one of them"))
    }

    /// The processors that a user named, each once. Without a name, the one of this machine.
    ///
    /// # Errors
    /// See [`Processor::here`].
    pub(crate) fn named_or_here(named: &[Self]) -> Result<Vec<Self>> {
        if named.is_empty() {
            return Ok(vec![Self::here()?]);
        }
        let mut named = named.to_vec();
        named.sort_unstable();
        named.dedup();
        Ok(named)
    }

    /// In names of files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Armv7 => "armv7",
        }
    }

    pub(crate) fn rpm(self) -> &'static str {
        match self {
            Self::Armv7 => "armv7hl",
            Self::X86_64 | Self::Aarch64 => self.name(),
        }
    }

    /// For Debian, and for images.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
            Self::Armv7 => "armhf",
        }
    }

    /// For Rust, of programs with glibc.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
            Self::Armv7 => "armv7-unknown-linux-gnueabihf",
        }
    }

    /// Debian's program `qemu-NAME-static` runs its programs.
    fn qemu(self) -> &'static str {
        match self {
            Self::Armv7 => "arm",
            Self::X86_64 | Self::Aarch64 => self.name(),
        }
    }

    /// glibc's loader, without the first `/`.
    pub(crate) fn loader(self) -> &'static str {
        match self {
            Self::X86_64 => "lib64/ld-linux-x86-64.so.2",
            Self::Aarch64 => "lib/ld-linux-aarch64.so.1",
            Self::Armv7 => "lib/ld-linux-armhf.so.3",
        }
    }

    pub(crate) fn is_64_bit(self) -> bool {
        self != Self::Armv7
    }
}

/// The names of the libraries that a program of any processor loads.
///
/// # Errors
/// It is no ELF file.
pub(crate) fn libraries(program: &Path) -> Result<Vec<String>> {
    Ok(needed(&readelf("--dynamic", program)?))
}

/// The version of the oldest glibc, as major and minor number, that has all symbols that a program
/// of any processor needs. `None`: it needs none.
///
/// # Errors
/// It is no ELF file.
pub(crate) fn glibc(program: &Path) -> Result<Option<(u32, u32)>> {
    Ok(newest(&readelf("--version-info", program)?))
}

fn readelf(what: &str, program: &Path) -> Result<String> {
    let mut readelf = Command::new("readelf");
    readelf.arg(what).arg(program).env("LC_ALL", "C");
    workspace::output(&mut readelf)
}

/// The libraries in lines like `0x1 (NEEDED)  Shared library: [libc.so.6]`.
fn needed(listed: &str) -> Vec<String> {
    let mut libraries = Vec::new();
    for line in listed.lines() {
        if let Some((_, library)) = line.split_once("(NEEDED)")
            && let Some(name) = library.split(['[', ']']).nth(1)
        {
            libraries.push(name.to_owned());
        }
    }
    libraries
}

/// The newest version in lines like `0x0010:   Name: GLIBC_2.2.5  Flags: none  Version: 4`.
fn newest(listed: &str) -> Option<(u32, u32)> {
    listed.split_whitespace().filter_map(glibc_version).max()
}

/// The version in `GLIBC_2.2.5`.
fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_readelf() {
        let listed = " 0x01 (NEEDED)  Shared library: [libm.so.6]\n 0x01 (NEEDED)  Shared \
                      library: [libssl.so.3]\n 0x0c (INIT)  0x1000\n";
        assert_eq!(needed(listed), ["libm.so.6", "libssl.so.3"]);
    }

    #[test]
    fn the_newest_glibc_is_that_of_the_highest_number() {
        let line = |version| format!(" 0x0010:   Name: {version}  Flags: none  Version: 4\n");
        let listed = ["GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.9", "GCC_3.0"].map(line);
        assert_eq!(newest(&listed.concat()), Some((2, 17)));
        assert_eq!(newest("No version information found in this file."), None);
    }
}
