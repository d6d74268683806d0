//! How a tunnel begins: the proxy takes the connection, or says why not. Then it introduces itself,
//! and the agent claims it, or declines it because it has enough tunnels to this proxy.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::watch;
use tokio::time::timeout;

use super::error::SlotError;
use super::worn_out::Serving;
use crate::dial::connect::{CONNECT_TIMEOUT, Connection};
use crate::dial::tls::TlsError;
use crate::tunnels::placement::{Met, ProxyId};

/// Bytes of HTTP/2's preface: enough to see that the proxy took the tunnel.
const PREFACE: usize = 24;
/// What a proxy sends in place of HTTP/2's preface when it does not take the node: this word, the
/// reason, and a line end.
const REFUSED: &[u8] = culvert_api::REFUSED.as_bytes();
/// Longest reason that is read.
const REASON_MAX: u64 = 512;
/// How long a proxy may take to end a tunnel that the agent declined.
const PARTING: Duration = Duration::from_secs(2);

/// Waits for the proxy's first bytes. In TLS 1.3 a client's handshake is done before the server has
/// looked at its certificate: only now is it known whether the proxy takes this agent.
pub(super) async fn wait_for_preface(
    connection: Connection,
    server_name: &ServerName<'_>,
) -> Result<BufReader<Connection>, SlotError> {
    let mut connection = BufReader::with_capacity(PREFACE, connection);
    let first = timeout(CONNECT_TIMEOUT, connection.fill_buf())
        .await
        .map_err(|_| SlotError::Unused)?;
    match first {
        Ok([]) => Err(SlotError::Dismissed),
        Ok(bytes) if bytes.starts_with(REFUSED) => Err(refusal(connection).await),
        Ok(_) => Ok(connection),
        Err(error) if is_hang_up(&error) => Err(SlotError::Dismissed),
        Err(error) => Err(TlsError::of(error, server_name).into()),
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

async fn refusal(connection: BufReader<Connection>) -> SlotError {
    let mut line = Vec::new();
    let mut limited = connection.take(REASON_MAX);
    // Whatever came of the line in time is the reason.
    let _whole = timeout(CONNECT_TIMEOUT, limited.read_until(b'\n', &mut line)).await;
    let text = String::from_utf8_lossy(line.strip_prefix(REFUSED).unwrap_or(&line)).into_owned();
    SlotError::Refused(text.trim().replace(char::is_control, " "))
}

/// Waits until the proxy has introduced itself and this slot has claimed it. None: the agent
/// drains.
pub(super) async fn wait_for_introduction(
    mut met: watch::Receiver<Option<Met>>,
    serving: &mut Serving,
) -> Result<Option<ProxyId>, SlotError> {
    let met = tokio::select! {
        biased;
        Ok(met) = met.wait_for(Option::is_some) => met.clone(),
        served = &mut *serving => return served.map(|()| None).map_err(Into::into),
        () = tokio::time::sleep(CONNECT_TIMEOUT) => return Err(SlotError::Unused),
    };
    match met {
        Some(Met::Claimed(proxy)) => Ok(Some(proxy)),
        Some(Met::Declined(proxy)) => {
            // The proxy reads that, and ends the tunnel.
            let _ended = timeout(PARTING, serving).await;
            Err(SlotError::Declined(proxy))
        }
        None => Err(SlotError::Unused),
    }
}
