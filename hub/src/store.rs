//! What the hub keeps on disk, so that it can answer after a power cut without a link.
//!
//! Rows are written in batches, each in one transaction: the disk is always a state that existed.
//! A batch is taken each [`WRITE_EVERY`], or earlier when [`WRITE_AT`] bytes have collected, when
//! the link is lost, and before the program ends. Nothing here ends the program: while the disk is
//! full, read-only or broken, memory serves, the error is kept and counted, and writing is tried
//! again, longer waits each time. After an error the disk wants everything, not only what changed.
//!
//! A database that does not open is moved aside. What of its rows is intact is read from it, and the
//! rest from the rescue file.

mod batch;
mod database;
mod frame;
mod rescue;
mod salvage;

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::StorageBackend;
use redb::backends::{FileBackend, InMemoryBackend};

pub(crate) use self::batch::{Batch, Rows, Table, Value};
use self::database::Database;

/// How often changes are written. A power cut loses no more than this, and all of it can be asked
/// for again; a commit costs some ten pages of flash. On ext4 it costs 2.3 flushes of the disk,
/// because the journal is committed too: so there is at most one in 5 s.
pub(crate) const WRITE_EVERY: Duration = Duration::from_secs(12);
/// Changes are written earlier when so much has collected. An object that changed ten times counts
/// ten times, and is written once.
pub(crate) const WRITE_AT: usize = 4 << 20;

/// The first wait after a failed write.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// A full disk is not helped by trying more often.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// A shorter file is not worth compacting, in bytes.
const COMPACT_FROM: u64 = 1 << 20;

/// Why the disk was not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("prepare the directory {directory}")]
    Directory {
        directory: PathBuf,
        source: io::Error,
    },
    #[error("open {path}")]
    OpenFile { path: PathBuf, source: io::Error },
    #[error("move {path} aside")]
    MoveAside { path: PathBuf, source: io::Error },
    #[error("open the database")]
    Open { source: redb::Error },
    #[error("read the database")]
    Read { source: redb::Error },
    #[error("write the database")]
    Write { source: redb::Error },
    #[error("compact the database")]
    Compact { source: redb::Error },
    #[error("redb panicked on a damaged file")]
    Panicked,
    #[error("write the rescue file")]
    Rescue { source: io::Error },
    #[error("a batch of changes was given to a disk that wants everything")]
    WantsEverything,
    #[error("the next attempt is not due yet")]
    Waiting,
}

impl StoreError {
    /// Whether the file is damaged, and not only the disk unwilling.
    fn is_damage(&self) -> bool {
        match self {
            Self::Open { source } | Self::Read { source } => !is_disk_trouble(source),
            Self::Panicked => true,
            Self::Directory { .. }
            | Self::OpenFile { .. }
            | Self::MoveAside { .. }
            | Self::Write { .. }
            | Self::Compact { .. }
            | Self::Rescue { .. }
            | Self::WantsEverything
            | Self::Waiting => false,
        }
    }
}

/// Whether the file may be intact, and cannot be used now.
fn is_disk_trouble(error: &redb::Error) -> bool {
    if let redb::Error::Io(error) = error {
        return !matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData
        );
    }
    matches!(error, redb::Error::DatabaseAlreadyOpen)
}

/// Where the rows that were read at the start came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadedFrom {
    /// The database, which is open.
    Database,
    /// The database file, which cannot be written now.
    UnwritableDatabase,
    /// Rows that are intact of a database that did not open and was moved aside.
    DamagedDatabase,
    /// The rescue file: the database did not open and was moved aside.
    Rescue,
    /// Nothing: a first start, or all was lost.
    Nothing,
}

/// How the disk is.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    pub(crate) loaded_from: LoadedFrom,
    /// The error of the last attempt; `None` after a success.
    pub(crate) last_error: Option<StoreError>,
    pub(crate) errors: u64,
    pub(crate) commits: u64,
    /// Bytes of keys and values, not of pages.
    pub(crate) written_bytes: u64,
}

/// The disk. One task owns it; its functions block.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    /// `None` after an error: redb takes nothing after one, so it is opened again.
    database: Option<Database>,
    health: StoreHealth,
    wants_everything: bool,
    failures_in_a_row: u32,
    /// In the caller's uptime.
    retry_at: Duration,
}

impl Store {
    /// Opens the directory and reads all that is there. It always succeeds: how well, health says.
    pub(crate) fn open(directory: &Path, uptime: Duration) -> (Self, Rows) {
        let mut store = Self {
            directory: directory.to_owned(),
            database: None,
            health: StoreHealth {
                loaded_from: LoadedFrom::Nothing,
                last_error: None,
                errors: 0,
                commits: 0,
                written_bytes: 0,
            },
            wants_everything: true,
            failures_in_a_row: 0,
            retry_at: Duration::ZERO,
        };
        let rows = store.load(uptime);
        (store, rows)
    }

    fn load(&mut self, uptime: Duration) -> Rows {
        let error = match open_database(&self.directory).and_then(with_rows) {
            Ok((database, rows)) => {
                self.database = Some(database);
                self.wants_everything = rows.damaged > 0;
                if rows == Rows::default() {
                    return self.load_rescue();
                }
                self.health.loaded_from = LoadedFrom::Database;
                return rows;
            }
            Err(error) => error,
        };
        let damaged = error.is_damage();
        self.record_error(error, uptime);
        if !damaged && let Some(rows) = read_unwritable(&self.directory) {
            self.health.loaded_from = LoadedFrom::UnwritableDatabase;
            return rows;
        }
        let mut salvaged = Rows::default();
        if damaged {
            salvaged = salvage::rows(&database_path(&self.directory));
            // It can be written at once: the next write begins a new file.
            self.retry_at = Duration::ZERO;
            if let Err(error) = move_aside(&self.directory) {
                self.record_error(error, uptime);
            }
        }
        if salvaged.is_empty() {
            return self.load_rescue();
        }
        self.health.loaded_from = LoadedFrom::DamagedDatabase;
        salvaged
    }

