//! The nftables table `inet culvert`: the second way in which connections are steered, and the guard of the intercept ports.
//! The only part of the redirector that knows nftables; rules go through the `nft` program.

mod expressions;
mod others;
mod render;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nftables::helper::{self, NftablesError};
use nftables::schema::Nftables;

pub(crate) use others::dropping_chains;
pub(crate) use render::{Elements, TableSpec};
use render::{Parts, element_changes, removal, render};

/// The program; found in `PATH`.
const NFT: Option<&str> = None;
/// Without the elements, of which there may be many.
const TERSE: [&str; 1] = ["-t"];
/// 60,000 elements take a third of a second; a hanging `nft` must not hang us.
const TIMEOUT: Duration = Duration::from_secs(30);
/// So many elements are read back at each look: 60,000 take a third of a second, and at each eighth look no part of a CPU that
/// anybody would miss.
const READ_BACK: usize = 8_000;

/// Keeps the kernel's table equal to the last [`TableSpec`].
#[derive(Debug, Default)]
pub(crate) struct Nft {
    applied: Option<TableSpec>,
    /// Looks since the elements were read back.
    looks: usize,
}

/// What an [`Nft::apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The table was like this already.
    Nothing,
    /// So many elements came and went.
    Elements(usize),
    /// The whole table was replaced in one transaction.
    Table,
}

/// A table that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    #[error("the program `nft` is not installed: install the package nftables, or run with --mechanism ebpf")]
    Missing,
    #[error("run nft: {0}")]
    Run(String),
    #[error("nft did not end within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("nft printed something else than its JSON")]
    Output(#[source] serde_json::Error),
}

impl Nft {
    /// Makes the table `wanted`: by element changes where that is enough, else by replacing it in one transaction, which
    /// leaves established connections alone.
    pub(crate) async fn apply(&mut self, wanted: TableSpec) -> Result<Applied, NftError> {
        if let Some(applied) = &self.applied {
            if *applied == wanted {
                return Ok(Applied::Nothing);
            }
            if applied.has_same_rules(&wanted) {
                let (gone, new) = difference(&applied.edges, &wanted.edges);
                let changes = element_changes(&gone, &new);
                if run(&changes).await.is_ok() {
                    self.applied = Some(wanted);
                    return Ok(Applied::Elements(gone.len() + new.len()));
                }
                // Somebody else has changed the table.
            }
        }
        run(&render(&wanted)).await?;
        self.applied = Some(wanted);
        Ok(Applied::Table)
    }

    /// Installs the table again if somebody has removed or changed it, as `nft flush ruleset` does. True if so.
    /// Elements are looked at every so many times.
    pub(crate) async fn restore(&mut self) -> Result<bool, NftError> {
        let Some(wanted) = &self.applied else { return Ok(false) };
        let parts = Parts::of(wanted).map_err(NftError::Output)?;
        self.looks += 1;
        let with_elements = self.looks > wanted.edges.len() / READ_BACK;
        let found = if with_elements { list(&[]).await? } else { list(&TERSE).await? };
        let same_elements =
            |found: &serde_json::Value| !with_elements || Elements::of_json(found) == Elements::of(wanted);
        if found.is_some_and(|found| Parts::of_json(&found) == parts && same_elements(&found)) {
            self.looks = if with_elements { 0 } else { self.looks };
            return Ok(false);
        }
        run(&render(wanted)).await?;
        Ok(true)
    }
}

/// What there is of the table in the kernel; nothing if there is none.
pub(crate) async fn read() -> Result<Option<Parts>, NftError> {
    Ok(list(&TERSE).await?.as_ref().map(Parts::of_json))
}

/// All of the table in the kernel.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) parts: Parts,
    pub(crate) elements: Elements,
}

/// The table in the kernel with its elements; nothing if there is none.
pub(crate) async fn read_all() -> Result<Option<Listing>, NftError> {
    let of = |json: serde_json::Value| Listing { parts: Parts::of_json(&json), elements: Elements::of_json(&json) };
    Ok(list(&[]).await?.map(of))
}

/// nft's listing of the table; nothing if there is none.
async fn list(flags: &[&'static str]) -> Result<Option<serde_json::Value>, NftError> {
    let args: Vec<&str> = [flags, &["list", "table", "inet", render::TABLE]].concat();
    let listed = timed(helper::get_current_ruleset_raw_async(NFT, args)).await;
    match listed {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(NftError::Output),
        Err(NftError::Run(why)) if why.contains("No such file or directory") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the table; false if there was none, as on a host without the program `nft`.
pub(crate) async fn remove() -> Result<bool, NftError> {
    match read().await {
        Ok(None) | Err(NftError::Missing) => Ok(false),
        Ok(Some(_parts)) => run(&removal()).await.map(|()| true),
        Err(error) => Err(error),
    }
}

fn difference(before: &BTreeSet<SocketAddr>, after: &BTreeSet<SocketAddr>) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    (before.difference(after).copied().collect(), after.difference(before).copied().collect())
}

async fn run(commands: &Nftables<'_>) -> Result<(), NftError> {
    let payload = serde_json::to_string(commands).map_err(NftError::Output)?;
    timed(helper::apply_ruleset_raw_async(&payload, NFT, helper::DEFAULT_ARGS.iter().copied())).await.map(|_printed| ())
}

async fn timed(nft: impl Future<Output = Result<String, NftablesError>>) -> Result<String, NftError> {
    match tokio::time::timeout(TIMEOUT, nft).await {
        Err(_elapsed) => Err(NftError::Timeout),
        Ok(Ok(printed)) => Ok(printed),
        Ok(Err(NftablesError::NftExecution { inner, .. })) if inner.kind() == io::ErrorKind::NotFound => {
            Err(NftError::Missing)
        }
        Ok(Err(NftablesError::NftFailed { stderr, .. })) => Err(NftError::Run(stderr.trim().to_owned())),
        Ok(Err(other)) => Err(NftError::Run(other.to_string())),
    }
}
