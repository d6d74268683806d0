//! The power is cut at every moment: a disk that records writes and syncs is rebuilt as it might
//! have been, and opened again. And a disk that rots.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use redb::StorageBackend;
use redb::backends::InMemoryBackend;

use super::*;

/// What was asked of the disk.
#[derive(Clone, Debug)]
enum DiskCall {
    Length(u64),
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    Sync,
    /// A batch was reported as written: a mark of the test, not of the disk.
    Committed,
}

/// A disk in memory that remembers all calls.
#[derive(Clone, Debug)]
struct RecordingDisk {
    memory: Arc<InMemoryBackend>,
    calls: Arc<Mutex<Vec<DiskCall>>>,
}

impl RecordingDisk {
    fn new() -> Self {
        Self {
            memory: Arc::new(InMemoryBackend::new()),
            calls: Arc::default(),
        }
    }

    fn note(&self, call: DiskCall) {
        self.calls.lock().push(call);
    }
}

impl StorageBackend for RecordingDisk {
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.memory.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.note(DiskCall::Length(length));
        self.memory.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(DiskCall::Sync);
        self.memory.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(DiskCall::Write {
            offset,
            bytes: data.to_vec(),
        });
        self.memory.write(offset, data)
    }
}

/// Batches of a cache at work: each changes several rows of several tables together.
pub(super) fn batch(number: u32) -> Batch {
    let mut batch = Batch::default();
    for row in 0..12 {
        let key = format!("key-{}", (number * 5 + row) % 30);
        if (number + row).is_multiple_of(4) {
            batch.remove(Table::Objects, key.clone());
            batch.remove(Table::Members, key);
        } else {
            batch.put(Table::Objects, key.clone(), vec![number as u8; 700]);
            batch.put(Table::Members, key, number.to_le_bytes().to_vec());
        }
    }
    batch.put(
        Table::Sets,
        "head".to_owned(),
        number.to_le_bytes().to_vec(),
    );
    batch
}

/// Runs the batches, compacts after half of them, and returns what was asked of the disk and the state after each batch.
fn run(batches: u32) -> (Vec<DiskCall>, Vec<Rows>) {
    let disk = RecordingDisk::new();
    let mut database = Database::open(disk.clone()).unwrap();
    let mut states = vec![Rows::default()];
    for number in 0..batches {
        let batch = batch(number);
        database.commit(&batch).unwrap();
        disk.note(DiskCall::Committed);
        let mut state = states[states.len() - 1].clone();
        state.apply(&batch);
        states.push(state);
        if number == batches / 2 {
            database.compact().unwrap();
        }
    }
    let calls = disk.calls.lock().clone();
    assert!(
        reported(&calls) < calls.len() / 4,
        "the disk saw what redb did"
    );
    (calls, states)
}

/// A disk after these calls.
fn replay<'a>(calls: impl IntoIterator<Item = &'a DiskCall>) -> InMemoryBackend {
    let memory = InMemoryBackend::new();
    for call in calls {
        match call {
            DiskCall::Length(length) => memory.set_len(*length).unwrap(),
            DiskCall::Write { offset, bytes } => {
                let end = offset + bytes.len() as u64;
                if memory.len().unwrap() < end {
                    memory.set_len(end).unwrap();
                }
                memory.write(*offset, bytes).unwrap();
            }
            DiskCall::Sync | DiskCall::Committed => {}
        }
    }
    memory
}

/// Opens a disk after a power cut, and claims that it has a whole state, and at least the one that
/// was reported as written.
fn claim_a_whole_state(disk: InMemoryBackend, reported: usize, states: &[Rows], when: &str) {
    match Database::open(disk).and_then(|database| database.read_all()) {
        Ok(rows) => {
            let state = states.iter().rposition(|it| *it == rows);
            assert!(
                state.is_some_and(|it| it >= reported),
                "{when}: {state:?} after {reported}"
            );
        }
        // The file was not complete yet: nothing was reported as written.
        Err(error) => assert_eq!(reported, 0, "{when}: {error:?}"),
    }
}

fn reported(calls: &[DiskCall]) -> usize {
    calls
        .iter()
        .filter(|it| matches!(it, DiskCall::Committed))
        .count()
}

#[test]
fn after_a_power_cut_at_any_call_the_disk_is_a_whole_earlier_state() {
    let (calls, states) = run(12);
    for cut in 0..=calls.len() {
        let done = &calls[..cut];
        claim_a_whole_state(
            replay(done),
            reported(done),
            &states,
            &format!("cut at {cut}"),
        );
    }
}

#[test]
fn writes_that_reach_the_disk_out_of_order_change_nothing_of_that() {
    let (calls, states) = run(12);
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    for round in 0..400 {
        let cut = random.next_u64() as usize % calls.len();
        let done = &calls[..cut];
        let synced = done
            .iter()
            .rposition(|it| matches!(it, DiskCall::Sync))
            .map_or(0, |it| it + 1);
        // Some writes since the last sync did not happen; the rest happened in another order.
        let mut loose: Vec<&DiskCall> = done[synced..]
            .iter()
            .filter(|_| !random.next_u32().is_multiple_of(3))
            .collect();
        for at in (1..loose.len()).rev() {
            loose.swap(at, random.next_u64() as usize % (at + 1));
        }
        let disk = replay(done[..synced].iter().chain(loose));
        claim_a_whole_state(
            disk,
            reported(done),
            &states,
            &format!("round {round}, cut {cut}"),
        );
    }
}

