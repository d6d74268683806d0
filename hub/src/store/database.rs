//! The rows in redb. All of redb that the hub knows is in this file.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::{
    Builder, ConcurrencyMode, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition,
};

use super::frame::{frame, unframe};
use super::{Batch, Rows, StoreError, Table};

/// The size of redb's own page cache. Its default is 1 GiB; the hub reads the file once, at its
/// start.
const PAGE_CACHE: usize = 512 << 10;

/// An open database. redb may panic on pages that are damaged: that is an error here.
#[derive(Debug)]
pub(super) struct Database {
    redb: redb::Database,
}

impl Database {
    /// Opens or creates, recovers if need be, and checks every page.
    pub(super) fn open(backend: impl StorageBackend) -> Result<Self, StoreError> {
        guarded(
            |source| StoreError::Open { source },
            || {
                let mut builder = Builder::new();
                builder
                    .set_cache_size(PAGE_CACHE)
                    .set_check_integrity_on_open(true);
                let redb = builder.create_with_backend(backend)?;
                Ok(Self { redb })
            },
        )
    }

    /// Reads all rows. Those that are damaged are counted and left out.
    pub(super) fn read_all(&self) -> Result<Rows, StoreError> {
        guarded(
            |source| StoreError::Read { source },
            || {
                let mut rows = Rows::default();
                let transaction = self.redb.begin_read()?;
                for table in Table::ALL {
                    let rows_of_table = match transaction.open_table(definition(table)) {
                        Ok(open) => open,
                        Err(redb::TableError::TableDoesNotExist(_)) => continue,
                        Err(source) => return Err(source.into()),
                    };
                    for row in rows_of_table.iter()? {
                        let (key, value) = row?;
                        let key = key.value();
                        let value = value.value();
                        match unframe(table, key, value) {
                            Some(value) => rows.insert(table, key.to_owned(), value.to_vec()),
                            None => rows.damaged += 1,
                        }
                    }
                }
                Ok(rows)
            },
        )
    }

    /// Writes a batch in one transaction. After it returns, the batch survives a power cut.
    pub(super) fn commit(&self, batch: &Batch) -> Result<(), StoreError> {
        guarded(
            |source| StoreError::Write { source },
            || {
                let transaction = self.redb.begin_write()?;
                for table in Table::ALL {
                    if batch.replaces(table) || batch.changes(table).next().is_some() {
                        let mut open = transaction.open_table(definition(table))?;
                        change(&mut open, table, batch)?;
                    }
                }
                transaction.commit()?;
                Ok(())
            },
        )
    }

    /// The length of the pages that are in use, in bytes.
    pub(super) fn used_bytes(&self) -> Result<u64, StoreError> {
        guarded(
            |source| StoreError::Compact { source },
            || {
                let transaction = self.redb.begin_write()?;
                let stats = transaction.stats()?;
                transaction.abort()?;
                Ok(stats.allocated_pages() * stats.page_size() as u64)
            },
        )
    }

    /// Gives unused pages back to the file system.
    pub(super) fn compact(&mut self) -> Result<(), StoreError> {
        guarded(
            |source| StoreError::Compact { source },
            || {
                self.redb.compact()?;
                Ok(())
            },
        )
    }
}

/// Reads the rows of a file that is damaged, each table from both ends up to the damage. Those that
/// are damaged themselves are counted.
pub(super) fn read_damaged(backend: impl StorageBackend) -> Result<Rows, StoreError> {
    let transaction = guarded(
        |source| StoreError::Open { source },
        || {
            let mut builder = Builder::new();
            // A reader beside another process trusts the file as it is, and needs no state of a writer.
            builder
                .set_cache_size(PAGE_CACHE)
                .set_concurrency_mode(ConcurrencyMode::SingleWriter);
            let redb = builder.open_read_only_with_backend(backend)?;
            Ok(redb.begin_read()?)
        },
    )?;
    let mut rows = Rows::default();
    for table in Table::ALL {
        for end in [End::First, End::Last] {
            // What was read up to the damage stays.
            guarded(
                |source| StoreError::Read { source },
                || read_from(&transaction, table, end, &mut rows),
            )
            .ok();
        }
    }
    Ok(rows)
}

/// Where the reading of a table begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    First,
    Last,
}

fn read_from(
    transaction: &ReadTransaction,
    table: Table,
    end: End,
    rows: &mut Rows,
) -> Result<(), redb::Error> {
    let open = transaction.open_table(definition(table))?;
    let mut all = open.iter()?;
    loop {
        let row = match end {
            End::First => all.next(),
            End::Last => all.next_back(),
        };
        let Some(row) = row else {
            return Ok(());
        };
        let (key_guard, value_guard) = row?;
        let key = key_guard.value();
        match unframe(table, key, value_guard.value()) {
            // All was read from the other end.
            Some(_) if end == End::Last && rows.find(table, key).is_some() => return Ok(()),
            Some(value) => rows.insert(table, key.to_owned(), value.to_vec()),
            None => rows.damaged += 1,
        }
    }
}

type OpenTable<'a> = redb::Table<'a, &'static str, &'static [u8]>;

/// Writes only what differs when it replaces the table: flash is worn by writing, not by reading.
fn change(open: &mut OpenTable<'_>, table: Table, batch: &Batch) -> Result<(), redb::Error> {
    let replaces = batch.replaces(table);
    if replaces {
        open.retain(|key, _| batch.names(table, key))?;
    }
    for (key, value) in batch.changes(table) {
        let Some(value) = value else {
            open.remove(key)?;
            continue;
        };
        let framed = frame(table, key, value);
        if replaces && open.get(key)?.is_some_and(|it| it.value() == framed) {
            continue;
        }
        open.insert(key, framed.as_slice())?;
    }
    Ok(())
}

fn definition(table: Table) -> TableDefinition<'static, &'static str, &'static [u8]> {
    TableDefinition::new(table.name())
}

/// Makes a panic of redb an error. The caller drops the database on an error, so nothing is used
/// that a panic left half-done.
fn guarded<T>(
    error: impl FnOnce(redb::Error) -> StoreError,
    step: impl FnOnce() -> Result<T, redb::Error>,
) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(done) => done.map_err(error),
        Err(_) => Err(StoreError::Panicked),
    }
}
