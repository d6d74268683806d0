//! The admin server of each binary: a TCP listener, optionally one for metrics alone, and a Unix
//! socket. Requests that change something, which only the log filter does, are served on the socket
//! only: other users reach the TCP listener, and so do pods through a tunnel.

mod pages;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use axum::Router;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

pub use self::pages::page;
use self::pages::{PageState, metrics_page, port_pages, socket_pages};
use crate::admin_pages::AdminPages;
use crate::http::serve_http;
use crate::local_socket::{LocalSocket, SocketAccess};
use crate::{Listeners, Logs, OptionalPort, Readiness, SocketUse, TakenPorts};

/// The addresses of the admin server.
#[derive(Clone, Debug)]
pub struct AdminListen {
    /// The program's name, for messages.
    pub program: &'static str,
    /// All pages.
    pub address: SocketAddr,
    /// `/metrics` and nothing else, for scrapers that do not reach `address`.
    pub metrics: Option<SocketAddr>,
    /// All pages and the log filter: for root and the program's own user.
    pub socket: PathBuf,
}

/// The admin listeners, bound but not yet serving.
pub struct Admin {
    port: OptionalPort,
    pages: Router,
    metrics: Option<(OptionalPort, Router)>,
    local: Option<(LocalSocket, Router)>,
}

impl Admin {
    /// Binds the ports and the socket, unless `listeners` has inherited them. `debug` holds the
    /// binary's own pages, such as `/debug/tunnels`. A socket that cannot be bound is logged with
    /// the fix: the program works without it, but its log filter cannot be changed. A port that is
    /// taken is logged too, and bound when it is free: diagnosis does not decide whether the
    /// program works.
    ///
    /// # Errors
    /// An address cannot be bound for another reason.
    pub fn bind(
        listen: &AdminListen,
        listeners: &Listeners,
        readiness: Readiness,
        registry: Registry,
        logs: Logs,
        debug: AdminPages,
    ) -> Result<Self> {
        let taken = TakenPorts::new(&readiness, "admin");
        let port = bind_port(listeners, listen.address, "--admin-listen", &taken)?;
        let state = PageState::new(readiness, registry);
        let mut metrics_port = None;
        if let Some(address) = listen.metrics {
            let port = bind_port(listeners, address, "--metrics-listen", &taken)?;
            metrics_port = Some((port, metrics_page(&state)));
        }
        let mut local = None;
        match listeners.local(&listen.socket, SocketAccess::Owner, SocketUse::Admin) {
            Ok(socket) => {
                let pages = socket_pages(listen.program, &state, &debug, logs);
                local = Some((socket, pages));
            }
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::warn!(
                    reason,
                    "no admin socket: the log filter stays as it is; --admin-socket names another \
                     path"
                );
            }
        }
        Ok(Self {
            port,
            pages: port_pages(listen.program, &state, debug),
            metrics: metrics_port,
            local,
        })
    }

    /// The bound address; tests bind port 0. The one to bind, if it is taken.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Serves for ever: a draining process is still alive, and its metrics show the progress of the
    /// drain.
    ///
    /// # Errors
    /// None today; the type is that of a supervised task.
    pub async fn serve(self) -> Result<()> {
        let Self {
            port,
            pages,
            metrics,
            local,
        } = self;
        let metrics = async {
            if let Some((port, router)) = metrics {
                serve_port(port, router).await;
            }
        };
        let local = async {
            if let Some((socket, router)) = &local {
                serve_http(|| socket.accept(), router.clone()).await;
            }
        };
        tokio::join!(serve_port(port, pages), metrics, local);
        Ok(())
    }
}

fn bind_port(
    listeners: &Listeners,
    address: SocketAddr,
    flag: &'static str,
    taken: &TakenPorts,
) -> Result<OptionalPort> {
    let listeners = listeners.clone();
    OptionalPort::bind(address, flag, taken, move || {
        let bound = listeners.tcp(address, SocketUse::Admin, || {
            std::net::TcpListener::bind(address)
        });
        bound.with_context(|| format!("bind {address}"))
    })
}

/// Serves for ever, once the port is free.
async fn serve_port(port: OptionalPort, router: Router) {
    let listener = port.listener().await;
    serve_http(|| accept(&listener), router).await;
}

