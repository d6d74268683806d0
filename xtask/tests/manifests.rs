//! The manifests of `deploy/`: rendered as committed, and accepted by a real API server.

use xtask::kube::apiserver::{self, ApiServer};
use xtask::workspace;

#[test]
fn a_stopped_api_server_comes_back_with_what_it_knew() {
    let Some(assets) = apiserver::assets() else { return };
    let mut server = ApiServer::start(&assets, &[]).expect("the API server");
    workspace::output(server.kubectl().args(["create", "namespace", "kept"])).expect("create a namespace");
    server.stop().expect("stop it");
    workspace::output(server.kubectl().args(["get", "namespaces"])).expect_err("it is stopped");
    server.resume().expect("start it again");
    workspace::output(server.kubectl().args(["get", "namespace", "kept"])).expect("the namespace is still there");
    let audit = std::fs::read_to_string(server.audit_log()).expect("the audit log");
    assert!(audit.lines().any(|line| line.contains(r#""verb":"create""#) && line.contains("/namespaces")), "{audit}");
}
