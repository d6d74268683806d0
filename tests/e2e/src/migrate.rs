//! The settings of YurtTunnel before, Culvert's equal after: docs/migrate.md in a cluster that has
//! nothing of Culvert. YurtTunnel itself does not run: its images are not to be had here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::{wait, workspace};
use serde_json::json;

use crate::cluster::{EDGES, MASTER};
use crate::command::Running;
use crate::world::{EDGE_1_ADDRESS, World};
use crate::{install, logs, names, uninstall};

/// YurtTunnel's objects as its manifests make them, with the address of an example.
const OBJECTS: &str = "cli/migrate/tests/predecessors/yurttunnel.yaml";
const EXAMPLE: &str = "198.51.100.7";
/// A port of `http-proxy-ports` there, and one of `localhost-proxy-ports`.
const HTTP_PORT: u16 = 9051;
const LOCALHOST_PORT: u16 = 10266;
/// Time for a server to start, and for a new port to be steered.
const DEADLINE: Duration = Duration::from_secs(40);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    install::load_images(world)?;
    let _servers = [
        serve(world, HTTP_PORT, EDGE_1_ADDRESS)?,
        serve(world, LOCALHOST_PORT, "127.0.0.1")?,
    ];
    let urls = [HTTP_PORT, LOCALHOST_PORT].map(|port| format!("http://{EDGE_1_ADDRESS}:{port}/"));
    world.claim(
        "the cluster has YurtTunnel's Deployment, DaemonSet, Services, ConfigMaps and labels, and \
         nothing of Culvert: no port of an edge answers",
        |world| {
            before(world)?;
            for url in &urls {
                ensure!(get(world, url).is_err(), "{url} answers");
            }
            names::by_name(world)
        },
    )?;
    let printed = world.claim(
        "culvert migrate --from yurttunnel reads them from the cluster, and the API server \
         accepts what it prints",
        migrate,
    )?;
    world.claim(
        "what it prints is applied after the commands before it; every pod becomes ready",
        |world| {
            run_commands(world, &printed, "# Before:")?;
            apply(world, &printed)?;
            install::wait_for_rollouts(world)
        },
    )?;
    install::wait_for_tunnels(world)?;
    EDGES
        .into_iter()
        .try_for_each(|node| logs::prove(world, node))?;
    world.claim(
        "a port of YurtTunnel's http-proxy-ports and one of its localhost-proxy-ports answer, the \
         latter by a server on the loopback of its node",
        |world| answers(world, &urls),
    )?;
    world.claim_once(
        "the commands after it save all of YurtTunnel and delete it; what is saved brings it back, \
         and they delete it again; logs and ports stay",
        |world| {
            let there = yurt_tunnel(world)?;
            let title = "# Then, once the agents have tunnels";
            run_commands(world, &printed, title)?;
            let left = yurt_tunnel(world)?;
            ensure!(left.is_empty(), "{left}");
            let saved = world.file("saved-kube-system.yaml").display().to_string();
            world.cluster.ask(&["apply", "--filename", &saved])?;
            let back = yurt_tunnel(world)?;
            ensure!(back == there, "{back}, not {there}");
            run_commands(world, &printed, title)?;
            answers(world, &urls)
        },
    )?;
    logs::prove(world, "edge-1")
}

/// Makes what a cluster with YurtTunnel has.
fn before(world: &World) -> Result<()> {
    uninstall::forgotten(world)?;
    install::label(
        world,
        &EDGES,
        "node-restriction.kubernetes.io/culvert-edge-",
    )?;
    install::label(
        world,
        &world.clouds,
        "node-role.kubernetes.io/control-plane=",
    )?;
    install::label(world, &EDGES, "openyurt.io/is-edge-worker=true")?;
    install::label(world, &world.clouds, "openyurt.io/is-edge-worker=false")?;
    let example = workspace::root().join(OBJECTS);
    let example =
        std::fs::read_to_string(&example).with_context(|| format!("read {}", example.display()))?;
    let own = world.cluster.variable_of(MASTER, "ADDRESS")?;
    let file = world.file("yurttunnel.yaml");
    std::fs::write(&file, example.replace(EXAMPLE, own))?;
    let file = file.display().to_string();
    world.cluster.ask(&["apply", "--filename", &file])?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "x-tunnel-server-internal-svc", "namespace": "kube-system", "labels": {"name": "yurt-tunnel-server"}},
        "spec": {
            "selector": {"k8s-app": "yurt-tunnel-server"},
            "ports": [{"name": "http", "port": 10255, "targetPort": 10264}, {"name": "https", "port": 10250, "targetPort": 10263}]
        }
    });
    let lines = EDGES.map(|node| format!("10.96.99.99\t{node}")).join("\n");
    let hosts = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "yurt-tunnel-nodes", "namespace": "kube-system"}, "data": {"tunnel-nodes": lines}
    });
    world.apply("yurttunnel-more", &[service, hosts])
}

/// The names of YurtTunnel's objects.
fn yurt_tunnel(world: &World) -> Result<String> {
    let kinds = "deployments,daemonsets,services,configmaps";
    let line = [
        "--namespace",
        "kube-system",
        "get",
        kinds,
        "--output",
        "name",
    ];
    let all = world.cluster.ask(&line)?;
    let left = all
        .lines()
        .filter(|name| name.contains("yurt-tunnel") || name.contains("x-tunnel"));
    Ok(left.collect::<Vec<_>>().join(" "))
}

