//! The cluster's authority, and the certificates and kubeconfigs of its programs, made with openssl.

use std::process::Command;

use anyhow::Result;
use culvert_lab::self_signed::{AUTHORITY, SelfSigned};
use culvert_lab::workspace;

use crate::node::Node;
use crate::place::Place;

/// Makes all of them: `ca`, `apiserver`, `admin`, `controllers`, `scheduler`, `proxy`, and one for
/// each node.
pub(crate) fn make(place: &Place, nodes: &[Node]) -> Result<()> {
    SelfSigned::make(&place.path(""), "ca", "/CN=culvert-cluster", AUTHORITY)?;
    let mut openssl = Command::new("openssl");
    openssl
        .args(["genrsa", "-out"])
        .arg(place.path("service-accounts.key"))
        .arg("2048");
    workspace::output(&mut openssl)?;
    let master = Node::Master.address();
    let names =
        format!("IP:{master},IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc");
    sign(place, "apiserver", "/CN=kube-apiserver", &names)?;
    for (name, subject) in [
        ("admin", "/O=system:masters/CN=admin"),
        ("controllers", "/CN=system:kube-controller-manager"),
        ("scheduler", "/CN=system:kube-scheduler"),
        ("proxy", "/CN=system:kube-proxy"),
    ] {
        sign(place, name, subject, &format!("DNS:{name}"))?;
        write_kubeconfig(place, name)?;
    }
    for node in nodes {
        let name = node.to_string();
        let subject = format!("/O=system:nodes/CN=system:node:{node}");
        sign(
            place,
            &name,
            &subject,
            &format!("DNS:{node},IP:{}", node.address()),
        )?;
        write_kubeconfig(place, &name)?;
    }
    Ok(())
}

/// Makes `NAME.key` and `NAME.crt`, good for both ends of a connection.
fn sign(place: &Place, name: &str, subject: &str, names: &str) -> Result<()> {
    let file = |end: &str| place.path(format!("{name}.{end}"));
    place.write(
        format!("{name}.ext"),
        &format!("subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n"),
    )?;
    let mut request = Command::new("openssl");
    request.args([
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        subject,
    ]);
    request
        .arg("-keyout")
        .arg(file("key"))
        .arg("-out")
        .arg(file("csr"));
    workspace::output(&mut request)?;
    let mut sign = Command::new("openssl");
    sign.args(["x509", "-req", "-days", "30", "-CAcreateserial", "-CA"]);
    sign.arg(place.path("ca.crt"))
        .arg("-CAkey")
        .arg(place.path("ca.key"));
    sign.arg("-in")
        .arg(file("csr"))
        .arg("-out")
        .arg(file("crt"))
        .arg("-extfile")
        .arg(file("ext"));
    workspace::output(&mut sign).map(drop)
}

fn write_kubeconfig(place: &Place, name: &str) -> Result<()> {
    let server = format!("https://{}:6443", Node::Master.address());
    let path = |file: String| place.path(file).display().to_string();
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": {
            "server": server, "certificate-authority": path("ca.crt".to_owned()),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate": path(format!("{name}.crt")), "client-key": path(format!("{name}.key")),
        }}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
    });
    place.write(format!("{name}.kubeconfig"), &config.to_string())
}
