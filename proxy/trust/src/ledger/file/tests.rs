//! The ledger on a real disk: what it costs, and what is there after a crash.

use std::process::{Command, Stdio};
use std::time::Duration;

use culvert_proxy_core::clock::UnixTime;
use tempfile::TempDir;

use super::*;
use crate::identity::{Binding, Credential, RENEWAL_GRACE, Serial};
use crate::ledger::{CertificateStatus, MAX_PER_NODE};

const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
const HOUR: Duration = Duration::from_secs(3600);
/// In the environment of the writer that is killed: its state directory.
const KILLED: &str = "CULVERT_TEST_LEDGER";

struct Site {
    path: TempDir,
    state: StateDir,
}

impl Site {
    fn new() -> Self {
        let path = tempfile::tempdir().unwrap();
        let state = StateDir::open(path.path()).unwrap();
        Self { path, state }
    }

    fn open(&self) -> (LedgerFile, Ledger) {
        LedgerFile::open(&self.state).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.path.path().join(LEDGER.name)
    }

    fn text(&self) -> Vec<u8> {
        std::fs::read(self.file()).unwrap()
    }
}

fn node(number: u32) -> NodeName {
    format!("edge-{number:05}").parse().unwrap()
}

/// A certificate of the cluster's proxies.
fn made(node: NodeName, now: UnixTime) -> Credential {
    Credential {
        node,
        serial: Serial::random(),
        not_before: now,
        not_after: now + 24 * HOUR,
        binding: Some(Binding::default()),
    }
}

/// A certificate that an operator issued.
fn ready(node: NodeName) -> Credential {
    Credential {
        binding: None,
        ..made(node, NOW)
    }
}

/// Writes as [`crate::Trust`] does. Returns the bytes.
fn write(file: &mut LedgerFile, ledger: &mut Ledger) -> u64 {
    let changed = ledger.take_unwritten();
    if file.is_due() {
        file.replace(ledger).unwrap();
        return file.length;
    }
    let before = file.length;
    file.append(ledger, &changed).unwrap();
    file.length - before
}

/// A file with a first batch of two nodes and a second one of two more, and both ledgers.
fn two_batches(site: &Site) -> [Ledger; 2] {
    let (mut file, mut ledger) = site.open();
    ledger.record(&ready(node(1)), RENEWAL_GRACE, NOW);
    ledger.revoke(&node(2), NOW, NOW);
    write(&mut file, &mut ledger);
    let before = ledger.clone();
    ledger.set_served(HOUR);
    ledger.revoke(&node(1), NOW + HOUR, NOW);
    ledger.record(&ready(node(3)), RENEWAL_GRACE, NOW);
    write(&mut file, &mut ledger);
    [before, ledger]
}

#[test]
fn the_ledger_is_read_back_and_a_change_writes_only_what_changed() {
    let site = Site::new();
    let [_, ledger] = two_batches(&site);
    assert_eq!(site.open().1, ledger);
    let text = String::from_utf8(site.text()).unwrap();
    let lines_of = |number| text.matches(&node(number).to_string()).count();
    assert_eq!((lines_of(1), lines_of(2), lines_of(3)), (2, 1, 1));
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(site.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, PRIVATE);
}

#[test]
fn a_write_that_was_cut_anywhere_leaves_the_ledger_of_before_and_the_next_one_goes_on() {
    let site = Site::new();
    let [before, after] = two_batches(&site);
    let whole = site.text();
    let first = {
        let mut file = LedgerFile {
            path: site.file(),
            state: site.state.clone(),
            length: 0,
            longest: 0,
        };
        file.replace(&before).unwrap();
        usize::try_from(file.length).unwrap()
    };
    for cut in first..=whole.len() {
        std::fs::write(site.file(), &whole[..cut]).unwrap();
        let (mut file, mut ledger) = site.open();
        let expected = if cut == whole.len() { &after } else { &before };
        assert_eq!(&ledger, expected, "cut at {cut}");
        ledger.record(&ready(node(4)), RENEWAL_GRACE, NOW);
        write(&mut file, &mut ledger);
        assert_eq!(site.open().1, ledger, "cut at {cut}");
    }
    // A disk that had made room, but not written it.
    let zeros = [&whole[..first], &vec![0; whole.len() - first]].concat();
    std::fs::write(site.file(), zeros).unwrap();
    assert_eq!(site.open().1, before);
}

#[test]
fn damage_that_no_crash_explains_is_an_error_with_its_place_and_the_fix() {
    let site = Site::new();
    two_batches(&site);
    let whole = String::from_utf8(site.text()).unwrap();
    let (mut file, mut ledger) = site.open();
    ledger.revoke(&node(3), NOW, NOW);
    write(&mut file, &mut ledger);
    let three = String::from_utf8(site.text()).unwrap();
    let second = three.replacen("{\"name\":\"edge-00003\"", "{\"name\":\"-\"", 1);
    for (text, expected) in [
        (second.as_str(), "line 6, column"),
        (&whole.replacen("edge-00001", "-", 1), "line 2, column"),
        (&whole[..20], "its last line has no end"),
        ("", "it ends too early"),
        ("{\"version\":1}\n", "it ends too early"),
        ("{\"version\":2}\n", "format 2"),
        ("{\"served\":2}\n", "no version"),
    ] {
        std::fs::write(site.file(), text).unwrap();
        let error = LedgerFile::open(&site.state).unwrap_err().to_string();
        assert!(
            error.contains(LEDGER.name) && error.contains(expected),
            "{expected}: {error}"
        );
        assert_eq!(site.text(), text.as_bytes());
    }
}

