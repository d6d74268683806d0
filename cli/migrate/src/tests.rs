//! Whole inputs, written for these tests in the form that each tunnel has.

use std::path::PathBuf;

use culvert_api::HostPort;

use super::plan::Program;
use super::*;

const EACH: [(Tunnel, &str); 3] = [
    (Tunnel::Yurt, "yurttunnel.yaml"),
    (Tunnel::SuperEdge, "superedge.yaml"),
    (Tunnel::Konnectivity, "konnectivity.yaml"),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/predecessors")
}

fn translated(from: Tunnel, files: &[&str]) -> Result<(Plan, Report), Problem> {
    let mut found = Vec::new();
    for file in files {
        found.extend(read_file(&folder().join(file))?);
    }
    from.translate(&found)
}

fn printed(from: Tunnel, files: &[&str]) -> String {
    let (plan, report) = translated(from, files).unwrap();
    let page = page::page(from, &plan, &report, "../deploy");
    page.replace(&format!("{}/", folder().display()), "")
}

/// A file with this content and name.
fn read_text(name: &str, content: &str) -> Result<Vec<PlacedPiece>, Problem> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    read_file(&path)
}

#[test]
fn yurttunnels_manifests_become_a_kustomization_with_every_setting_accounted_for() {
    let page = printed(Tunnel::Yurt, &["yurttunnel.yaml"]);
    let (comments, kustomization) = page.split_once("apiVersion:").unwrap();
    assert_eq!(
        kustomization,
        r#" kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../deploy/cloud
- ../deploy/edge
components:
- ../deploy/components/nodeport
configMapGenerator:
- name: culvert-ports
  namespace: culvert-system
  behavior: merge
  options: {disableNameSuffixHash: true}
  literals:
  - ports=7429,9051,9100,9445,10250,10255
  - localhost-ports=10266,10267
patches:
- target: {kind: DaemonSet, name: culvert-proxy}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--advertise=198.51.100.7:30740"}
"#
    );
    for line in [
        "#   kubectl label node -l openyurt.io/is-edge-worker=true node-restriction.kubernetes.io/culvert-edge=\n",
        "#   kubectl -n kube-system delete deployment yurt-tunnel-server\n",
        "#   yurttunnel.yaml: ConfigMap kube-system/yurt-tunnel-server-cfg\n",
        "#     --insecure-bind-address - no equal: ",
        "#     --cert-ips - equal: ",
        "#     --of-a-fork - unknown: ",
        "#     --tunnelserver-addr - equal: --advertise",
    ] {
        assert!(comments.contains(line), "{line} in {comments}");
    }
    assert!(!comments.contains("hush"), "{comments}");
    assert!(
        comments.lines().all(|line| line.starts_with('#')),
        "{comments}"
    );
    let (_, report) = translated(Tunnel::Yurt, &["yurttunnel.yaml"]).unwrap();
    assert_eq!(
        report.summary(),
        "16 settings: 14 with an equal, 1 without, 1 unknown"
    );
}

#[test]
fn the_other_tunnel_is_saved_and_its_server_removed_before_what_it_reads() {
    for (from, file, server) in [
        (
            Tunnel::Yurt,
            "yurttunnel.yaml",
            "deployment yurt-tunnel-server",
        ),
        (
            Tunnel::SuperEdge,
            "superedge.yaml",
            "deployment tunnel-cloud",
        ),
    ] {
        let page = printed(from, &[file]);
        let place = |text: &str| {
            page.find(text)
                .unwrap_or_else(|| panic!("{text} in {page}"))
        };
        let server = place(&format!(" delete {server}\n"));
        assert!(place(" -o yaml > saved-") < server, "{page}");
        let first = page.find(" delete ").unwrap() + " delete ".len();
        assert!(first > server, "the server is the first: {page}");
        let tried = place("`kubectl apply -f saved-");
        assert!(server < tried, "{page}");
        for (at, _) in page.match_indices(" delete ").skip(1) {
            assert!(tried < at, "{page}");
        }
    }
}

