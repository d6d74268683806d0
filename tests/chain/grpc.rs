//! The tunnel is gRPC: a stock client calls an agent's end of it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use culvert_lab::skip::skip;
use culvert_lab::workspace;
use xtask::setup;

const CLIENT: &str = include_str!("stock_grpc_client.py");

#[test]
fn a_stock_grpc_client_can_describe_and_open() -> Result<()> {
    let Some(python) = setup::python_with_grpc() else {
        skip("python's grpcio is missing, `cargo xtask setup` installs it");
        return Ok(());
    };
    let mut agent = Command::new(workspace::target_dir().join("debug/examples/plaintext_agent"))
        .arg("127.0.0.1:0")
        .stdout(Stdio::piped())
        .spawn()
        .context("start the plain-text agent: `cargo build --examples` makes it")?;
    let mut address = String::new();
    BufReader::new(agent.stdout.take().context("stdout")?).read_line(&mut address)?;
    let backend = TcpListener::bind("127.0.0.1:0")?;
    let port = backend.local_addr()?.port();
    let echo = std::thread::spawn(move || -> std::io::Result<u64> {
        let (client, _) = backend.accept()?;
        let copied = std::io::copy(&mut &client, &mut &client)?;
        client.shutdown(std::net::Shutdown::Write)?;
        Ok(copied)
    });
    let protos = workspace::root().join("tunnel/proto");
    let mut client = Command::new(python);
    client
        .args(["-c", CLIENT, address.trim(), &port.to_string()])
        .arg(protos);
    let said = workspace::output(&mut client);
    agent.kill()?;
    agent.wait()?;
    let said = said?;
    ensure!(
        said.contains("opened OK") && said.contains("echoed 300000"),
        "{said}"
    );
    ensure!(
        said.contains(&format!("version {}", env!("CARGO_PKG_VERSION"))),
        "{said}"
    );
    ensure!(
        echo.join()
            .is_ok_and(|copied| copied.is_ok_and(|count| count == 300_000)),
        "the backend saw something else"
    );
    Ok(())
}