    fn load_rescue(&mut self) -> Rows {
        let Some(rows) = rescue::read(&self.directory) else {
            return Rows::default();
        };
        self.wants_everything = true;
        self.health.loaded_from = LoadedFrom::Rescue;
        rows
    }

    /// What the rescue file has, for what is missing elsewhere.
    pub(crate) fn rescue(&self) -> Option<Rows> {
        rescue::read(&self.directory)
    }

    /// Whether the next batch must be everything.
    pub(crate) fn wants_everything(&self) -> bool {
        self.wants_everything
    }

    /// Makes the next batch be everything: what was read did not make sense to its owner.
    pub(crate) fn demand_everything(&mut self) {
        self.wants_everything = true;
    }

    /// Whether a write makes sense now.
    pub(crate) fn is_due(&self, uptime: Duration) -> bool {
        uptime >= self.retry_at
    }

    /// Writes a batch in one transaction. If it fails, the disk is as before, and wants everything.
    pub(crate) fn write(&mut self, batch: &Batch, uptime: Duration) -> Result<(), &StoreError> {
        let written = self.try_write(batch, uptime);
        match written {
            Ok(()) => {
                self.health.commits += 1;
                self.health.written_bytes += batch.bytes() as u64;
                self.health.last_error = None;
                self.wants_everything = false;
                self.failures_in_a_row = 0;
                Ok(())
            }
            Err(error) => Err(self.record_error(error, uptime)),
        }
    }

    fn try_write(&mut self, batch: &Batch, uptime: Duration) -> Result<(), StoreError> {
        if !self.is_due(uptime) {
            return Err(StoreError::Waiting);
        }
        if self.wants_everything && !batch.is_everything() {
            return Err(StoreError::WantsEverything);
        }
        if self.database.is_none() {
            let database = match open_database(&self.directory) {
                Err(error) if error.is_damage() => {
                    move_aside(&self.directory)?;
                    open_database(&self.directory)?
                }
                opened => opened?,
            };
            self.database = Some(database);
        }
        match &self.database {
            Some(database) => database.commit(batch),
            None => Err(StoreError::Waiting),
        }
    }

    /// Replaces the older slot of the rescue file, unless the newer one has just this.
    pub(crate) fn write_rescue(&mut self, batch: &Batch) -> Result<(), StoreError> {
        rescue::write(&self.directory, batch).map_err(|source| StoreError::Rescue { source })
    }

    /// Gives unused space back if more than half of the file is unused. It rewrites much of the
    /// file: only with the link up.
    pub(crate) fn compact(&mut self, uptime: Duration) -> Result<(), &StoreError> {
        self.try_compact()
            .map_err(|error| self.record_error(error, uptime))
    }

    fn try_compact(&mut self) -> Result<(), StoreError> {
        let Some(database) = &mut self.database else {
            return Ok(());
        };
        let path = database_path(&self.directory);
        let length = match path.metadata() {
            Ok(metadata) => metadata.len(),
            Err(source) => return Err(StoreError::OpenFile { path, source }),
        };
        if length >= COMPACT_FROM && database.used_bytes()? < length / 2 {
            database.compact()?;
        }
        Ok(())
    }

    /// How the disk is.
    pub(crate) fn health(&self) -> &StoreHealth {
        &self.health
    }

    fn record_error(&mut self, error: StoreError, uptime: Duration) -> &StoreError {
        if !matches!(error, StoreError::Waiting | StoreError::WantsEverything) {
            let wait = FIRST_RETRY * 2_u32.saturating_pow(self.failures_in_a_row.min(10));
            self.retry_at = uptime + wait.min(LONGEST_RETRY);
            self.failures_in_a_row += 1;
            self.health.errors += 1;
            self.wants_everything = true;
            self.database = None;
        }
        self.health.last_error.insert(error)
    }
}

fn with_rows(database: Database) -> Result<(Database, Rows), StoreError> {
    let rows = database.read_all()?;
    Ok((database, rows))
}

fn database_path(directory: &Path) -> PathBuf {
    directory.join("cache.redb")
}

fn open_database(directory: &Path) -> Result<Database, StoreError> {
    prepare(directory).map_err(|source| StoreError::Directory {
        directory: directory.to_owned(),
        source,
    })?;
    let path = database_path(directory);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|source| StoreError::OpenFile { path, source })?;
    let backend = FileBackend::new(file).map_err(|source| StoreError::Open {
        source: source.into(),
    })?;
    Database::open(backend)
}

fn prepare(directory: &Path) -> io::Result<()> {
    if !directory.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    if directory.metadata()?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Reads a database whose file cannot be written: recovery writes, so it works on a copy in memory.
fn read_unwritable(directory: &Path) -> Option<Rows> {
    let content = std::fs::read(database_path(directory)).ok()?;
    let memory = InMemoryBackend::new();
    memory.set_len(content.len() as u64).ok()?;
    memory.write(0, &content).ok()?;
    drop(content);
    Database::open(memory)
        .and_then(|database| database.read_all())
        .ok()
}

/// Keeps one damaged file, so that the damage can be examined.
fn move_aside(directory: &Path) -> Result<(), StoreError> {
    let path = database_path(directory);
    std::fs::rename(&path, directory.join("cache.redb.bad"))
        .and_then(|()| File::open(directory)?.sync_all())
        .map_err(|source| StoreError::MoveAside { path, source })
}

#[cfg(test)]
mod full_disk_tests;
#[cfg(test)]
mod power_cut_tests;
#[cfg(test)]
mod tests;