/// Runs the program on the master, as an operator does; returns what it prints.
fn migrate(world: &World) -> Result<String> {
    let program = workspace::image_program("culvert");
    let program = program.display().to_string();
    let deploy = from_folder(&folder(world), "deploy")?;
    let line = [
        &program,
        "migrate",
        "--from",
        "yurttunnel",
        "--kubeconfig",
        world.cluster.variable("CK_KUBECONFIG")?,
        "--deploy",
        &deploy,
        "--dry-run",
    ];
    let printed = world.cluster.on(MASTER, &line)?;
    let own = world.cluster.variable_of(MASTER, "ADDRESS")?;
    for expected in [
        format!("--advertise={own}:30740"),
        format!("localhost-ports={LOCALHOST_PORT},"),
        format!(",{HTTP_PORT},"),
    ] {
        ensure!(printed.contains(&expected), "no {expected} in:\n{printed}");
    }
    Ok(printed)
}

/// The folder of the printed kustomization.
fn folder(world: &World) -> PathBuf {
    world.file("migrated")
}

/// A folder of the source as seen from another one: kustomizations take relative paths only.
fn from_folder(folder: &Path, of_source: &str) -> Result<String> {
    std::fs::create_dir_all(folder)?;
    let depth = canonical(folder)?.components().count() - 1;
    let source = canonical(&workspace::root().join(of_source))?;
    let source = source.strip_prefix("/").context("it is absolute")?;
    Ok(format!("{}{}", "../".repeat(depth), source.display()))
}

fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("find {}", path.display()))
}

/// Runs the kubectl commands below a title of the printed comments.
fn run_commands(world: &World, printed: &str, title: &str) -> Result<()> {
    let commands = commands(printed, title);
    ensure!(
        !commands.is_empty(),
        "no commands below {title:?}:\n{printed}"
    );
    for command in commands {
        let (command, file) = match command.split_once(" > ") {
            Some((command, file)) => (command, Some(file)),
            None => (command, None),
        };
        let words: Vec<&str> = command.split_whitespace().collect();
        let said = world.cluster.ask(&words)?;
        if let Some(file) = file {
            std::fs::write(world.file(file), said).context("write what is saved")?;
        }
    }
    Ok(())
}

/// The arguments of these commands, until the next title.
fn commands<'printed>(printed: &'printed str, title: &str) -> Vec<&'printed str> {
    let mut commands = Vec::new();
    let mut lines = printed.lines();
    lines.find(|line| line.starts_with(title));
    for line in lines {
        if !line.starts_with("#   ") {
            break;
        }
        commands.extend(line.strip_prefix("#   kubectl "));
    }
    commands
}

/// Applies the printed kustomization with what this cluster needs besides: images that are loaded,
/// and cgroups of hosts that share one kernel. Its own address for agents is the only one.
fn apply(world: &World, printed: &str) -> Result<()> {
    for node in &world.clouds {
        install::name_cgroup(world, node)?;
    }
    std::fs::write(folder(world).join("kustomization.yaml"), printed)?;
    let top = world.file("migrated-here");
    let component = from_folder(&top, "deploy/overlays/e2e/component")?;
    let flag = "/spec/template/spec/containers/0/args/4";
    let patch = json!([
        {"op": "test", "path": flag, "value": "--advertise=203.0.113.1:443"},
        {"op": "remove", "path": flag}
    ]);
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../migrated"], "components": [component],
        "patches": [{"target": {"kind": "DaemonSet", "name": "culvert-proxy"}, "patch": patch.to_string()}]
    });
    std::fs::write(top.join("kustomization.yaml"), kustomization.to_string())?;
    let top = top.display().to_string();
    world.cluster.ask(&["apply", "--kustomize", &top]).map(drop)
}

/// Starts an HTTP server on edge-1.
fn serve(world: &World, port: u16, address: &str) -> Result<Running> {
    let folder = world.file("served");
    std::fs::create_dir_all(&folder)?;
    let mut python = world.cluster.enter("edge-1", "python3");
    python
        .args(["-u", "-m", "http.server", &port.to_string(), "--bind"])
        .arg(address)
        .arg("--directory")
        .arg(&folder);
    let mut server = Running::start(world.folder(), &format!("edge-{port}"), &mut python)?;
    server.wait_for("Serving HTTP", DEADLINE)?;
    Ok(server)
}

fn answers(world: &World, urls: &[String]) -> Result<()> {
    urls.iter()
        .try_for_each(|url| wait::until(url, DEADLINE, || get(world, url)))
}

fn get(world: &World, url: &str) -> Result<()> {
    let line = ["curl", "-sS", "--fail", "-m", "5", "-o", "/dev/null", url];
    world.cluster.on(MASTER, &line).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_kubectl_below_their_title() {
        let printed = "# Made by\n#\n# Before:\n#   kubectl label node -l a=b c=\n#\n# Then, once:\n#   \
            kubectl delete x\n#   on the node: `iptables`\n#\n# What was found:\n#   kubectl not this\n";
        assert_eq!(commands(printed, "# Before:"), ["label node -l a=b c="]);
        assert_eq!(commands(printed, "# Then, once"), ["delete x"]);
    }
}