async fn accept(listener: &TcpListener) -> std::io::Result<tokio::net::TcpStream> {
    listener.accept().await.map(|(connection, _)| connection)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpStream, UnixStream};
    use tokio::time::sleep;

    use super::pages::LOG_FILTER_BYTES;
    use super::*;
    use crate::log_command::LogCommand;

    fn admin(folder: &std::path::Path) -> Admin {
        let listen = AdminListen {
            program: "culvert-test",
            address: "127.0.0.1:0".parse().unwrap(),
            metrics: Some("127.0.0.1:0".parse().unwrap()),
            socket: folder.join("run/admin.sock"),
        };
        let shown = get(async || page(|| ["shown"]).await);
        let [port, socket] = ["port", "socket"].map(|text| {
            let page = get(async move || format!("by the {text}"));
            Router::new().route("/", page)
        });
        let debug = AdminPages::new()
            .page("/debug/page", "a page of the test", shown)
            .folder("/folder/", "pages of the test", port, socket);
        let logs = Logs::for_tests();
        Admin::bind(
            &listen,
            &Listeners::default(),
            Readiness::default(),
            Registry::default(),
            logs,
            debug,
        )
        .unwrap()
    }

    async fn ask(
        mut connection: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
        head: &str,
    ) -> String {
        let request = format!("{head}\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Serves a page, requests each of these paths, and returns the answers.
    async fn answers<'a>(
        port: impl Fn(&Admin) -> SocketAddr,
        heads: &[&'a str],
    ) -> Vec<(&'a str, String)> {
        let folder = tempfile::tempdir().unwrap();
        let admin = admin(folder.path());
        let address = port(&admin);
        let asked = async {
            let mut answers = Vec::new();
            for head in heads {
                answers.push((
                    *head,
                    ask(TcpStream::connect(address).await.unwrap(), head).await,
                ));
            }
            answers
        };
        tokio::select! {
            _ = admin.serve() => unreachable!("it serves for ever"),
            answers = asked => answers,
        }
    }

    #[tokio::test]
    async fn over_tcp_the_log_filter_is_out_of_reach_and_foreign_names_see_no_debug_pages() {
        let wanted = [
            (
                "PUT /debug/log HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\noff",
                405,
            ),
            ("POST /debug/log HTTP/1.1\r\nHost: 127.0.0.1", 405),
            ("GET /debug/page HTTP/1.1\r\nHost: 10.0.3.7:7429", 200),
            ("GET /debug/page HTTP/1.1\r\nHost: [fd00::1]:7429", 200),
            ("GET /debug/page HTTP/1.1\r\nHost: edge-1:7429", 200),
            (
                "GET /debug/page HTTP/1.1\r\nHost: rebound.example:7429",
                403,
            ),
            ("GET /debug/page HTTP/1.1\r\nHost: 127.0.0.1.example", 403),
            ("GET /debug/page HTTP/1.1\r\nHost: example.", 403),
            ("GET /folder/ HTTP/1.1\r\nHost: edge-1:7429", 200),
            ("GET /folder HTTP/1.1\r\nHost: edge-1:7429", 308),
            ("GET /folder/ HTTP/1.1\r\nHost: rebound.example", 403),
            ("POST /folder/ HTTP/1.1\r\nHost: edge-1:7429", 405),
            (
                "GET /metrics HTTP/1.1\r\nHost: edge-1.edge.internal:7429",
                200,
            ),
            ("GET /readyz HTTP/1.1\r\nHost: any.example", 200),
        ];
        let heads: Vec<&str> = wanted.iter().map(|(head, _)| *head).collect();
        let answers = answers(Admin::local_addr, &heads).await;
        for ((head, answer), (_, status)) in answers.iter().zip(wanted) {
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{head}: {answer}"
            );
        }
        assert!(
            answers[0].1.contains("`culvert-test log FILTER`"),
            "{}",
            answers[0].1
        );
    }

    #[tokio::test]
    async fn the_index_lists_every_page_of_its_listener_and_no_other() {
        let paths = ["/livez", "/readyz", "/metrics", "/debug/page", "/folder/"];
        let heads = ["GET / HTTP/1.1\r\nHost: any.example"];
        let over_tcp = answers(Admin::local_addr, &heads).await.remove(0).1;
        assert_eq!(listed(&over_tcp), paths, "{over_tcp}");

        let folder = tempfile::tempdir().unwrap();
        let admin = admin(folder.path());
        let socket = UnixStream::connect(folder.path().join("run/admin.sock"));
        let asked = async { ask(socket.await.unwrap(), heads[0]).await };
        let by_socket = tokio::select! {
            _ = admin.serve() => unreachable!("it serves for ever"),
            answer = asked => answer,
        };
        let with_log: Vec<&str> = listed(&by_socket);
        assert_eq!(with_log.len(), paths.len() + 1, "{by_socket}");
        assert!(with_log.contains(&"/debug/log"), "{by_socket}");
    }

    /// The paths at the beginnings of an index' lines.
    fn listed(answer: &str) -> Vec<&str> {
        let lines = answer.lines().filter(|line| line.starts_with('/'));
        lines.filter_map(|line| line.split(' ').next()).collect()
    }

    #[tokio::test]
    async fn the_metrics_listener_has_metrics_and_nothing_else() {
        let metrics = |admin: &Admin| admin.metrics.as_ref().unwrap().0.local_addr();
        let heads = [
            "/metrics",
            "/livez",
            "/readyz",
            "/debug/page",
            "/debug/log",
            "/",
        ];
        let heads = heads.map(|path| format!("GET {path} HTTP/1.1\r\nHost: a"));
        let answers = answers(metrics, &heads.each_ref().map(String::as_str)).await;
        assert!(
            answers[0].1.starts_with("HTTP/1.1 200 ") && answers[0].1.matches("# EOF").count() == 1,
            "{answers:?}"
        );
        assert!(answers[0].1.contains("\nprocess_open_fds "), "{answers:?}");
        for (head, answer) in &answers[1..] {
            assert!(answer.starts_with("HTTP/1.1 404 "), "{head}: {answer}");
        }
    }

    #[tokio::test]
    async fn a_taken_port_stops_nothing_and_is_bound_when_it_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let readiness = Readiness::default();
        let listen = AdminListen {
            program: "culvert-test",
            address,
            metrics: None,
            socket: folder.path().join("run/admin.sock"),
        };
        let admin = Admin::bind(
            &listen,
            &Listeners::default(),
            readiness.clone(),
            Registry::default(),
            Logs::for_tests(),
            AdminPages::new(),
        )
        .unwrap();
        assert_eq!(readiness.missing(), []);
        let [("admin", remark)] = &readiness.remarks()[..] else {
            panic!("{:?}", readiness.remarks());
        };
        assert!(remark.contains(&address.to_string()), "{remark}");
        drop(other);
        let asked = async {
            loop {
                if let Ok(connection) = TcpStream::connect(address).await {
                    return ask(connection, "GET /readyz HTTP/1.1\r\nHost: a").await;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let answer = tokio::select! {
            _ = admin.serve() => unreachable!("it serves for ever"),
            answer = asked => answer,
        };
        assert!(answer.ends_with("ok\n"), "{answer}");
        assert_eq!(readiness.remarks(), []);
    }

    #[tokio::test]
    async fn the_socket_takes_filters_and_says_what_is_wrong_with_one() {
        let folder = tempfile::tempdir().unwrap();
        let admin = admin(folder.path());
        let socket = folder.path().join("run/admin.sock");
        let asked = async {
            LogCommand::new("warn").run(&socket).await.unwrap();
            let regex = LogCommand::new("[{a=(x|y)*x(x|y)}]=info")
                .run(&socket)
                .await
                .unwrap_err();
            let pages = ask(
                UnixStream::connect(&socket).await.unwrap(),
                "GET /debug/page HTTP/1.1\r\nHost: a.b",
            )
            .await;
            let mut folder = Vec::new();
            for host in ["localhost", "rebound.example"] {
                let head = format!("GET /folder/ HTTP/1.1\r\nHost: {host}");
                folder.push(ask(UnixStream::connect(&socket).await.unwrap(), &head).await);
            }
            let long = LogCommand::new(&"a,".repeat(LOG_FILTER_BYTES))
                .run(&socket)
                .await
                .unwrap_err();
            (format!("{regex:#}"), pages, folder, format!("{long:#}"))
        };
        let (regex, pages, folder_pages, long) = tokio::select! {
            _ = admin.serve() => unreachable!("it serves for ever"),
            asked = asked => asked,
        };
        assert!(
            regex.contains("spans and fields") && regex.contains("write a level such as"),
            "{regex}"
        );
        assert!(pages.ends_with("[\"shown\"]"), "{pages}");
        assert!(
            folder_pages[0].ends_with("by the socket"),
            "{folder_pages:?}"
        );
        assert!(
            folder_pages[1].starts_with("HTTP/1.1 403 "),
            "{folder_pages:?}"
        );
        assert!(long.contains("413"), "{long}");
        let gone = format!(
            "{:#}",
            LogCommand::new("warn").run(&socket).await.unwrap_err()
        );
        assert!(
            gone.contains("admin.sock") && gone.contains("--admin-socket"),
            "{gone}"
        );
    }

    #[tokio::test]
    async fn a_socket_that_cannot_be_had_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("run"),
            "a file where the directory should be",
        )
        .unwrap();
        assert!(admin(folder.path()).local.is_none());
    }
}