#[test]
fn a_ledger_of_an_earlier_version_is_taken_over() {
    let site = Site::new();
    let mut ledger = Ledger::default();
    let known = ready(node(1));
    ledger.record(&known, RENEWAL_GRACE, NOW);
    ledger.revoke(&node(2), NOW + HOUR, NOW);
    ledger.take_unwritten();
    site.state.write(FORMER, &ledger).unwrap();
    for _start in 0..2 {
        let (_, found) = site.open();
        assert_eq!(found, ledger);
        assert_eq!(found.status(&known), CertificateStatus::Known);
        assert!(!site.path.path().join(FORMER.name).exists());
    }
}

#[test]
fn a_write_that_failed_is_made_up_for_by_the_next() {
    let site = Site::new();
    let [_, mut ledger] = two_batches(&site);
    let (mut file, _) = site.open();
    std::fs::remove_file(site.file()).unwrap();
    ledger.revoke(&node(7), NOW, NOW);
    let changed = ledger.take_unwritten();
    file.append(&ledger, &changed).unwrap_err();
    assert!(file.is_due());
    write(&mut file, &mut ledger);
    assert_eq!(site.open().1, ledger);
}

/// Each agent of a cluster renews after two thirds of a day.
#[test]
fn ninety_days_of_a_thousand_nodes_write_a_line_or_two_for_each_renewal() {
    const NODES: u32 = 1_000;
    const RENEWED_EVERY: u32 = 16;
    const DAYS: u32 = 90;
    let site = Site::new();
    let (mut file, mut ledger) = site.open();
    let mut written = 0;
    let mut renewals = 0_u64;
    for hour in 0..DAYS * 24 {
        let now = NOW + HOUR * hour;
        for number in (hour % RENEWED_EVERY..NODES).step_by(RENEWED_EVERY as usize) {
            ledger.record(&made(node(number), now), Duration::ZERO, now);
            renewals += 1;
        }
        written += write(&mut file, &mut ledger);
    }
    let longest = ledger.nodes.values().map(|record| record.valid.len()).max();
    assert!(longest <= Some(2), "{longest:?}");
    let each = written / renewals;
    let node = file.length / u64::from(NODES);
    println!("{each} bytes written for each renewal, {node} bytes of the file for each node");
    assert!(each <= 600 && node <= 800, "{each} {node}");
    let (_, mut found) = site.open();
    assert_eq!(found.nodes.len(), NODES as usize);
    found.served = ledger.served;
    assert_eq!(found, ledger);
}

/// Operators' certificates are kept for their grace, so this is the most that a node can have.
#[test]
fn a_node_with_every_certificate_takes_a_line_of_bounded_length() {
    let site = Site::new();
    let (mut file, mut ledger) = site.open();
    let longest: NodeName = "n".repeat(63).parse().unwrap();
    for _ in 0..100 {
        ledger.record(&ready(longest.clone()), RENEWAL_GRACE, NOW);
        write(&mut file, &mut ledger);
    }
    assert_eq!(ledger.nodes[&longest].valid.len(), MAX_PER_NODE);
    let bytes = batch(&ledger, [&longest].into_iter()).unwrap().len();
    assert!(bytes < 1500, "{bytes}");
    assert_eq!(site.open().1, ledger);
}

#[test]
fn a_writer_that_is_killed_loses_nothing_that_it_had_written() {
    if let Some(path) = std::env::var_os(KILLED) {
        revoke_without_end(Path::new(&path));
    }
    let path = tempfile::tempdir().unwrap();
    for lives in 1..=6 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "ledger::file::tests::a_writer_that_is_killed_loses_nothing_that_it_had_written",
            ])
            .env(KILLED, path.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut numbers = lines.filter_map(|line| {
            let line = line.ok()?;
            line.strip_prefix("written ")?.parse::<u32>().ok()
        });
        let mut last = numbers.nth(lives * 10).unwrap();
        writer.kill().unwrap();
        last = numbers.last().unwrap_or(last);
        writer.wait().unwrap();
        let state = StateDir::open(path.path()).unwrap();
        let (_, ledger) = LedgerFile::open(&state).unwrap();
        for number in 0..=last {
            assert!(ledger.revocation(&node(number)) >= NOW, "{number}");
        }
    }
}

/// Revokes one node after the other, and says so after each.
fn revoke_without_end(path: &Path) -> ! {
    let state = StateDir::open(path).unwrap();
    let (mut file, mut ledger) = LedgerFile::open(&state).unwrap();
    let mut number = u32::try_from(ledger.nodes.len()).unwrap();
    loop {
        ledger.revoke(&node(number), NOW, NOW);
        write(&mut file, &mut ledger);
        println!("written {number}");
        number += 1;
    }
}
