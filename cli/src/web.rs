//! The pages of `culvert dashboard`: HTML made of a [`Site`] and its [`History`], without a server.
//! All texts of others are escaped by the templates. They work without JavaScript; where there is
//! some, a page replaces its content in place of being loaded again.

mod figure;
mod format;
mod layout;
mod node_page;
mod node_table;
mod polar;
mod query;
mod site_page;
mod sparkline;
mod tables;

pub(crate) use layout::{Frame, message_page};
pub(crate) use node_page::node_page;
pub(crate) use query::PageQuery;
pub(crate) use site_page::site_page;

/// The style sheet of all pages.
pub(crate) const STYLE: &str = include_str!("web/style.css");
/// Replaces the content of a page.
pub(crate) const SCRIPT: &str = include_str!("web/refresh.js");
