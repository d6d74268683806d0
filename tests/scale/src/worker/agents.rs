//! Many agents in one process, each with a certificate and tunnels to two proxies.

use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use culvert_tunnel::Budget;
use culvert_tunnel::proto::tunnel::DescribeResponse;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::authority::Authority;
use crate::counts::Counts;
use crate::tunnel::Tunnel;

/// The different proxies that an agent has tunnels to.
const PROXIES_OF_AN_AGENT: usize = 2;

/// Arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the authority
    #[arg(long)]
    authority: PathBuf,
    /// The agent ports; repeated
    #[arg(long)]
    proxy: Vec<SocketAddr>,
    /// The number of the first agent
    #[arg(long)]
    first: u32,
    #[arg(long)]
    count: u32,
    /// Tunnels of each agent
    #[arg(long)]
    tunnels: usize,
    /// Agents of one site dial from one address. Without it all dial from the loopback's own
    #[arg(long)]
    site: Option<u32>,
}

/// Makes the certificates, prints `ready`, starts the agents after the line `go`, and reports after
/// each other line, until the end of the input.
pub(crate) fn run(args: Args) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let counts = Arc::<Counts>::default();
    let tunnels = tunnels(&args, &counts)?;
    let (go_tx, go) = watch::channel(false);
    std::thread::spawn(move || {
        // Without input the parent is gone.
        let code = i32::from(answer(&counts, &go_tx).is_err());
        std::process::exit(code);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run_all(tunnels, go));
    Ok(())
}

fn answer(counts: &Counts, go_tx: &watch::Sender<bool>) -> Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "go" => {
                go_tx.send_replace(true);
            }
            "report" => {}
            other => bail!("{other:?} is no command"),
        }
        println!("{}", serde_json::to_string(&counts.report())?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

async fn run_all(tunnels: Vec<Tunnel>, mut go: watch::Receiver<bool>) {
    let mut tasks = JoinSet::new();
    if go.wait_for(|go| *go).await.is_err() {
        return;
    }
    for tunnel in tunnels {
        tasks.spawn(tunnel.run());
    }
    while tasks.join_next().await.is_some() {}
}

fn tunnels(args: &Args, counts: &Arc<Counts>) -> Result<Vec<Tunnel>> {
    let authority = Authority::read(&args.authority)?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let mut tunnels = Vec::new();
    for number in args.first..args.first + args.count {
        let node = culvert_scale::node_name(number);
        let tls = Arc::new(authority.settings_of(&node)?);
        let source = args.site.map(|site| source(number / site.max(1)));
        for slot in 0..args.tunnels {
            let proxies = args.proxy.len();
            let proxy = (number as usize + slot % PROXIES_OF_AN_AGENT) % proxies;
            let describe = DescribeResponse {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                instance: node.clone(),
                slot: format!("{}/{slot}", args.proxy[proxy]),
                started: u64::try_from(started)?,
                sequence: 0,
                ..DescribeResponse::default()
            };
            tunnels.push(Tunnel {
                proxy: args.proxy[proxy],
                source,
                tls: tls.clone(),
                describe,
                budget: Budget::new(128 << 20),
                counts: counts.clone(),
            });
        }
    }
    Ok(tunnels)
}

/// The address of a site: each is in a /24 of its own in 127.128.0.0/9.
fn source(site: u32) -> IpAddr {
    let [_, _, high, low] = site.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, high | 128, low, 1))
}
