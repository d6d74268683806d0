//! The pods on the node, with all that they need of the API server.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::NODE;

use super::containers::Container;
use crate::world::{SHOP, World};

/// A pod that lives through all of this.
pub(super) const APP: &str = "hub-app";
/// A pod that is deleted while the link is cut, and one that is created meanwhile.
pub(super) const DELETED: &str = "hub-deleted";
pub(super) const CREATED: &str = "hub-created";
/// A container of these pods.
pub(super) const MAIN: &str = "main";
/// Where it serves the files of its ConfigMap by HTTP.
pub(super) const PORT: u16 = 8080;
/// The files of [`APP`]'s volumes.
const SECRET: &str = "/etc/app/secret/word";
pub(super) const CONFIG: &str = "/etc/app/config/color";
const TOKEN: &str = "/etc/app/token/token";

/// Starts the first two.
pub(super) fn start(world: &World) -> Result<()> {
    let mut secret = object("Secret", APP);
    secret["stringData"] = json!({"word": "sesame"});
    let mut config = object("ConfigMap", APP);
    config["data"] = json!({"color": "blue"});
    let [account, binding] = account();
    let pods = [pod(APP), pod(DELETED)];
    world.apply(
        "hub-pods",
        &[&[secret, config, account, binding], &pods[..]].concat(),
    )?;
    [APP, DELETED]
        .into_iter()
        .try_for_each(|name| world.wait_for_phase(name, "Running"))
}

/// The pods' account, and what it may do.
fn account() -> [Value; 2] {
    let subject = json!({"kind": "ServiceAccount", "name": APP, "namespace": SHOP});
    let group = "rbac.authorization.k8s.io";
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": APP, "namespace": SHOP}}),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": APP, "namespace": SHOP},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"}, "subjects": [subject]
        }),
    ]
}

/// An object of the core API in the namespace of the pods, without its contents.
pub(super) fn object(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": SHOP}})
}

fn mount(volume: &str) -> Value {
    json!({"name": volume, "mountPath": format!("/etc/app/{volume}")})
}

pub(super) fn pod(name: &str) -> Value {
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP, "labels": {"app": name}},
        "spec": {
            "nodeName": NODE, "serviceAccountName": APP, "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": MAIN, "image": "local/busybox:1", "imagePullPolicy": "Never",
                "command": ["httpd", "-f", "-p", PORT.to_string(), "-h", "/etc/app/config"],
                "envFrom": [{"configMapRef": {"name": APP}}],
                "volumeMounts": [mount("secret"), mount("config"), mount("token")]
            }],
            "volumes": [
                {"name": "secret", "secret": {"secretName": APP}},
                {"name": "config", "configMap": {"name": APP}},
                {"name": "token", "projected": {"sources": [token]}}
            ]
        }
    })
}

/// Whether the volumes of [`APP`] are there, as they were at first.
pub(super) fn has_volumes(app: &Container) -> Result<()> {
    ensure!(app.read(SECRET)? == "sesame", "the Secret is another one");
    ensure!(app.read(CONFIG)? == "blue", "the ConfigMap is another one");
    ensure!(
        app.read(TOKEN)?.split('.').count() == 3,
        "the token is no JWT"
    );
    Ok(())
}
