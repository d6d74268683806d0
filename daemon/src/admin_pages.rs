//! The pages of an admin server, each with a line on what it is. What is served and what the index
//! lists is one list.

use std::fmt::Write as _;

use axum::Router;
use axum::routing::{MethodRouter, get};

/// Pages with their routes. `S` is what a handler still wants, as in [`Router`].
#[derive(Clone, Debug)]
pub struct AdminPages<S = ()> {
    pub(crate) router: Router<S>,
    index: Vec<IndexLine>,
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
        self.index.extend(other.index);
        self
    }

    /// The same for handlers that have what they want.
    #[must_use]
    pub fn with_state(self, state: S) -> AdminPages {
        AdminPages {
            router: self.router.with_state(state),
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
    /// The routes, and at `/` their index.
    pub(crate) fn with_index(self, program: &str) -> Router {
        let mut text = format!("Pages of {program}:\n\n");
        let lengths = self.index.iter().map(|line| line.path.len());
        let width = lengths.max().unwrap_or_default();
        for IndexLine { path, content } in &self.index {
            _ = writeln!(text, "{path:width$}  {content}");
        }
        self.router.route("/", get(async move || text.clone()))
    }
}
