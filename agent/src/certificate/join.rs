//! `culvert-agent join`: exchanges a token for this node's certificate and stores it.

mod owner;

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use culvert_api::{ALPN_ENROLL, HostPort, NodeName};
use rcgen::KeyPair;
use rustls::pki_types::ServerName;

use crate::certificate::calls::{self, Credential, Enrolled};
use crate::certificate::store::{StateDir, StateError};
use crate::certificate::token::Token;
use crate::dial::connect::connect;
use crate::dial::outbound::Outbound;
use crate::dial::pin::Pin;
use crate::dial::tls;
use crate::service::{Service, Settings, wait_for_tunnel};
use owner::Owner;

/// What `culvert token create` prints.
#[derive(clap::Args, Debug)]
pub(crate) struct JoinArgs {
    /// A proxy to join at, and to keep tunnels to afterwards; repeat it for more.
    #[arg(
        long,
        env = "CULVERT_PROXY",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) proxy: Vec<HostPort>,

    /// Digest of the proxies' CA certificate: it ensures that the token is sent to these proxies
    /// only.
    #[arg(long, env = "CULVERT_CA_PIN", value_name = "sha256:HEX")]
    pub(crate) ca_pin: Pin,

    /// The token; it works once, or once for each of its nodes.
    #[arg(
        long,
        env = "CULVERT_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Token,

    /// Which node this is, if the token is for several; otherwise the token says so.
    #[arg(long, env = "CULVERT_NODE", value_name = "NODE")]
    pub(crate) node: Option<NodeName>,

    /// The name in the proxies' certificates, whatever host is dialled.
    #[arg(
        long,
        env = "CULVERT_SERVER_NAME",
        value_name = "NAME",
        default_value = culvert_api::PROXY_SERVER_NAME,
    )]
    pub(crate) server_name: String,

    /// The user that the agent runs as: key and certificate become its own. Only root can give them
    /// to another user. Default: the owner of the state directory, or the user culvert if there is
    /// one.
    #[arg(long, env = "CULVERT_USER", value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Largest TCP segment, in bytes, in both directions: for a link that silently loses large
    /// packets. Give it to the running agent too; --service does.
    #[arg(
        long,
        env = "CULVERT_TUNNEL_MSS",
        value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(536..=32767),
    )]
    pub(crate) tunnel_mss: Option<u16>,

    /// Take the new certificate even if this directory holds that of another node.
    #[arg(long)]
    pub(crate) force: bool,

    /// Then run the agent as a service of systemd, now and at each boot: makes the user culvert and
    /// the unit where they are missing, and waits for a tunnel. Settings of the service are in
    /// /etc/culvert/agent.env, which gets HTTPS_PROXY, NO_PROXY and --tunnel-mss of this join.
    #[arg(long, conflicts_with = "user")]
    pub(crate) service: bool,
}

/// A node that has joined.
#[derive(Debug)]
struct JoinedNode {
    name: NodeName,
    /// `None`: the proxy does not say it.
    vip4: Option<Ipv4Addr>,
}

/// Joins, starts the service if that is asked for, and says on standard output what to do next.
///
/// # Errors
/// See [`join`]; settings of a forward proxy that cannot be used; a service that cannot be installed
/// or gets no tunnel.
pub(crate) async fn run(state_dir: &Path, admin_socket: &Path, args: JoinArgs) -> Result<()> {
    let outbound =
        Outbound::from_environment(|name| std::env::var(name).ok())?.with_segments(args.tunnel_mss);
    let state = StateDir::new(state_dir);
    let mut service = None;
    if args.service {
        service = Some(Service::prepare(state.path()).await?);
    }
    // Looked up first: a token that was redeemed for files that the agent cannot read is lost.
    let owner = Owner::of(state.path(), args.user.as_deref())?;
    let joined = join(&outbound, &state, &args).await;
    if let Some(owner) = owner
        && state.path().exists()
    {
        owner.apply(state.path())?;
    }
    let node = joined?;
    println!(
        "Joined as node {}. Key and certificate are in {}.",
        node.name,
        state.path().display()
    );
    let Some(service) = service else {
        println!("Next, start the agent: {}", next_command(&state));
        return Ok(());
    };
    let settings = Settings::of(|name| std::env::var(name).ok(), args.tunnel_mss);
    service.start(&settings).await?;
    println!("The service culvert-agent is enabled and started; waiting for a tunnel.");
    wait_for_tunnel(admin_socket).await?;
    println!("{}", reached(&node));
    Ok(())
}

