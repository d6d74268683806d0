//! What proxies say at one moment, put together and judged, and the pages that show it. `culvert` asks
//! all proxies for it; a proxy knows it of itself. Neither is known here.
//!
//! An answer (`cloud_host`) is what the programs of one host say. All of them make a `site`, whose
//! rows are `node`, `stream`, `event`, `summary`. What is wrong, and how wrong, is decided in
//! `verdict` alone. A `board` is the present site and its `history`, and `web` shows it.
#![forbid(unsafe_code)]

pub mod answered;
pub mod board;
pub mod cloud_host;
pub mod event;
pub mod fixes;
pub mod history;
pub mod host_path;
pub mod node;
pub mod node_choice;
pub mod samples;
pub mod site;
pub mod stream;
pub mod summary;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tunnel_at;
pub mod units;
pub mod verdict;
pub mod web;