#[test]
fn superedges_settings_are_read_out_of_its_config_maps_and_its_tokens_are_not_printed() {
    let page = printed(Tunnel::SuperEdge, &["superedge.yaml"]);
    for line in [
        "tunnel_cloud.toml\n",
        "#     mode.cloud.tcp.0.0.0.0:6443 - equal: ConfigMap culvert-ports has port 6443",
        "#     mode.cloud.https.addr.30021 - equal: ConfigMap culvert-ports has port 30021",
        "#     mode.cloud.https.addr.10250 - equal: port 10250 is steered as it is",
        "#     default - no equal: refused: ",
        "#     edge-1 - equal: not needed in a cluster",
        "#     mode.edge.stream.client.token - no equal: ",
        "#     mode.edge.http_proxy.port - no equal: ",
        "#     env PROXY_AUTHORIZATION - no equal: ",
        "- ../deploy/components/nodeport\n",
        "  - ports=7429,9100,10250,10255,30021\n  - localhost-ports=6443\n",
        "--advertise=198.51.100.7:30740\"",
        "value: \"--port=22\"",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
    assert!(
        !page.contains("hush") && !page.contains("- unknown"),
        "{page}"
    );
}

#[test]
fn superedges_files_are_told_apart_by_name_and_content() {
    let toml = "[mode.cloud.egress]\nport = 8000\n[mode.cloud]\nnew = 1\n";
    for name in ["cloud.toml", "conf"] {
        let found = read_text(name, toml).unwrap();
        let (_, report) = Tunnel::SuperEdge.translate(&found).unwrap();
        assert_eq!(
            report.summary(),
            "2 settings: 1 with an equal, 0 without, 1 unknown"
        );
    }
    let found = read_text("token", "default:x\nedge-1:y\n").unwrap();
    let (plan, report) = Tunnel::SuperEdge.translate(&found).unwrap();
    assert_eq!(
        report.summary(),
        "2 settings: 1 with an equal, 1 without, 0 unknown"
    );
    assert_eq!(plan, Plan::default());
}

#[test]
fn konnectivity_needs_the_egress_selector_only_where_there_was_one() {
    let without = printed(Tunnel::Konnectivity, &["konnectivity.yaml"]);
    assert!(
        !without.contains("components:") && !without.contains("- unknown"),
        "{without}"
    );
    assert!(
        without.contains("--advertise=198.51.100.7:7400\""),
        "{without}"
    );
    assert!(
        without.contains("#     --agent-identifiers - no equal: "),
        "{without}"
    );
    let with = printed(
        Tunnel::Konnectivity,
        &["konnectivity.yaml", "egress-selector.yaml"],
    );
    for line in [
        "components:\n- ../deploy/components/egress-selector\n- ../deploy/components/names-only\n",
        "#     egressSelections: cluster - equal: components `egress-selector`",
        "#     egressSelections: etcd - equal: the same",
        "#   kube-apiserver: --kubelet-preferred-address-types=Hostname,InternalIP",
    ] {
        assert!(with.contains(line), "{line} in {with}");
    }
}

#[test]
fn what_is_printed_is_the_same_each_time() {
    for (from, file) in EACH {
        assert_eq!(printed(from, &[file]), printed(from, &[file]));
    }
}

/// docs/flags.md has all flags of the program: another test compares them.
#[test]
fn the_proxy_has_the_flags_that_are_printed() {
    let documented = include_str!("../../../docs/flags.md");
    for (from, file) in EACH {
        let (plan, _) = translated(from, &[file]).unwrap();
        for (program, flag) in plan.flags() {
            if program == Program::Proxy {
                let (name, value) = flag.split_once('=').unwrap();
                assert!(documented.contains(&format!("| `{name}` |")), "{flag}");
                value.parse::<HostPort>().unwrap();
            }
        }
    }
}

#[test]
fn wrong_input_is_named_with_its_place_and_the_fix_and_no_line_is_repeated() {
    let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: yurt-tunnel-server-cfg}, data: {http-proxy-ports: \"94x5\"}}";
    let found = read_text("a.yaml", config).unwrap();
    let problem = Tunnel::Yurt.translate(&found).unwrap_err().to_string();
    assert!(
        problem.contains(
            "ConfigMap yurt-tunnel-server-cfg: http-proxy-ports: \"94x5\" is not a port: write"
        ),
        "{problem}"
    );
    for (name, content, told) in [
        ("a.yaml", "kind: [hush\n---\n", "is not YAML"),
        ("a.yaml", "hush: 1\n", "has no `kind`"),
        ("a.toml", "[mode]\ntoken = hush\n", "line 2 is not TOML"),
        ("token", "edge-1:a\nhush\n", "line 2 is not NODE:TOKEN"),
        ("b.yaml", &" ".repeat(1_048_577), "more than 1 MiB"),
    ] {
        let problem = read_text(name, content).unwrap_err().to_string();
        assert!(
            problem.contains(told) && problem.contains(name),
            "{problem}"
        );
        assert!(!problem.contains("hush"), "{problem}");
    }
    let found = read_text("a.yaml", "").unwrap();
    let problem = Tunnel::Konnectivity
        .translate(&found)
        .unwrap_err()
        .to_string();
    assert!(problem.contains("nothing of konnectivity"), "{problem}");
}

#[test]
fn a_list_of_kubectl_is_its_items() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "yurt-tunnel-nodes"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "yurt-tunnel-server"}}]}"#;
    let found = read_text("list.json", list).unwrap();
    let (plan, report) = Tunnel::Yurt.translate(&found).unwrap();
    assert_eq!(
        report.summary(),
        "2 settings: 1 with an equal, 1 without, 0 unknown"
    );
    assert_eq!(plan.components(), [plan::Component::Hosts]);
}