/// A disk that cannot grow any more.
#[derive(Clone, Debug)]
struct FullDisk {
    disk: RecordingDisk,
    full: Arc<Mutex<bool>>,
}

impl StorageBackend for FullDisk {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.disk.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if *self.full.lock() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.disk.write(offset, data)
    }
}

#[test]
fn a_batch_that_a_full_disk_refuses_leaves_the_state_before_it() {
    let disk = FullDisk {
        disk: RecordingDisk::new(),
        full: Arc::default(),
    };
    let database = Database::open(disk.clone()).unwrap();
    database.commit(&batch(0)).unwrap();
    let before = database.read_all().unwrap();
    *disk.full.lock() = true;
    let error = database.commit(&batch(1)).unwrap_err();
    assert!(matches!(error, StoreError::Write { .. }) && !error.is_damage());
    drop(database);
    *disk.full.lock() = false;
    let again = Database::open(disk).unwrap();
    assert_eq!(again.read_all().unwrap(), before);
}

/// A directory with some batches written, and what it must read as.
fn written_directory() -> (tempfile::TempDir, Rows) {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(directory.path(), Duration::ZERO);
    let mut expected = Rows::default();
    let mut rescue = Batch::default();
    for number in 0..12 {
        let batch = batch(number);
        expected.apply(&batch);
        store.write(&batch, Duration::ZERO).unwrap();
        rescue.extend(batch);
    }
    store.write_rescue(&rescue).unwrap();
    (directory, expected)
}

/// What an owner does at its start: the rest comes from the rescue file.
fn read_all(directory: &Path) -> (Rows, LoadedFrom) {
    let (mut store, mut rows) = Store::open(directory, Duration::ZERO);
    let loaded_from = store.health().loaded_from;
    if loaded_from == LoadedFrom::DamagedDatabase {
        let rescue = store.rescue().unwrap();
        for table in Table::ALL {
            for (key, value) in rescue.all(table) {
                if rows.find(table, key).is_none() {
                    rows.insert(table, key.to_owned(), value.to_vec());
                }
            }
        }
        rows.damaged = 0;
    }
    store.write(&everything(&rows), Duration::ZERO).unwrap();
    (rows, loaded_from)
}

#[test]
fn a_cache_file_that_rots_or_is_cut_short_is_read_whole_or_replaced_by_the_rescue_file() {
    let (directory, expected) = written_directory();
    let path = database_path(directory.path());
    let intact = std::fs::read(&path).unwrap();
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[9; 32]);
    let mut from = std::collections::BTreeMap::<String, u32>::new();
    for round in 0..200 {
        let mut file = intact.clone();
        let place = random.next_u64() as usize % file.len();
        match round % 3 {
            0 => file.truncate(place),
            1 => file[place] ^= 1 << (random.next_u32() % 8),
            _ => {
                let end = (place + 4096).min(file.len());
                file[place..end].fill(0);
            }
        }
        std::fs::write(&path, file).unwrap();
        let (rows, loaded_from) = read_all(directory.path());
        assert_eq!(rows, expected, "round {round}, at {place}");
        *from.entry(format!("{loaded_from:?}")).or_default() += 1;
    }
    // All ways must have been gone.
    assert_eq!(from.len(), 3, "{from:?}");
}

#[test]
fn one_damaged_page_costs_no_more_than_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(directory.path(), Duration::ZERO);
    let mut expected = Rows::default();
    let mut all = Batch::replacing(&Table::ALL);
    for row in 0..300 {
        all.put(Table::Objects, format!("{row:04}"), vec![row as u8; 900]);
    }
    store.write(&all, Duration::ZERO).unwrap();
    expected.apply(&all);
    // Both states that redb has at any time share the page that will be damaged.
    for number in 0..2 {
        store.write(&batch(number), Duration::ZERO).unwrap();
        expected.apply(&batch(number));
    }
    let path = database_path(directory.path());
    // As the file of a program that was killed: it was not closed.
    let intact = std::fs::read(&path).unwrap();
    drop(store);
    let at = intact.windows(900).position(|it| it == [77; 900]).unwrap();
    let mut file = intact;
    file[at] ^= 1;
    std::fs::write(&path, file).unwrap();
    let (store, rows) = Store::open(directory.path(), Duration::ZERO);
    assert_eq!(store.health().loaded_from, LoadedFrom::DamagedDatabase);
    let intact = rows.all(Table::Objects).count();
    assert!(intact >= 290, "{intact} of 300 rows");
    for (key, value) in rows.all(Table::Objects) {
        assert_eq!(expected.find(Table::Objects, key), Some(value));
    }
}

/// A batch that replaces all by these rows.
pub(super) fn everything(rows: &Rows) -> Batch {
    let mut batch = Batch::replacing(&Table::ALL);
    for table in Table::ALL {
        for (key, value) in rows.all(table) {
            batch.put(table, key.to_owned(), value.to_vec());
        }
    }
    batch
}
