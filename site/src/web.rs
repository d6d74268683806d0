//! The pages for a browser: HTML made of a board. All texts of others are escaped by the templates. They
//! work without JavaScript; where there is some, a page replaces its content in place of being
//! loaded again. Their server decides where, and to whom, they are served.

mod figure;
mod format;
mod layout;
mod node_page;
mod node_table;
mod polar;
mod query;
mod server;
mod site_page;
mod sparkline;
mod tables;

pub use layout::Frame;
pub use server::{Source, pages, restrict};
