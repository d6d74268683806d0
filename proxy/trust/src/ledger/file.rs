//! The ledger on disk. A change appends the records that changed, whole, and syncs once. So a
//! renewal costs a line, however many nodes there are. A file that has doubled is replaced by what
//! lives.
//!
//! Each line is JSON; the last record of a node counts. A batch of records ends with the time
//! served, which makes it valid: what a crash left of the last batch is dropped.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use culvert_api::NodeName;
use culvert_daemon::write_atomic;
use culvert_proxy_core::state::{FORMAT, PRIVATE, StateDir, StateError, StateFile};
use serde::{Deserialize, Serialize};

use super::{Ledger, Record};

const LEDGER: StateFile = StateFile {
    name: "certificates.jsonl",
    what: "the revocations of removed nodes' certificates",
};
/// The ledger of earlier versions: one JSON document, replaced with each change.
const FORMER: StateFile = StateFile {
    name: "certificates.json",
    ..LEDGER
};

/// The file is replaced when it is so many times as long as after the last replacement.
const GROWTH: u64 = 2;
/// A shorter file is never replaced for its length.
const SHORT: u64 = 1 << 20;
/// Far above a record with all its certificates. A longer line was not written by the proxy.
const MAX_LINE: u64 = 64 << 10;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    /// The first line.
    Version(u32),
    /// A node's record in place of the one before. An empty one removes it.
    Node { name: NodeName, record: Record },
    /// The time served, in seconds. It completes the batch of records before it.
    Served(u64),
}

/// The file, and when to replace it.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    path: PathBuf,
    state: StateDir,
    length: u64,
    /// The length from which on it is replaced.
    longest: u64,
}

impl LedgerFile {
    /// The file of the state directory with its content. A former file is turned into one.
    pub(crate) fn open(state: &StateDir) -> Result<(Self, Ledger), StateError> {
        let mut file = Self {
            path: state.join(LEDGER.name),
            state: state.clone(),
            length: 0,
            longest: 0,
        };
        let ledger = match File::open(&file.path) {
            Ok(opened) => file.read(opened)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let former: Option<Ledger> = state.read(FORMER)?;
                if let Some(former) = &former {
                    file.replace(former)?;
                }
                former.unwrap_or_default()
            }
            Err(source) => return Err(file.not_read(source)),
        };
        // Its content is in the new file. A disk that is read-only keeps both until later.
        let former = state.join(FORMER.name);
        match std::fs::remove_file(&former).map_err(|source| (source.kind(), source)) {
            Ok(()) | Err((io::ErrorKind::NotFound | io::ErrorKind::ReadOnlyFilesystem, _)) => {
                Ok((file, ledger))
            }
            Err((_, source)) => Err(StateError::Write {
                path: former,
                source,
            }),
        }
    }

    /// Whether the next write should replace it: it is long, missing, or ends with what a failed
    /// write left.
    pub(crate) fn is_due(&self) -> bool {
        self.length >= self.longest
    }

    /// Adds the records of these nodes. They are on disk when this returns. After a failure the
    /// file is due.
    pub(crate) fn append(
        &mut self,
        ledger: &Ledger,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<(), StateError> {
        let state = self.state.clone();
        let _unfrozen = state.unfrozen(&self.path)?;
        let appended = self.append_batch(ledger, nodes);
        match appended {
            Ok(length) => {
                self.length += length;
                Ok(())
            }
            Err(source) => {
                self.longest = 0;
                Err(self.not_written(source))
            }
        }
    }

    fn append_batch(&self, ledger: &Ledger, nodes: &BTreeSet<NodeName>) -> io::Result<u64> {
        let batch = batch(ledger, nodes.iter())?;
        let mut file = File::options().append(true).open(&self.path)?;
        file.write_all(&batch)?;
        file.sync_data()?;
        Ok(batch.len() as u64)
    }

    /// Replaces the file by this ledger, atomically.
    pub(crate) fn replace(&mut self, ledger: &Ledger) -> Result<(), StateError> {
        let state = self.state.clone();
        let _unfrozen = state.unfrozen(&self.path)?;
        let written = self.write_whole(ledger);
        self.length = written.map_err(|source| self.not_written(source))?;
        self.longest = SHORT.max(self.length * GROWTH);
        Ok(())
    }

    fn write_whole(&self, ledger: &Ledger) -> io::Result<u64> {
        let mut text = line(&Line::Version(FORMAT))?;
        text.extend(batch(ledger, ledger.nodes.keys())?);
        write_atomic(&self.path, &text, PRIVATE)?;
        Ok(text.len() as u64)
    }

    /// Reads the file, and cuts off a batch that is not complete.
    fn read(&mut self, opened: File) -> Result<Ledger, StateError> {
        let mut reading = Reading::default();
        let mut lines = BufReader::new(opened);
        loop {
            let mut text = Vec::new();
            lines
                .by_ref()
                .take(MAX_LINE)
                .read_until(b'\n', &mut text)
                .map_err(|source| self.not_read(source))?;
            if text.is_empty() {
                break;
            }
            reading.add_line(&text, &self.path)?;
        }
        let Reading {
            ledger,
            first,
            complete,
            end,
            ..
        } = reading;
        // The first batch was put there as a whole.
        if first == 0 {
            return Err(self.invalid("it ends too early"));
        }
        if complete < end {
            tracing::warn!(
                file = %self.path.display(),
                bytes = end - complete,
                "dropped what a crash left of the ledger's last write"
            );
        }
        self.length = complete;
        self.longest = SHORT.max(first * GROWTH);
        if complete < end
            && let Err(error) = self.cut(complete)
        {
            // Nothing may follow it: the next write replaces the file.
            tracing::warn!(file = %self.path.display(), %error, "the ledger could not be cut");
            self.longest = 0;
        }
        Ok(ledger)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        file.set_len(length)?;
        file.sync_all()
    }

    fn not_read(&self, source: io::Error) -> StateError {
        StateError::Read {
            path: self.path.clone(),
            source,
        }
    }

    fn not_written(&self, source: io::Error) -> StateError {
        StateError::Write {
            path: self.path.clone(),
            source,
        }
    }

    fn invalid(&self, problem: &str) -> StateError {
        StateError::Invalid {
            path: self.path.clone(),
            problem: problem.to_owned(),
            what: LEDGER.what,
        }
    }
}

