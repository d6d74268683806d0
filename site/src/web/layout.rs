//! What all pages have around their content.

use maud::{DOCTYPE, Markup, html};

use super::format::class;
use crate::units::time_of_day;
use crate::verdict::Verdict;

/// What a page knows of the server that shows it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Seconds until a page shows news.
    pub seconds: u64,
    /// For people: whom it asks.
    pub asked: String,
    /// In place of failed connections and of ways, where they are not shown: who has them.
    pub left_out: Option<&'static str>,
}

/// A page of its own.
pub(super) struct Page<'a> {
    pub(super) frame: &'a Frame,
    /// From the page's folder to that of the first page: empty, or `../`.
    pub(super) root: &'static str,
    pub(super) title: &'a str,
    pub(super) verdict: Verdict,
    /// In place of the verdict, for people.
    pub(super) state: &'a str,
    /// When its content was known.
    pub(super) at: u64,
}

/// Puts the content into the page.
pub(super) fn page(page: &Page<'_>, content: &Markup) -> String {
    let Page { frame, root, .. } = page;
    let first = if root.is_empty() { "." } else { root };
    let markup = html! {
        (DOCTYPE)
        html lang="en" data-seconds=(frame.seconds) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) }
                link rel="stylesheet" href={ (root) "style.css" };
                link rel="icon" href={ (root) "icon.svg" };
                noscript { meta http-equiv="refresh" content=(frame.seconds); }
                script src={ (root) "refresh.js" } defer {}
            }
            body {
                header {
                    a .brand href=(first) { (mark()) "Culvert" }
                    span .pill.(class(page.verdict)) { (page.state) }
                    span .when { time { (time_of_day(page.at)) } " UTC · every " (frame.seconds) " s" }
                }
                main { (content) }
                (footer(frame))
            }
        }
    };
    markup.into_string()
}

fn footer(frame: &Frame) -> Markup {
    html! {
        footer {
            "culvert " (culvert_daemon::BUILD) " · asks " (frame.asked) " · changes nothing"
        }
    }
}

/// A page that says one thing.
pub(super) fn message_page(frame: &Frame, root: &'static str, text: &str) -> String {
    let about = Page {
        frame,
        root,
        title: "Culvert",
        verdict: Verdict::Warning,
        state: "nothing to show",
        at: crate::units::now_seconds(),
    };
    let content = html! { section .card.message { p { (text) } } };
    page(&about, &content)
}

/// Three bows over a line, as water goes under a road.
fn mark() -> Markup {
    html! {
        svg viewBox="0 0 24 24" aria-hidden="true" {
            path d="M2 19V13a10 10 0 0 1 20 0v6" {}
            path d="M6.5 19v-6a5.5 5.5 0 0 1 11 0v6" {}
            path d="M11 19v-6a1 1 0 0 1 2 0v6" {}
        }
    }
}
