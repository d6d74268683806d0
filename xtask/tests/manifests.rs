//! The manifests of `deploy/`: rendered as committed, of this version, and accepted by a real API server.

use std::fs;
use std::path::PathBuf;

use xtask::kube::apiserver::{self, ApiServer};
use xtask::{manifests, workspace};

/// Kubernetes before 1.22 has no surge of DaemonSets, or has it behind a gate; for good it has it since 1.25.
const SURGE_SINCE: u32 = 22;

#[test]
fn what_is_committed_is_what_kustomize_renders() {
    let rendered = manifests::render().expect("render");
    let committed: Vec<_> = committed().iter().map(|path| name(path)).collect();
    assert_eq!(committed, rendered.keys().cloned().collect::<Vec<_>>(), "run `cargo xtask manifests`");
    for (name, text) in rendered {
        let file = fs::read_to_string(manifests::committed().join(&name)).expect("read what is committed");
        assert!(file == text, "{name} is not what kustomize renders: run `cargo xtask manifests`");
    }
}

#[test]
fn every_image_is_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for path in committed() {
        let text = fs::read_to_string(&path).expect("read");
        let mut images = text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image: "));
        assert!(text.contains("image: "), "{} has no image", path.display());
        assert!(images.all(|image| image.ends_with(&format!(":{version}"))), "{}: not {version}", path.display());
    }
}

#[test]
fn the_api_server_accepts_every_overlay() {
    let Some(assets) = apiserver::assets() else { return };
    let server = ApiServer::start(&assets, &[]).expect("the API server");
    // A dry run makes no namespace for what is in it.
    workspace::output(server.kubectl().args(["create", "namespace", "culvert-system"])).expect("make the namespace");
    let has_surge = server.minor_version().expect("its version") >= SURGE_SINCE;
    for path in committed() {
        let mut apply = server.kubectl();
        let applied = workspace::output(apply.args(["apply", "--server-side", "--dry-run=server", "-f"]).arg(&path));
        if name(&path) == "surge.yaml" && !has_surge {
            let refused = format!("{:#}", applied.expect_err("this Kubernetes has no surge"));
            assert!(refused.contains("updateStrategy.rollingUpdate"), "{refused}");
            continue;
        }
        let applied = applied.unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
        let objects = fs::read_to_string(&path).expect("read").matches("\nkind: ").count();
        assert_eq!(applied.lines().count(), objects, "{}: {applied}", path.display());
    }
}

#[test]
fn a_stopped_api_server_comes_back_with_what_it_knew() {
    let Some(assets) = apiserver::assets() else { return };
    let mut server = ApiServer::start(&assets, &[]).expect("the API server");
    workspace::output(server.kubectl().args(["create", "namespace", "kept"])).expect("create a namespace");
    server.stop().expect("stop it");
    workspace::output(server.kubectl().args(["get", "namespaces"])).expect_err("it is stopped");
    server.resume().expect("start it again");
    workspace::output(server.kubectl().args(["get", "namespace", "kept"])).expect("the namespace is still there");
    let audit = fs::read_to_string(server.audit_log()).expect("the audit log");
    assert!(audit.lines().any(|line| line.contains(r#""verb":"create""#) && line.contains("/namespaces")), "{audit}");
}

/// The rendered files, in order.
fn committed() -> Vec<PathBuf> {
    let entries = fs::read_dir(manifests::committed()).expect("the folder of rendered manifests");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn name(path: &std::path::Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
