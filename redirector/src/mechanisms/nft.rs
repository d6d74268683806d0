//! The nftables table `inet culvert`: it steers what hooks do not see, guards the intercept ports,
//! and refuses unsteered packets to edge addresses and VIPs. The only part of the redirector that
//! knows nftables; rules go through the `nft` program.

mod events;
mod expressions;
mod keeper;
mod listing;
mod marks;
mod others;
mod render;
mod rules;
mod table;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nftables::helper::{self, NftablesError};
use nftables::schema::Nftables;

pub(crate) use events::Events;
use keeper::Keeper;
pub(crate) use listing::TableElements;
use listing::{TableParts, counts, fixed};
pub(crate) use marks::marking_chains;
pub(crate) use others::{dropping_chains, owner_chains, zoning_chains};
use render::{Replace, element_changes, removal, render};
pub(crate) use table::{Guard, TableSpec};
use table::{Layout, LayoutTable, TABLE};

use crate::mechanisms::recent::Recent;

/// The default program, found in `PATH`.
const NFT: Option<&str> = None;
/// Lists without elements, which may be many.
const TERSE: [&str; 1] = ["-t"];
/// 60,000 elements take a third of a second, as many as 100,000 nodes may need 23 s on two idle cores. A
/// hanging `nft` must not block the redirector for ever.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Elements read back per inspection, on average: 60,000 take a third of a second, which is
/// negligible every eighth inspection.
const READ_BACK: usize = 8_000;

/// Keeps the kernel's table equal to the last [`TableSpec`].
#[derive(Debug, Default)]
pub(crate) struct NftTable {
    applied: Option<TableSpec>,
    /// The layout that this kernel accepts; unknown before the first table.
    layout: Option<Layout>,
    /// The table as nft lists it, right after it was installed.
    listed: Option<serde_json::Value>,
    /// Inspections since the elements were read back.
    looks: usize,
    keeper: Keeper,
    recent: Recent<4>,
}

/// What an [`NftTable::apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The table was like this already.
    Nothing,
    /// This many elements were added or removed.
    Elements(usize),
    /// All rules were replaced in one transaction, or the whole table.
    Table,
}

/// A table that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    #[error(
        "the program `nft` is not installed: install the package nftables, or run with \
         --mechanism ebpf"
    )]
    Missing,
    #[error("run nft: {0}")]
    Run(String),
    #[error("nft did not end within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("nft printed something else than its JSON")]
    Output(#[source] serde_json::Error),
    #[error("nft has {chains} chains: their rules are not read")]
    TooManyChains { chains: usize },
}

impl NftTable {
    /// Makes the table `wanted`: by element changes if they are enough, otherwise by replacing its
    /// rules in one transaction, which leaves established connections alone.
    pub(crate) async fn apply(&mut self, wanted: TableSpec) -> Result<Applied, NftError> {
        if let Some(applied) = &self.applied {
            if *applied == wanted {
                return Ok(Applied::Nothing);
            }
            if let Some(layout) = self.layout
                && applied.has_same_rules(&wanted)
            {
                let (gone, new) = difference(&applied.edges, &wanted.edges);
                let changes = element_changes(&gone, &new, layout);
                if run(&changes).await.is_ok() {
                    self.applied = Some(wanted);
                    return Ok(Applied::Elements(gone.len() + new.len()));
                }
                // Another program has changed the table.
            }
        }
        self.install(&wanted).await?;
        self.applied = Some(wanted);
        self.keeper.ensure_held().await;
        Ok(Applied::Table)
    }

    /// Installs the table again if another program has removed or changed it, as `nft flush
    /// ruleset` does. Returns whether it did. Elements are read only at some inspections.
    pub(crate) async fn restore(&mut self) -> Result<bool, NftError> {
        let Some(wanted) = self.applied.clone() else {
            return Ok(false);
        };
        let Some(layout) = self.layout else {
            return Ok(false);
        };
        self.keeper.ensure_held().await;
        self.looks += 1;
        let with_elements = self.looks > wanted.edges.len() / READ_BACK;
        let found = if with_elements {
            list(layout, &[]).await?
        } else {
            list(layout, &TERSE).await?
        };
        if let Some(found) = &found {
            self.recent.add(Instant::now(), counts(found));
        }
        if let Some(found) = found
            && (!with_elements || TableElements::of_json(&found) == TableElements::of(&wanted))
            && self.listed.as_ref() == Some(&fixed(found))
        {
            self.looks = if with_elements { 0 } else { self.looks };
            return Ok(false);
        }
        self.install(&wanted).await?;
        Ok(true)
    }

