//! Writes the archive: tar, compressed with gzip, for its owner alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

use super::anonymous::Anonymous;
use super::index::index;
use super::secrets::without_secrets;
use super::{Collection, Item, Names, Written, WrittenItem};

/// The folder in the archive.
const TOP: &str = "culvert-bundle";

/// Cleans all texts and writes them.
///
/// # Errors
/// The file exists, or cannot be written.
pub(crate) fn write(
    file: &Path,
    collection: Collection,
    names: Names,
    now_seconds: u64,
) -> Result<Written> {
    let collection = cleaned(collection, names);
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    let opened = opened.with_context(|| format!("create {}", file.display()))?;
    let bytes = append_all(opened, &collection, now_seconds)
        .with_context(|| format!("write {}", file.display()))?;
    let mut items = Vec::new();
    for item in collection.items {
        items.push(WrittenItem {
            bytes: item.content.as_ref().map_or(0, String::len),
            error: item.content.err(),
            path: item.path,
        });
    }
    Ok(Written {
        file: file.to_owned(),
        bytes,
        items,
    })
}

fn append_all(file: File, collection: &Collection, now_seconds: u64) -> io::Result<u64> {
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    append(
        &mut archive,
        "index.html",
        &index(collection, now_seconds),
        now_seconds,
    )?;
    for Item { path, content, .. } in &collection.items {
        if let Ok(text) = content {
            append(&mut archive, path, text, now_seconds)?;
        }
    }
    let file = archive.into_inner()?.finish()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

fn append(
    archive: &mut Builder<impl Write>,
    path: &str,
    text: &str,
    now_seconds: u64,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(now_seconds);
    archive.append_data(&mut header, format!("{TOP}/{path}"), text.as_bytes())
}

/// The same without secrets, and without names if that is wanted.
fn cleaned(mut collection: Collection, names: Names) -> Collection {
    let mut texts = Vec::new();
    for line in &mut collection.summary {
        texts.push(line);
    }
    for item in &mut collection.items {
        texts.push(&mut item.path);
        texts.push(&mut item.about);
        match &mut item.content {
            Ok(text) | Err(text) => texts.push(text),
        }
    }
    for text in &mut texts {
        **text = without_secrets(text);
    }
    if let Names::Anonymous = names {
        let mut anonymous = Anonymous::of(&collection.names);
        for text in &texts {
            anonymous.learn(text);
        }
        for text in texts {
            *text = anonymous.replace(text);
        }
    }
    collection
}