/// How clients reach a node that has a tunnel.
fn reached(node: &JoinedNode) -> String {
    let name = &node.name;
    let vip = match node.vip4 {
        Some(vip4) => format!(" and its VIP {vip4}"),
        None => String::new(),
    };
    format!(
        "It has a tunnel. Clients in the cloud reach it by its name {name}{vip}.\n\
         Next, on a cloud host: culvert why {name}:10250"
    )
}

/// Joins at the first proxy that answers with a certificate.
///
/// # Errors
/// Every proxy's reason, if none gave a certificate; a directory that belongs to another node.
async fn join(outbound: &Outbound, state: &StateDir, args: &JoinArgs) -> Result<JoinedNode> {
    state.prepare()?;
    let before = former_node(state)?;
    let key = state.next_key()?;
    let enrolled = enroll_anywhere(outbound, args, &key).await?;
    let node = enrolled.identity.node;
    if let Some(asked) = &args.node
        && *asked != node
    {
        bail!(
            "the proxy made this node {node}, not {asked}: it is too old for --node, leave it out"
        );
    }
    if let Some(before) = before
        && before != node
        && !args.force
    {
        bail!(
            "{} holds the certificate of node {before}, but the token is for node {node}: choose \
             another --state-dir, or repeat \
             the command with --force to become {node}",
            state.path().display()
        );
    }
    state.store_join(&enrolled.text, &args.proxy)?;
    Ok(JoinedNode {
        name: node,
        vip4: enrolled.vip4,
    })
}

fn next_command(state: &StateDir) -> String {
    if state.path() == Path::new("/var/lib/culvert/agent") {
        "systemctl enable --now culvert-agent, or culvert-agent run".to_owned()
    } else {
        format!("culvert-agent run --state-dir {}", state.path().display())
    }
}