    /// What the table has counted lately, as of its inspections: see [`read_counts`].
    pub(crate) fn recent(&self) -> Recent<4> {
        self.recent.clone()
    }

    /// Why nothing keeps translated connections while all rules are flushed.
    pub(crate) fn keeper_problem(&self) -> Option<String> {
        self.keeper.problem().map(str::to_owned)
    }

    /// Replaces the table. The first attempt finds the layout: before Linux 5.2 an `inet` table
    /// cannot translate addresses.
    async fn install(&mut self, wanted: &TableSpec) -> Result<(), NftError> {
        self.listed = None;
        if let Some(layout) = self.layout {
            self.listed = replace(wanted, layout).await?;
            return Ok(());
        }
        let (layout, listed) = first_install(wanted).await?;
        self.layout = Some(layout);
        self.listed = listed;
        Ok(())
    }
}

async fn first_install(
    wanted: &TableSpec,
) -> Result<(Layout, Option<serde_json::Value>), NftError> {
    let (layout, listed) = match replace(wanted, Layout::Joint).await {
        Ok(listed) => (Layout::Joint, listed),
        Err(NftError::Run(reason)) => {
            let Ok(listed) = replace(wanted, Layout::Split).await else {
                return Err(NftError::Run(reason));
            };
            tracing::info!(
                reason,
                "the kernel takes no table inet culvert; the tables ip culvert and ip6 culvert \
                 are in its place"
            );
            (Layout::Split, listed)
        }
        Err(error) => return Err(error),
    };
    // Left by a redirector on another kernel, or by another version.
    for other in Layout::ALL {
        if other != layout {
            remove_layout(other).await?;
        }
    }
    Ok((layout, listed))
}

/// Replaces the rules in the tables, or the tables themselves where these are not as ours are. Returns
/// nft's listing of them, without what changes by itself; `None` if another program has changed them
/// already: the next inspection installs them again.
async fn replace(
    wanted: &TableSpec,
    layout: Layout,
) -> Result<Option<serde_json::Value>, NftError> {
    let parts = TableParts::of(wanted, layout).map_err(NftError::Output)?;
    if run(&render(wanted, layout, Replace::Rules)).await.is_ok()
        && let Some(found) = list(layout, &[]).await?
        && TableParts::of_json(&found).has_sets_and_chains_of(&parts)
        && remove_further_elements(&found, wanted, layout).await
    {
        return Ok(fixed_if(found, &parts));
    }
    run(&render(wanted, layout, Replace::Tables)).await?;
    let found = list(layout, &TERSE).await?.unwrap_or_default();
    Ok(fixed_if(found, &parts))
}

/// Removes the edge addresses that are not wanted, of an earlier directory. Returns whether the sets
/// have what is wanted then.
async fn remove_further_elements(
    found: &serde_json::Value,
    wanted: &TableSpec,
    layout: Layout,
) -> bool {
    let found = TableElements::of_json(found);
    let gone = found.edges_beside(&wanted.edges);
    if !gone.is_empty() && run(&element_changes(&gone, &[], layout)).await.is_err() {
        // Another program has changed the table.
        return false;
    }
    found.without(&gone) == TableElements::of(wanted)
}

/// The listing without what changes by itself, if it has these parts.
fn fixed_if(found: serde_json::Value, parts: &TableParts) -> Option<serde_json::Value> {
    if TableParts::of_json(&found) == *parts {
        Some(fixed(found))
    } else {
        None
    }
}

/// The parts of the table in the kernel; `None` without a table.
pub(crate) async fn read() -> Result<Option<TableParts>, NftError> {
    Ok(list_any(&TERSE).await?.as_ref().map(TableParts::of_json))
}