/// A file as far as it was read.
#[derive(Default)]
struct Reading {
    ledger: Ledger,
    /// Records of the batch that is not complete yet.
    records: Vec<(NodeName, Record)>,
    /// The error of a batch with a broken line, and whether that batch is over.
    broken: Option<StateError>,
    broken_is_over: bool,
    lines: usize,
    /// Where the first batch, the last complete one and the last line end.
    first: u64,
    complete: u64,
    end: u64,
}

impl Reading {
    /// Adds a line. A broken one is an error in the first batch, and as soon as something follows
    /// its batch: no crash does that.
    fn add_line(&mut self, text: &[u8], path: &Path) -> Result<(), StateError> {
        if self.broken_is_over
            && let Some(error) = self.broken.take()
        {
            return Err(error);
        }
        self.lines += 1;
        self.end += text.len() as u64;
        match self.parse(text, path) {
            Err(error) if self.first == 0 => Err(error),
            Err(error) => {
                self.broken.get_or_insert(error);
                Ok(())
            }
            Ok(Line::Version(_)) => Ok(()),
            Ok(Line::Node { name, record }) => {
                self.records.push((name, record));
                Ok(())
            }
            Ok(Line::Served(served)) => {
                self.complete(served);
                Ok(())
            }
        }
    }

    fn complete(&mut self, served: u64) {
        if self.broken.is_some() {
            self.broken_is_over = true;
            return;
        }
        for (name, record) in self.records.drain(..) {
            if record == Record::default() {
                self.ledger.nodes.remove(&name);
            } else {
                self.ledger.nodes.insert(name, record);
            }
        }
        self.ledger.served = served;
        self.complete = self.end;
        if self.first == 0 {
            self.first = self.end;
        }
    }

    fn parse(&self, text: &[u8], path: &Path) -> Result<Line, StateError> {
        let Some(text) = text.strip_suffix(b"\n") else {
            return Err(invalid("its last line has no end", path));
        };
        let line = serde_json::from_slice(text).map_err(|source| StateError::Broken {
            path: path.to_owned(),
            line: self.lines,
            column: source.column(),
            what: LEDGER.what,
            source,
        })?;
        match (&line, self.lines) {
            (Line::Version(FORMAT), 1) => Ok(line),
            (Line::Version(found), 1) => Err(StateError::Newer {
                path: path.to_owned(),
                found: *found,
            }),
            (Line::Version(_), _) => Err(invalid("it has a second first line", path)),
            (_, 1) => Err(invalid("its first line has no version", path)),
            (Line::Node { .. } | Line::Served(_), _) => Ok(line),
        }
    }
}

fn invalid(problem: &str, path: &Path) -> StateError {
    StateError::Invalid {
        path: path.to_owned(),
        problem: problem.to_owned(),
        what: LEDGER.what,
    }
}

/// The records of these nodes, complete.
fn batch<'a>(ledger: &Ledger, nodes: impl Iterator<Item = &'a NodeName>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for name in nodes {
        let record = ledger.nodes.get(name).cloned().unwrap_or_default();
        let name = name.clone();
        text.extend(line(&Line::Node { name, record })?);
    }
    text.extend(line(&Line::Served(ledger.served))?);
    Ok(text)
}

fn line(line: &Line) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests;
