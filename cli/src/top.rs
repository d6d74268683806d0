//! What `culvert top` shows, and how it answers to keys. It knows no terminal.

mod choice;
mod draw;
mod rows;
mod view;

pub(crate) use draw::draw;
pub(crate) use view::{Action, Overlay, TopView};