/// The whole table in the kernel.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) parts: TableParts,
    pub(crate) elements: TableElements,
}

/// The table in the kernel with its elements; `None` without a table.
pub(crate) async fn read_all() -> Result<Option<Listing>, NftError> {
    let Some(json) = list_any(&[]).await? else {
        return Ok(None);
    };
    Ok(Some(Listing {
        parts: TableParts::of_json(&json),
        elements: TableElements::of_json(&json),
    }))
}

/// What the rules of the table in the kernel have counted since it was installed; `None` without a
/// table. In order: first packets of connections that were steered, those of them that passed all
/// filters of this host, packets of other hosts to the intercept ports that were dropped, and packets
/// to edge nodes that outer bridges forwarded and that were refused.
pub(crate) async fn read_counts() -> Result<Option<[u64; 4]>, NftError> {
    Ok(list_any(&TERSE).await?.as_ref().map(counts))
}

/// nft's listing of the tables, in either layout.
async fn list_any(flags: &[&'static str]) -> Result<Option<serde_json::Value>, NftError> {
    for layout in Layout::ALL {
        if let Some(found) = list(layout, flags).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// nft's listing of a layout's tables as one; `None` if one of them is missing.
async fn list(
    layout: Layout,
    flags: &[&'static str],
) -> Result<Option<serde_json::Value>, NftError> {
    let mut objects = Vec::new();
    for table in layout.tables() {
        let Some(mut listing) = list_table(table, flags).await? else {
            return Ok(None);
        };
        if let serde_json::Value::Array(of_table) = listing["nftables"].take() {
            objects.extend(of_table);
        }
    }
    Ok(Some(serde_json::json!({ "nftables": objects })))
}

async fn list_table(
    table: &LayoutTable,
    flags: &[&'static str],
) -> Result<Option<serde_json::Value>, NftError> {
    let args: Vec<&str> = [flags, &["list", "table", table.name, TABLE]].concat();
    let listed = timed(helper::get_current_ruleset_raw_async(NFT, args)).await;
    match listed {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(NftError::Output),
        Err(NftError::Run(why)) if why.contains("No such file or directory") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the table; false if it did not exist, or without the program `nft`.
pub(crate) async fn remove() -> Result<bool, NftError> {
    let mut removed = false;
    for layout in Layout::ALL {
        removed |= remove_layout(layout).await?;
    }
    Ok(removed)
}

async fn remove_layout(layout: Layout) -> Result<bool, NftError> {
    let mut removed = false;
    for table in layout.tables() {
        match list_table(table, &TERSE).await {
            Ok(None) | Err(NftError::Missing) => {}
            Ok(Some(_)) => {
                run(&removal(table)).await?;
                removed = true;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

fn difference(
    before: &BTreeSet<SocketAddr>,
    after: &BTreeSet<SocketAddr>,
) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    (
        before.difference(after).copied().collect(),
        after.difference(before).copied().collect(),
    )
}

async fn run(commands: &Nftables<'_>) -> Result<(), NftError> {
    let payload = serde_json::to_string(commands).map_err(NftError::Output)?;
    timed(helper::apply_ruleset_raw_async(
        &payload,
        NFT,
        helper::DEFAULT_ARGS.iter().copied(),
    ))
    .await
    .map(|_printed| ())
}

async fn timed(
    nft: impl Future<Output = Result<String, NftablesError>>,
) -> Result<String, NftError> {
    match tokio::time::timeout(TIMEOUT, nft).await {
        Err(_elapsed) => Err(NftError::Timeout),
        Ok(Ok(printed)) => Ok(printed),
        Ok(Err(NftablesError::NftExecution { inner, .. }))
            if inner.kind() == io::ErrorKind::NotFound =>
        {
            Err(NftError::Missing)
        }
        Ok(Err(NftablesError::NftFailed { stderr, .. })) => {
            Err(NftError::Run(stderr.trim().to_owned()))
        }
        Ok(Err(other)) => Err(NftError::Run(other.to_string())),
    }
}
