//! Claims about a disk that is full, and one that cannot be written. The disk is real: a tmpfs in a
//! mount namespace of a child process, which needs root.

use std::io::Write;
use std::process::Command;

use super::power_cut_tests::{batch, everything};
use super::*;

/// The directory of the child's disk.
const DISK: &str = "CULVERT_TEST_DISK";
const START: Duration = Duration::ZERO;

/// Runs the test of this name again, on a disk of 2 MiB. `false`: this is not that run, and the test
/// is over.
fn is_on_small_disk(test: &str) -> bool {
    if std::env::var_os(DISK).is_some() {
        return true;
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = r#"mount -t tmpfs -o size=2m tmpfs "$0" || exit 77; exec "$@""#;
    let ended = Command::new("unshare")
        .args(["--mount", "sh", "-c", mount])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args([&format!("store::full_disk_tests::{test}"), "--exact"])
        .env(DISK, directory.path())
        .output()
        .unwrap();
    let may_not_mount = matches!(ended.status.code(), Some(1 | 77)) && ended.stdout.is_empty();
    if may_not_mount {
        let required = std::env::var("REQUIRE_PRIVILEGED").is_ok_and(|value| value == "1");
        assert!(!required, "REQUIRE_PRIVILEGED=1, but a mount needs root");
        // Not with eprintln, which libtest captures while a test passes.
        writeln!(std::io::stderr(), "\nskipped: a mount needs root").unwrap();
        return false;
    }
    let output = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
    false
}

fn disk() -> PathBuf {
    std::env::var_os(DISK).unwrap().into()
}

fn remount(options: &str) {
    let mount = Command::new("mount")
        .args(["-o", &format!("remount,{options}")])
        .arg(disk())
        .status();
    assert!(mount.unwrap().success());
}

fn rows_of(batch: &Batch) -> Rows {
    let mut rows = Rows::default();
    rows.apply(batch);
    rows
}

/// More than the disk has.
fn large() -> Batch {
    let mut large = batch(1);
    for number in 0..60 {
        large.put(Table::Objects, format!("large {number}"), vec![7; 100_000]);
    }
    large
}

#[test]
fn a_full_disk_keeps_the_earlier_state_and_gets_everything_when_there_is_space() {
    if !is_on_small_disk(
        "a_full_disk_keeps_the_earlier_state_and_gets_everything_when_there_is_space",
    ) {
        return;
    }
    let (mut store, _) = Store::open(&disk(), START);
    store.write(&batch(0), START).unwrap();
    let error = culvert_daemon::chain(store.write(&large(), START).unwrap_err());
    assert!(error.contains("No space left"), "{error}");
    assert!(store.wants_everything() && !store.is_due(START));
    drop(store);
    let (mut store, read) = Store::open(&disk(), START);
    assert_eq!(read, rows_of(&batch(0)), "nothing is lost");
    assert_eq!(store.health().loaded_from, LoadedFrom::Database);
    let everything = everything(&rows_of(&large()));
    store.write(&everything, START).unwrap_err();
    store.write(&everything, LONGEST_RETRY).unwrap_err();
    remount("size=64m");
    store.write(&everything, 3 * LONGEST_RETRY).unwrap();
    assert!(store.health().last_error.is_none());
    drop(store);
    assert_eq!(Store::open(&disk(), START).1, rows_of(&large()));
}

#[test]
fn a_disk_that_cannot_be_written_is_read() {
    if !is_on_small_disk("a_disk_that_cannot_be_written_is_read") {
        return;
    }
    let (mut store, _) = Store::open(&disk(), START);
    store.write(&batch(0), START).unwrap();
    drop(store);
    remount("ro");
    let (mut store, read) = Store::open(&disk(), START);
    assert_eq!(read, rows_of(&batch(0)));
    assert_eq!(store.health().loaded_from, LoadedFrom::UnwritableDatabase);
    assert!(store.health().last_error.is_some(), "and it says so");
    let everything = everything(&rows_of(&batch(1)));
    store.write(&everything, LONGEST_RETRY).unwrap_err();
    remount("rw");
    store.write(&everything, 3 * LONGEST_RETRY).unwrap();
    drop(store);
    assert_eq!(Store::open(&disk(), START).1, rows_of(&batch(1)));
}
