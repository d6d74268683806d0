//! Reads what is intact of a database that does not open. redb gives up a file for one damaged page;
//! here each table is read from both ends up to the damage, and each row has a checksum.

use std::io;
use std::ops::Bound;
use std::path::Path;

use redb::{BackendError, StorageBackend};

use super::Rows;
use super::database::read_damaged;

/// In the header of a file: the byte with redb's flags, of which one says that it was not closed.
/// redb would repair such a file before it is read (docs/design.md of redb, "God byte").
const FLAGS: usize = 9;
const NOT_CLOSED: u8 = 2;
/// A larger file is not read into memory.
const MAX_FILE: u64 = 512 << 20;

/// The rows that are intact, and how many are not, about.
pub(super) fn rows(path: &Path) -> Rows {
    let length = path.metadata().map_or(u64::MAX, |it| it.len());
    if length > MAX_FILE {
        return Rows::default();
    }
    let Ok(mut bytes) = std::fs::read(path) else {
        return Rows::default();
    };
    if let Some(flags) = bytes.get_mut(FLAGS) {
        *flags &= !NOT_CLOSED;
    }
    read_damaged(Copy(bytes)).unwrap_or_default()
}

/// A copy of the file that nothing writes.
#[derive(Debug)]
struct Copy(Vec<u8>);

impl StorageBackend for Copy {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let rest = self.0.get(start..).unwrap_or_default();
        let length = rest.len().min(out.len());
        out[..length].copy_from_slice(&rest[..length]);
        // What a file that was cut short has lost: no page is all zeros.
        out[length..].fill(0);
        Ok(())
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    // No other process has this copy: locks of the file are not needed.

    fn try_lock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn try_lock_shared_range(
        &self,
        _start: Bound<u64>,
        _end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn lock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn lock_shared_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn unlock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn query_lock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(false)
    }
}
