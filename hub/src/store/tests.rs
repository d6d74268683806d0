//! Claims about the store on a real directory.

use super::power_cut_tests::{batch, everything};
use super::*;

const START: Duration = Duration::ZERO;

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

fn written(directory: &Path) -> Rows {
    let (mut store, _) = Store::open(directory, START);
    store.write(&batch(0), START).unwrap();
    let mut rows = Rows::default();
    rows.apply(&batch(0));
    rows
}

#[test]
fn only_its_owner_reads_the_cache() {
    let directory = tempfile::tempdir().unwrap();
    let hub = directory.path().join("hub");
    written(&hub);
    assert_eq!((mode(&hub), mode(&database_path(&hub))), (0o700, 0o600));
}

#[test]
fn what_was_written_is_read_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let rows = written(directory.path());
    let (store, read) = Store::open(directory.path(), START);
    assert_eq!(read, rows);
    assert_eq!(store.health().loaded_from, LoadedFrom::Database);
}

#[test]
fn a_file_that_is_no_database_is_moved_aside_and_the_rescue_file_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let rows = written(directory.path());
    let (mut store, _) = Store::open(directory.path(), START);
    store.write_rescue(&everything(&rows)).unwrap();
    drop(store);
    std::fs::write(database_path(directory.path()), b"not a database").unwrap();
    let (mut store, read) = Store::open(directory.path(), START);
    assert_eq!(read, rows);
    assert_eq!(store.health().loaded_from, LoadedFrom::Rescue);
    assert!(directory.path().join("cache.redb.bad").exists());
    assert!(matches!(
        store.write(&batch(1), START),
        Err(StoreError::WantsEverything)
    ));
    store.write(&everything(&rows), START).unwrap();
    drop(store);
    assert_eq!(Store::open(directory.path(), START).1, rows);
}

#[test]
fn a_database_that_another_process_has_is_read_and_left_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let rows = written(directory.path());
    let (other, _) = Store::open(directory.path(), START);
    let (mut store, read) = Store::open(directory.path(), START);
    assert_eq!(read, rows);
    assert_eq!(store.health().loaded_from, LoadedFrom::UnwritableDatabase);
    drop(other);
    store.write(&everything(&rows), LONGEST_RETRY).unwrap();
}

#[test]
fn a_disk_that_takes_nothing_is_tried_again_later_and_then_gets_everything() {
    let directory = tempfile::tempdir().unwrap();
    let hub = directory.path().join("hub");
    std::fs::write(&hub, b"a file where the directory should be").unwrap();
    let (mut store, rows) = Store::open(&hub, START);
    assert_eq!(rows, Rows::default());
    assert!(!store.is_due(START));
    let everything = Batch::replacing(&Table::ALL);
    assert!(matches!(
        store.write(&everything, START),
        Err(StoreError::Waiting)
    ));
    store.write(&everything, FIRST_RETRY).unwrap_err();
    assert_eq!(store.health().errors, 2);
    assert!(!store.is_due(FIRST_RETRY * 2), "the second wait is longer");
    std::fs::remove_file(&hub).unwrap();
    store.write(&everything, LONGEST_RETRY).unwrap();
    assert!(store.health().last_error.is_none() && !store.wants_everything());
}

#[test]
fn a_file_is_compacted_when_more_than_half_of_it_is_unused() {
    let directory = tempfile::tempdir().unwrap();
    let length = || database_path(directory.path()).metadata().unwrap().len();
    let (mut store, _) = Store::open(directory.path(), START);
    let mut large = Batch::replacing(&Table::ALL);
    for row in 0..400 {
        large.put(Table::Objects, format!("{row:03}"), vec![7; 10_000]);
    }
    store.write(&large, START).unwrap();
    let full = length();
    store.compact(START).unwrap();
    assert_eq!(length(), full, "little of it is unused");
    // What is left is spread over the file, so that redb does not cut it by itself.
    let mut less = Batch::default();
    for row in (0..400).filter(|row| row % 10 != 9) {
        less.remove(Table::Objects, format!("{row:03}"));
    }
    store.write(&less, START).unwrap();
    let unused = length();
    store.compact(START).unwrap();
    assert!(length() < unused / 2, "{} of {unused}", length());
    drop(store);
    let mut rows = Rows::default();
    rows.apply(&large);
    rows.apply(&less);
    assert_eq!(Store::open(directory.path(), START).1, rows);
}

#[test]
fn a_batch_of_everything_removes_what_it_does_not_have() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path());
    let (mut store, _) = Store::open(directory.path(), START);
    let mut other = Rows::default();
    other.apply(&batch(7));
    store.write(&everything(&other), START).unwrap();
    drop(store);
    assert_eq!(Store::open(directory.path(), START).1, other);
}