/// The node that the directory belongs to. A certificate that cannot be read any more belongs to
/// no node.
fn former_node(state: &StateDir) -> Result<Option<NodeName>> {
    match state.identity() {
        Ok(text) => Ok(text.parse().ok().map(|identity| identity.node)),
        Err(StateError::NotJoined(_) | StateError::Parse { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn enroll_anywhere(outbound: &Outbound, args: &JoinArgs, key: &KeyPair) -> Result<Enrolled> {
    let mut reasons = Vec::new();
    for proxy in &args.proxy {
        match enroll_at(outbound, proxy, args, key).await {
            Ok(enrolled) => return Ok(enrolled),
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    Err(anyhow!("{}", reasons.join("\n  also: ")).context("not joined"))
}

async fn enroll_at(
    outbound: &Outbound,
    proxy: &HostPort,
    args: &JoinArgs,
    key: &KeyPair,
) -> Result<Enrolled> {
    let name = &args.server_name;
    let server_name =
        ServerName::try_from(name.clone()).with_context(|| format!("--server-name {name:?}"))?;
    let config = tls::pinned(args.ca_pin, ALPN_ENROLL);
    let connection = connect(outbound, proxy, config, &server_name).await?;
    let joined = calls::join(
        connection,
        Credential::Join(&args.token, args.node.as_ref()),
        key,
        name,
    );
    joined.await.with_context(|| format!("proxy {proxy}"))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::test_pki::Authority;
    use crate::test_proxy::TestProxy;

    struct Node {
        root: TempDir,
        args: JoinArgs,
    }

    impl Node {
        /// A node about to join at `proxy` with the token that its fake takes for `edge-1`.
        fn new(proxy: &TestProxy) -> Self {
            let args = JoinArgs {
                proxy: vec![proxy.address.clone()],
                ca_pin: Pin::of(&proxy.authority.certificate()),
                token: Token("good-edge-1".to_owned()),
                node: None,
                server_name: culvert_api::PROXY_SERVER_NAME.to_owned(),
                user: None,
                tunnel_mss: None,
                force: false,
                service: false,
            };
            Self {
                root: tempfile::tempdir().unwrap(),
                args,
            }
        }

        fn state(&self) -> StateDir {
            StateDir::new(self.root.path())
        }

        async fn join(&self) -> Result<NodeName, String> {
            let outbound = Outbound::from_environment(|_| None).unwrap();
            match join(&outbound, &self.state(), &self.args).await {
                Ok(joined) => Ok(joined.name),
                Err(error) => Err(format!("{error:#}")),
            }
        }

        async fn refusal(&self) -> String {
            self.join().await.unwrap_err()
        }
    }

    async fn closed_port() -> HostPort {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().to_string().parse().unwrap()
    }

    #[tokio::test]
    async fn a_token_becomes_a_certificate_and_the_proxies_are_remembered() {
        let proxy = TestProxy::start().await;
        let node = Node::new(&proxy);
        assert_eq!(node.join().await.unwrap().as_str(), "edge-1");
        assert_eq!(
            node.state()
                .identity()
                .unwrap()
                .parse()
                .unwrap()
                .node
                .as_str(),
            "edge-1"
        );
        assert_eq!(
            node.state().joined().unwrap().proxies,
            std::slice::from_ref(&proxy.address)
        );
    }

    #[tokio::test]
    async fn a_full_disk_uses_no_token_up() {
        let proxy = TestProxy::start().await;
        let node = Node::new(&proxy);
        let in_the_way = node.root.path().join(".next-key.pem.new");
        std::fs::create_dir(&in_the_way).unwrap();
        let error = node.refusal().await;
        assert!(error.contains("next-key.pem"), "{error}");
        assert_eq!(proxy.joins(), 0);
        std::fs::remove_dir(&in_the_way).unwrap();
        node.join().await.unwrap();
    }

    #[tokio::test]
    async fn another_authority_gets_no_token_and_the_error_says_what_it_may_be() {
        let proxy = TestProxy::start().await;
        let mut node = Node::new(&proxy);
        node.args.ca_pin = Pin::of(&Authority::new("culvert").certificate());
        let error = node.refusal().await;
        assert!(error.contains("not the one that made the token"), "{error}");
        assert_eq!(proxy.joins(), 0);
    }

    #[tokio::test]
    async fn what_the_proxy_says_of_a_bad_token_is_passed_on_without_the_token() {
        let proxy = TestProxy::start().await;
        let mut node = Node::new(&proxy);
        node.args.token = Token("hush-hush".to_owned());
        let error = node.refusal().await;
        assert!(error.contains("this token was used already"), "{error}");
        assert!(!error.contains("hush-hush"), "{error}");
    }

    #[tokio::test]
    async fn an_unreachable_proxy_is_named_and_the_next_one_tried() {
        let proxy = TestProxy::start().await;
        let mut node = Node::new(&proxy);
        let closed = closed_port().await;
        node.args.proxy = vec![closed.clone()];
        let error = node.refusal().await;
        assert!(
            error.contains(&closed.to_string()) && error.contains("refused"),
            "{error}"
        );
        node.args.proxy.push(proxy.address.clone());
        node.join().await.unwrap();
    }

    #[tokio::test]
    async fn a_forward_proxy_on_the_way_is_named() {
        let proxy = TestProxy::start().await;
        let node = Node::new(&proxy);
        let forward = closed_port().await.to_string();
        let outbound =
            Outbound::from_environment(|name| (name == "HTTPS_PROXY").then(|| forward.clone()))
                .unwrap();
        let error = join(&outbound, &node.state(), &node.args)
            .await
            .unwrap_err();
        assert!(
            format!("{error:#}").contains(&format!("through HTTPS_PROXY {forward}")),
            "{error:#}"
        );
    }

    #[tokio::test]
    async fn a_server_that_speaks_no_tls_is_told_apart() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut node = Node::new(&TestProxy::start().await);
        node.args.proxy = vec![listener.local_addr().unwrap().to_string().parse().unwrap()];
        let greeter = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.2\r\n")
                .await
                .unwrap();
            stream
        };
        let (_stream, error) = tokio::join!(greeter, node.refusal());
        assert!(error.contains("agent port"), "{error}");
    }

    #[tokio::test]
    async fn a_directory_of_another_node_is_kept_unless_forced() {
        let proxy = TestProxy::start().await;
        let mut node = Node::new(&proxy);
        node.join().await.unwrap();
        node.args.token = Token("good-edge-2".to_owned());
        let error = node.refusal().await;
        assert!(
            error.contains("edge-1") && error.contains("edge-2") && error.contains("--force"),
            "{error}"
        );
        assert_eq!(
            node.state()
                .identity()
                .unwrap()
                .parse()
                .unwrap()
                .node
                .as_str(),
            "edge-1"
        );
        node.args.force = true;
        assert_eq!(node.join().await.unwrap().as_str(), "edge-2");
        assert!(
            proxy.last_two_keys_are_equal(),
            "the token was used up by this key"
        );
    }
}
