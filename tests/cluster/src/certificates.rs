//! The cluster's authority, and the certificates and kubeconfigs of its programs, made with openssl.

use std::process::Command;

use anyhow::Result;
use culvert_lab::self_signed::{AUTHORITY, SelfSigned};
use culvert_lab::workspace;

use crate::cluster::Cluster;
use crate::node::Node;

/// Makes all of them: `ca`, `apiserver`, `admin`, `controllers`, `scheduler`, `proxy`, and one for
/// each node.
pub(crate) fn make(cluster: &Cluster, nodes: &[Node]) -> Result<()> {
    SelfSigned::make(&cluster.path(""), "ca", "/CN=culvert-cluster", AUTHORITY)?;
    let mut openssl = Command::new("openssl");
    openssl
        .args(["genrsa", "-out"])
        .arg(cluster.path("service-accounts.key"))
        .arg("2048");
    workspace::output(&mut openssl)?;
    let master = Node::Master.address();
    let names =
        format!("IP:{master},IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc");
    sign(cluster, "apiserver", "/CN=kube-apiserver", &names)?;
    for (name, subject) in [
        ("admin", "/O=system:masters/CN=admin"),
        ("controllers", "/CN=system:kube-controller-manager"),
        ("scheduler", "/CN=system:kube-scheduler"),
        ("proxy", "/CN=system:kube-proxy"),
    ] {
        sign(cluster, name, subject, &format!("DNS:{name}"))?;
        write_kubeconfig(cluster, name)?;
    }
    for node in nodes {
        let name = node.to_string();
        let subject = format!("/O=system:nodes/CN=system:node:{node}");
        sign(
            cluster,
            &name,
            &subject,
            &format!("DNS:{node},IP:{}", node.address()),
        )?;
        write_kubeconfig(cluster, &name)?;
    }
    Ok(())
}

/// Makes `NAME.key` and `NAME.crt`, good for both ends of a connection.
fn sign(cluster: &Cluster, name: &str, subject: &str, names: &str) -> Result<()> {
    request(cluster, name, subject)?;
    cluster.write(
        format!("{name}.ext"),
        &format!("subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n"),
    )?;
    let mut sign = Command::new("openssl");
    sign.args(["x509", "-req", "-days", "30", "-CAcreateserial", "-CA"]);
    sign.arg(cluster.path("ca.crt"))
        .arg("-CAkey")
        .arg(cluster.path("ca.key"));
    sign.arg("-in")
        .arg(cluster.path(format!("{name}.csr")))
        .arg("-out")
        .arg(cluster.path(format!("{name}.crt")))
        .arg("-extfile")
        .arg(cluster.path(format!("{name}.ext")));
    workspace::output(&mut sign).map(drop)
}

/// Makes `NAME.key`, and `NAME.csr` for the authority.
fn request(cluster: &Cluster, name: &str, subject: &str) -> Result<()> {
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
        .arg(cluster.path(format!("{name}.key")))
        .arg("-out")
        .arg(cluster.path(format!("{name}.csr")));
    workspace::output(&mut request).map(drop)
}

fn write_kubeconfig(cluster: &Cluster, name: &str) -> Result<()> {
    let server = format!("https://{}:6443", Node::Master.address());

    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": {
            "server": server, "certificate-authority": cluster.path_text("ca.crt"),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate": cluster.path_text(format!("{name}.crt")),
            "client-key": cluster.path_text(format!("{name}.key")),
        }}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
    });
    cluster.write(format!("{name}.kubeconfig"), &config.to_string())
}
