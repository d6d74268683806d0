//! Tests of the manifests of `deploy/`: they are rendered as committed, name this version, and are
//! accepted by a real API server. No kubelet can call their pods with permissions to its node. The
//! Helm chart renders the same, and takes the values of the examples in `docs`. `monitoring` is
//! valid for its readers.

mod addresses;
mod chart;
mod examples;
mod hub_unit;
mod monitoring;
mod objects;
mod placement;

use std::fs;
use std::path::PathBuf;

use culvert_lab::apiserver::{self, ApiServer};
use culvert_lab::workspace;

use xtask::manifests;

use objects::documents;
use placement::pods;

/// Kubernetes before 1.22 has no surge of DaemonSets, or only behind a feature gate. It is stable
/// since 1.25.
const SURGE_SINCE: u32 = 22;
/// Kubernetes has `appArmorProfile` since this version. The annotation has the same meaning, and
/// still works.
const APPARMOR_FIELD_SINCE: u32 = 30;

#[test]
fn what_is_committed_is_what_kustomize_renders() {
    let rendered = manifests::render().expect("render");
    let committed: Vec<_> = committed().iter().map(|path| name(path)).collect();
    assert_eq!(
        committed,
        rendered.keys().cloned().collect::<Vec<_>>(),
        "run `cargo xtask manifests`"
    );
    for (name, text) in rendered {
        let file =
            fs::read_to_string(manifests::committed().join(&name)).expect("read what is committed");
        assert!(
            file == text,
            "{name} is not what kustomize renders: run `cargo xtask manifests`"
        );
    }
}

#[test]
fn the_operators_object_has_the_alerts_of_the_rules() {
    let committed =
        fs::read_to_string(culvert_lab::monitoring::folder().join(manifests::PROMETHEUS_RULE));
    assert!(
        committed.expect("read it") == manifests::prometheus_rule().expect("make it"),
        "run `cargo xtask manifests`"
    );
}

#[test]
fn templates_that_are_made_of_other_files_have_what_these_have() {
    for (path, text) in manifests::chart::made().expect("make them") {
        assert!(
            fs::read_to_string(&path).expect("read") == text,
            "{}: run `cargo xtask manifests`",
            path.display()
        );
    }
}

#[test]
fn every_image_is_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for path in committed() {
        let text = fs::read_to_string(&path).expect("read");
        let mut images = text
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image: "));
        assert!(text.contains("image: "), "{} has no image", path.display());
        assert!(
            images.all(|image| image.ends_with(&format!(":{version}"))),
            "{}: not {version}",
            path.display()
        );
    }
}

