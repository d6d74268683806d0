//! What an authority signs, for whom and for how long.

use culvert_proxy_core::testing::FullDisk;

use super::*;

fn csr(names: &[&str], pair: &KeyPair) -> Vec<u8> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names)
        .unwrap()
        .serialize_request(pair)
        .unwrap()
        .der()
        .to_vec()
}

#[test]
fn the_embedded_authority_is_made_once_and_its_key_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    let pin = Authority::embedded(&state).unwrap().pin();
    assert_eq!(Authority::embedded(&state).unwrap().pin(), pin);
    assert!(pin.starts_with("sha256:") && pin.len() == 7 + 64);
    assert_eq!(
        std::fs::metadata(state.join(KEY_FILE))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    std::fs::remove_file(state.join(KEY_FILE)).unwrap();
    let error = Authority::embedded(&state).unwrap_err().to_string();
    assert!(
        error.contains("ca.key") && error.contains("join again"),
        "{error}"
    );
}

#[test]
fn what_agents_get_of_a_text_with_the_key_in_it_is_certificates_only() {
    let new = Authority::generate().unwrap();
    let old = Authority::generate().unwrap();
    let text = format!(
        "{}{}# the one before\n{}",
        new.key, new.certificate, old.certificate
    );
    let pem = Pem {
        origin: Path::new("both"),
        text: &text,
    };
    let authority = Authority::from_pem(pem, pem).unwrap();
    assert_eq!(authority.certificates().len(), 2);
    assert!(!authority.pem().contains("PRIVATE"));
    let told = Pem {
        origin: Path::new("told"),
        text: authority.pem(),
    };
    assert_eq!(certificates_in(told).unwrap(), authority.certificates());
}

#[test]
fn names_in_a_request_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::embedded(&StateDir::open(directory.path()).unwrap()).unwrap();
    let pair = KeyPair::generate().unwrap();
    let key = ProvenKey::from_csr(&csr(&["edge-2", "culvert-proxy"], &pair)).unwrap();
    let now = UnixTime::now();
    let binding = Binding {
        uid: Some("5d1e8a52".parse().unwrap()),
        revocation: UnixTime::from_seconds(7),
    };
    let node = (&"edge-1".parse().unwrap(), &binding);
    let made = authority
        .node_certificate(node, &key, 30 * DAY, now)
        .unwrap();
    let der = CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap();
    let leaf = Leaf::read(&der).unwrap();
    assert_eq!(leaf.names, ["edge-1"]);
    assert_eq!(leaf.binding, Some(binding));
    assert_eq!(leaf.serial, made.serial);
    assert_eq!(leaf.public_key, pair.public_key_raw());
    assert_eq!(
        (leaf.not_before, leaf.not_after),
        (now.before(DAY), now + 30 * DAY)
    );
    assert!(!leaf.may_sign);
}

#[test]
fn short_certificates_are_backdated_by_their_lifetime() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::embedded(&StateDir::open(directory.path()).unwrap()).unwrap();
    let key = ProvenKey::from_csr(&csr(&[], &KeyPair::generate().unwrap())).unwrap();
    let now = UnixTime::now();
    let minute = Duration::from_secs(60);
    let node = (&"edge-1".parse().unwrap(), &Binding::default());
    let made = authority.node_certificate(node, &key, minute, now).unwrap();
    let leaf = Leaf::read(&CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap()).unwrap();
    assert_eq!(
        (leaf.not_before, leaf.not_after),
        (now.before(minute), now + minute)
    );
}

#[test]
fn bad_requests_are_refused() {
    let pair = KeyPair::generate().unwrap();
    let mut forged = csr(&["edge-1"], &pair);
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert!(matches!(
        ProvenKey::from_csr(&forged),
        Err(CsrError::Malformed(_))
    ));
    assert!(matches!(
        ProvenKey::from_csr(b"csr"),
        Err(CsrError::Malformed(_))
    ));
    assert!(matches!(
        ProvenKey::from_csr(&[0; MAX_CSR_BYTES + 1]),
        Err(CsrError::TooLarge(_))
    ));
    let weak = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    assert!(matches!(
        ProvenKey::from_csr(&csr(&[], &weak)),
        Err(CsrError::KeyKind)
    ));
}

#[test]
fn an_operators_files_must_fit_together() {
    let directory = tempfile::tempdir().unwrap();
    let one = directory.path().join("one");
    let other = directory.path().join("other");
    let ours = StateDir::open(&one).unwrap();
    let foreign = StateDir::open(&other).unwrap();
    Authority::embedded(&ours).unwrap();
    Authority::embedded(&foreign).unwrap();
    Authority::from_files(&ours.join(CERT_FILE), &ours.join(KEY_FILE)).unwrap();
    let problem =
        |cert: &Path, key: &Path| Authority::from_files(cert, key).unwrap_err().to_string();
    let mixed = problem(&ours.join(CERT_FILE), &foreign.join(KEY_FILE));
    assert!(
        mixed.contains("is not the key of the first certificate"),
        "{mixed}"
    );
    assert!(
        problem(&ours.join(KEY_FILE), &ours.join(KEY_FILE)).contains("has no certificate in PEM")
    );
    assert!(
        problem(&ours.join(CERT_FILE), &ours.join(CERT_FILE)).contains("has no private key in PEM")
    );
    assert!(problem(Path::new("/nowhere"), &ours.join(KEY_FILE)).contains("/nowhere"));
}

#[test]
fn an_authority_that_cannot_be_stored_is_none_and_a_stored_one_is_read_on_a_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    let full = || ["ca.key", "ca.crt"].map(|file| FullDisk::of(directory.path(), file));
    let disk = full();
    Authority::embedded(&state).unwrap_err();
    drop(disk);
    let pin = Authority::embedded(&state).unwrap().pin();
    let _disk = full();
    assert_eq!(Authority::embedded(&state).unwrap().pin(), pin);
}
