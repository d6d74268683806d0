//! The pages of an admin server, each with a line on what it is. What is served and what the index
//! lists is one list.

use std::fmt::Write as _;

use axum::Router;
use axum::middleware::from_fn;
use axum::response::Redirect;
use axum::routing::{MethodRouter, get};

use crate::foreign_names::refuse_foreign_names;

/// Pages with their routes. `S` is what a handler still wants, as in [`Router`].
#[derive(Clone, Debug)]
pub struct AdminPages<S = ()> {
    pub(crate) router: Router<S>,
    folders: Vec<Folder>,
    index: Vec<IndexLine>,
}

/// Pages for browsers.
#[derive(Clone, Debug)]
struct Folder {
    path: &'static str,
    port: Router,
    socket: Router,
}

/// Where pages are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    /// To all who reach the port.
    Port,
    /// To root and the program's own user.
    Socket,
}

#[derive(Clone, Debug)]
struct IndexLine {
    path: &'static str,
    content: &'static str,
}

impl<S: Clone + Send + Sync + 'static> AdminPages<S> {
    /// No pages.
    #[must_use]
    pub fn new() -> Self {
        Self {
            router: Router::new(),
            folders: Vec::new(),
            index: Vec::new(),
        }
    }

    /// With a page, and what it has.
    #[must_use]
    pub fn page(
        mut self,
        path: &'static str,
        content: &'static str,
        handler: MethodRouter<S>,
    ) -> Self {
        self.router = self.router.route(path, handler);
        self.index.push(IndexLine { path, content });
        self
    }

    /// With the pages of another list after its own.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.folders.extend(other.folders);
        self.index.extend(other.index);
        self
    }

    /// The same for handlers that have what they want.
    #[must_use]
    pub fn with_state(self, state: S) -> AdminPages {
        AdminPages {
            router: self.router.with_state(state),
            folders: self.folders,
            index: self.index,
        }
    }
}

impl<S: Clone + Send + Sync + 'static> Default for AdminPages<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl AdminPages {
    /// With a folder of pages for browsers, whose path ends with `/`. The port has other ones than the
    /// socket, which only root and the program's own user reach. Both refuse foreign names: a port
    /// may be forwarded to the socket.
    #[must_use]
    pub fn folder(
        mut self,
        path: &'static str,
        content: &'static str,
        port: Router,
        socket: Router,
    ) -> Self {
        self.folders.push(Folder { path, port, socket });
        self.index.push(IndexLine { path, content });
        self
    }

    /// The routes, and at `/` their index.
    pub(crate) fn with_index(self, program: &str, listener: Listener) -> Router {
        let mut text = format!("Pages of {program}:\n\n");
        let lengths = self.index.iter().map(|line| line.path.len());
        let width = lengths.max().unwrap_or_default();
        for IndexLine { path, content } in &self.index {
            _ = writeln!(text, "{path:width$}  {content}");
        }
        let mut router = self.router;
        for folder in self.folders {
            let pages = match listener {
                Listener::Port => folder.port,
                Listener::Socket => folder.socket,
            };
            let path = folder.path;
            let first = get(async move || Redirect::permanent(path));
            router = router
                .nest(path, pages.layer(from_fn(refuse_foreign_names)))
                .route(path.trim_end_matches('/'), first);
        }
        router.route("/", get(async move || text.clone()))
    }
}