/// Such a variable could stand in for a flag, and end the program: a Service `culvert` makes
/// `CULVERT_PORT=tcp://10.96.1.2:7400`.
#[test]
fn no_pod_has_variables_of_services() {
    let mut count = 0;
    for path in committed() {
        let text = fs::read_to_string(&path).expect("read");
        for document in documents(&text).expect("YAML") {
            for pod in pods(&document) {
                assert_eq!(pod["enableServiceLinks"], false, "{}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > committed().len(), "{count} pods");
}

#[test]
fn the_api_server_accepts_every_overlay() {
    let Some(assets) = apiserver::assets() else {
        return;
    };
    let server = ApiServer::start(&assets, &[]).expect("the API server");
    // A dry run creates no namespace for the objects in it.
    workspace::output(
        server
            .kubectl()
            .args(["create", "namespace", "culvert-system"]),
    )
    .expect("make the namespace");
    let version = server.minor_version().expect("its version");
    for path in committed() {
        let mut apply = server.kubectl();
        let applied = workspace::output(
            apply
                .args(["apply", "--server-side", "--dry-run=server", "-f"])
                .arg(&path),
        );
        let later = [
            ("surge.yaml", SURGE_SINCE, "updateStrategy.rollingUpdate"),
            (
                "apparmor-field.yaml",
                APPARMOR_FIELD_SINCE,
                "appArmorProfile",
            ),
        ];
        if let Some((_, _, lacking)) = later
            .iter()
            .find(|(file, since, _)| name(&path) == *file && version < *since)
        {
            let refused = format!("{:#}", applied.expect_err("this Kubernetes lacks it"));
            assert!(refused.contains(lacking), "{refused}");
            continue;
        }
        let applied = applied.unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
        let objects = fs::read_to_string(&path)
            .expect("read")
            .matches("\nkind: ")
            .count();
        assert_eq!(
            applied.lines().count(),
            objects,
            "{}: {applied}",
            path.display()
        );
    }
}

#[test]
fn what_writes_on_the_host_is_confined_by_neither_apparmor_nor_selinux() {
    for path in committed() {
        let text = fs::read_to_string(&path).expect("read");
        let redirectors = containers(&text, "culvert-redirector:");
        assert!(!redirectors.is_empty(), "{}: no redirector", path.display());
        for container in &redirectors {
            let annotation =
                format!("container.apparmor.security.beta.kubernetes.io/{container}: unconfined");
            let field = "appArmorProfile:\n            type: Unconfined";
            assert!(
                text.contains(&annotation) != text.contains(field),
                "{}: {container}",
                path.display()
            );
        }
        let on_host = redirectors.len() + containers(&text, "culvert-proxy:").len();
        let free = text
            .matches("seLinuxOptions:\n            type: spc_t")
            .count();
        assert_eq!(free, on_host, "{}: containers with spc_t", path.display());
    }
}

#[test]
fn a_few_nodes_that_are_offline_do_not_hold_up_the_update_of_the_other_agents() {
    let text = fs::read_to_string(manifests::committed().join("default.yaml")).expect("read");
    let agents = text
        .split("\n---\n")
        .find(|text| text.contains("kind: DaemonSet\n") && text.contains("image: culvert-agent:"));
    assert!(
        agents.expect("the agents").contains("maxUnavailable: 50%"),
        "a number would be used up by as many offline nodes"
    );
}

#[test]
fn no_redirector_comes_to_a_node_whose_redirector_is_a_unit() {
    let mut found = 0;
    for path in committed() {
        let text = fs::read_to_string(&path).expect("read");
        let unit = "- key: culvert.dev/redirector\n                operator: NotIn\n                values:\n                - unit\n";
        for document in text.split("\n---\n") {
            // The redirectors of `uninstall` have another name.
            if document.contains("\n  name: culvert-redirector\n")
                && document.contains("kind: DaemonSet\n")
            {
                found += 1;
                assert!(document.contains(unit), "{}", path.display());
            }
        }
    }
    assert!(found > 0, "no manifest has a redirector");
}

/// The names of the containers with this image, parsed from kustomize's output.
fn containers(manifests: &str, image: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut lines = manifests.lines();
    while let Some(line) = lines.next() {
        if line
            .trim_start_matches([' ', '-'])
            .starts_with(&format!("image: {image}"))
        {
            let name = lines
                .find_map(|line| line.strip_prefix("        name: "))
                .expect("a container has a name");
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn a_stopped_api_server_comes_back_with_what_it_knew() {
    let Some(assets) = apiserver::assets() else {
        return;
    };
    let mut server = ApiServer::start(&assets, &[]).expect("the API server");
    workspace::output(server.kubectl().args(["create", "namespace", "kept"]))
        .expect("create a namespace");
    server.stop().expect("stop it");
    workspace::output(server.kubectl().args(["get", "namespaces"])).expect_err("it is stopped");
    server.resume().expect("start it again");
    workspace::output(server.kubectl().args(["get", "namespace", "kept"]))
        .expect("the namespace is still there");
    let audit = fs::read_to_string(server.audit_log()).expect("the audit log");
    assert!(
        audit
            .lines()
            .any(|line| line.contains(r#""verb":"create""#) && line.contains("/namespaces")),
        "{audit}"
    );
}

/// The rendered files, sorted.
fn committed() -> Vec<PathBuf> {
    let entries = fs::read_dir(manifests::committed()).expect("the folder of rendered manifests");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

fn name(path: &std::path::Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
