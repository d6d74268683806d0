//! The page on top of the archive.

use culvert_site::units::time_of_day;
use maud::{DOCTYPE, html};

use super::Collection;

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 \
    1em;color-scheme:light dark}table{border-collapse:collapse;width:100%}td,th{text-align:left;\
    padding:4px 12px 4px 0;border-bottom:1px solid #8884;overflow-wrap:anywhere}.error{color:#c33}";

/// The page, with a link to each part, or why the part is missing.
pub(super) fn index(collection: &Collection, now_seconds: u64) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "culvert bundle" }
                style { (STYLE) }
            }
            body {
                h1 { "culvert bundle" }
                p { "Made by culvert " (culvert_daemon::BUILD) " at " (time_of_day(now_seconds)) " UTC." }
                ul { @for line in &collection.summary { li { (line) } } }
                table {
                    thead { tr { th { "part" } th { "what" } th { "bytes" } } }
                    tbody {
                        @for item in &collection.items {
                            tr {
                                @match &item.content {
                                    Ok(text) => {
                                        td { a href=(item.path) { (item.path) } }
                                        td { (item.about) }
                                        td { (text.len()) }
                                    }
                                    Err(reason) => {
                                        td { (item.path) }
                                        td .error colspan="2" { (reason) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    page.into_string()
}
