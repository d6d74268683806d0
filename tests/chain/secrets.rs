//! What no log may contain at any log level.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Culvert, Options};
use culvert_lab::host::Host;
use culvert_lab::wait::PATIENCE;
use culvert_lab::workspace;

use crate::connect::{self, Answer};
use crate::world::{self, ECHO, World};

const PAYLOAD: &str = "sesame-open-0451";
/// The proxy's port for that of agents.
const NAME_PORT: u16 = 7452;

#[test]
fn no_log_holds_a_token_or_payload_even_at_its_most_verbose() {
    let trace = || vec![("CULVERT_LOG".to_owned(), "trace".to_owned())];
    let options = Options {
        agent_env: trace(),
        cloud_env: trace(),
        proxy: vec![format!("--name-listen=[::]:{NAME_PORT}={AGENT_ADMIN}")],
        ..Options::default()
    };
    world::with(&[Host::Edge1], options, |world| {
        // The secret is sent in a steered connection; with CONNECT directly after the request; and
        // later.
        let target = format!("edge-1:{ECHO}");
        ensure!(world.talk(&target, PAYLOAD)? == PAYLOAD, "the echo");
        let socket = connect::open(world, &target)?;
        let answer = Answer::of(&socket, &socket, PAYLOAD.as_bytes(), PAYLOAD.len())?;
        ensure!(answer.body == PAYLOAD.as_bytes(), "{answer:?}");
        drop(socket);
        ask_by_name(world)?;
        world.wait_for_no_streams()?;

        let join = world.culvert.create_token(Host::Edge2, &[])?;
        let token = join
            .iter()
            .skip_while(|word| *word != "--token")
            .nth(1)
            .context("no token")?;
        let edge = world.lab.site(Host::Edge2);
        let agent = workspace::binary("culvert-agent");
        let log = edge.file("join.log");
        let mut command = edge.command("sh");
        command
            .args(["-c", "exec \"$@\" > \"$0\" 2>&1"])
            .arg(&log)
            .arg(agent)
            .args(&join);
        command
            .arg("--state-dir")
            .arg(edge.file("agent"))
            .env("CULVERT_LOG", "trace");
        workspace::output(&mut command)?;

        let secret = token.rsplit('.').next().context("a token has parts")?;
        let mut logs = 0;
        for host in Host::ALL {
            logs += check_logs(world.lab.site(host).folder(), &[PAYLOAD, secret])?;
        }
        // The logs of proxy, redirector, agent, and of the join.
        ensure!(logs >= 4, "only {logs} logs with trace lines");
        Ok(())
    });
}

/// A request that ends at the proxy, with the secret wherever a client may have one.
fn ask_by_name(world: &World<'_>) -> Result<()> {
    let mut curl = world.lab.site(Host::Cloud).command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20"]);
    curl.args(["--connect-to", &format!("::127.0.0.1:{NAME_PORT}")]);
    curl.args(["--header", &format!("Authorization: Bearer {PAYLOAD}")]);
    curl.args(["--cookie", &format!("session={PAYLOAD}")]);
    let url = format!("http://user:{PAYLOAD}@edge-1:{AGENT_ADMIN}/readyz?key={PAYLOAD}");
    let said = workspace::output(curl.arg(url))?;
    ensure!(said.trim_end() == "ok", "{said}");
    Ok(())
}

#[test]
fn culvert_shows_nothing_secret_of_a_kubeconfig_or_of_its_forward_proxy() {
    const SECRET: &str = "S3cret";
    let good = |more: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'{more}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{token: {SECRET}}}}}]\n"
        )
    };
    let url = format!("http://user:{SECRET}@127.0.0.1:1");
    let cases = [
        (good(&format!(", proxy-url: '{url}'")), String::new()),
        (
            good(&format!(", proxy-url: 'ftp://{SECRET}'")),
            String::new(),
        ),
        (good(""), url.clone()),
        (good(""), format!("http://user:{SECRET} 1@127.0.0.1:1")),
        (
            format!("users: [{{name: u, user: {{token: {SECRET}\n"),
            String::new(),
        ),
        (
            format!("users: [{{name: u, user: {SECRET}}}]\n"),
            String::new(),
        ),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kubeconfig");
    for (kubeconfig, https_proxy) in cases {
        std::fs::write(&path, &kubeconfig).expect("a kubeconfig");
        let mut command = Command::new(workspace::binary("culvert"));
        command
            .args(["status", "--timeout", "5s", "--kubeconfig"])
            .arg(&path);
        let done = command.env("HTTPS_PROXY", &https_proxy).output();
        let done = done.expect("culvert runs");
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!done.status.success() && !said.is_empty(), "{kubeconfig}");
        assert!(
            !said.contains(SECRET),
            "with {kubeconfig}{https_proxy}: {said}"
        );
        let is_about_it = said.contains("line ") || said.contains("127.0.0.1:1");
        assert!(is_about_it || said.contains("API server"), "{said}");
    }
}

/// The password of a forward proxy, with all that a URL must not have bare in it.
const PASSWORD: &str = "S3cret#1@/?Pa55";
/// Parts of it that no text may have, and its form in a header.
const PARTS: [&str; 3] = ["S3cret", "Pa55", "M2NyZXQj"];

/// wstunnel#183, frp#272, curl#2353.
#[test]
fn no_log_page_or_error_holds_any_part_of_the_forward_proxy_s_password() {
    world::in_lab(|lab| {
        let cloud = lab.site(Host::Cloud);
        let mut forward = cloud.command(world::xtask());
        let _forward = cloud.start_process(
            "http-proxy",
            forward.args(["probe", "serve", "3128=http-proxy"]),
        )?;
        let backends = world::serve(lab, Host::Edge1)?;
        let encoded = "S3cret%231%40%2F%3FPa55";
        let agent_env = [
            (
                "HTTPS_PROXY",
                format!("http://user:{encoded}@203.0.113.1:3128"),
            ),
            ("CULVERT_LOG", "trace".to_owned()),
        ];
        let options = world::with_defaults(Options {
            agent_env: agent_env
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            ..Options::default()
        });
        let world = World::of(
            lab,
            Culvert::start(lab, &[Host::Edge1], options)?,
            vec![backends],
        );
        world.wait_greeting("10.0.3.7", PATIENCE)?;
        let edge = lab.site(Host::Edge1);
        let index = edge.http_get(AGENT_ADMIN, "/")?;
        let mut pages = vec![index.clone()];
        for page in index
            .split(['"', ' ', '\n'])
            .filter(|word| word.starts_with('/'))
        {
            // Some want to be asked otherwise.
            pages.extend(edge.http_get(AGENT_ADMIN, page));
        }
        ensure!(pages.len() > 5, "only {} pages by {index}", pages.len());
        for page in &pages {
            has_no_part(page)?;
        }
        ensure!(
            check_logs(edge.folder(), &PARTS)? >= 1,
            "no log with trace lines"
        );

        // As people write it, and a proxy that is not there, refuses, or is no proxy.
        let join = world.culvert.create_token(Host::Edge2, &[])?;
        for url in [
            format!("http://user:{PASSWORD}@203.0.113.1:3128"),
            format!("http://user:{encoded}@203.0.113.1:3128/{PASSWORD}"),
            format!("https://user:{encoded}@203.0.113.1:3128"),
            format!("user:{PASSWORD}:3128"),
            format!("http://user:{encoded}@203.0.113.1:3129"),
            format!("http://user:{encoded}@203.0.113.1:7409"),
            format!("http://user:{encoded}@203.0.113.1:7400"),
            format!("http://user:{encoded}@nowhere.invalid:3128"),
        ] {
            for arguments in [&join[..], &["run".to_owned()]] {
                let site = lab.site(Host::Edge2);
                let mut command = site.command("timeout");
                command
                    .arg("20")
                    .arg(workspace::binary("culvert-agent"))
                    .args(arguments)
                    .arg("--state-dir")
                    .arg(site.file("agent"))
                    .env("HTTPS_PROXY", &url)
                    .env("CULVERT_LOG", "trace");
                let done = command.output()?;
                ensure!(!done.status.success(), "{url} can be used");
                for said in [done.stdout, done.stderr] {
                    let said = String::from_utf8_lossy(&said);
                    has_no_part(&said).with_context(|| format!("with {url}"))?;
                }
            }
        }
        Ok(())
    });
}

fn has_no_part(text: &str) -> Result<()> {
    for part in PARTS {
        ensure!(!text.contains(part), "{part:?} is in {text}");
    }
    Ok(())
}

/// Searches all logs of a host; returns how many were verbose.
fn check_logs(folder: &Path, secrets: &[&str]) -> Result<usize> {
    let mut verbose = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        for secret in secrets {
            let line = log.lines().find(|line| line.contains(secret));
            ensure!(
                line.is_none(),
                "{} has {secret:?}: {}",
                path.display(),
                line.unwrap_or_default()
            );
        }
        verbose += usize::from(log.contains("TRACE"));
    }
    Ok(verbose)
}
