//! A picture as SVG. Its colours are those of the reader's browser: light or dark.

use std::fmt::Display;

const STYLE: &str = "\
.paper{fill:#ffffff}.panel{fill:#f3f6f9;stroke:#9fb3c4}text{fill:#1c2733}.small{font-size:13px;fill:#48596a}
.title{font-weight:600}.ours{fill:#16537e;stroke:none}.other{fill:#b3c2cf;stroke:none}.on{fill:#ffffff}
.axis{stroke:#9fb3c4;fill:none}.curve{stroke:#16537e;stroke-width:2.5;fill:none}.hot{fill:#d1570a;stroke:none}.warm{fill:#b04a08}
@media (prefers-color-scheme:dark){
.paper{fill:#0d1117}.panel{fill:#161c24;stroke:#44566a}text{fill:#e3eaf1}.small{fill:#a3b4c5}
.ours{fill:#2f81b7}.other{fill:#4a5d70}.axis{stroke:#44566a}.curve{stroke:#5aa9dd}.hot{fill:#ff9a52}.warm{fill:#a85417}}";

/// A picture while it is drawn. Classes are those of [`STYLE`].
pub(super) struct Picture {
    width: u32,
    height: u32,
    title: String,
    style: String,
    body: String,
}

/// Where text begins at its place.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Picture {
    /// An empty one. The title says in words what it shows.
    pub(super) fn new(width: u32, height: u32, title: &str) -> Self {
        Self {
            width,
            height,
            title: escaped(title),
            style: STYLE.to_owned(),
            body: String::new(),
        }
    }

    pub(super) fn add_style(&mut self, style: &str) {
        self.style.push('\n');
        self.style.push_str(style);
    }

    pub(super) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        self.body.push_str(&format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\" rx=\"3\"/>\n"
        ));
    }

    pub(super) fn dot(&mut self, class: &str, x: f64, y: f64) {
        let dot = format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>\n");
        self.body.push_str(&dot);
    }

    pub(super) fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        self.body
            .push_str(&format!("<polyline class=\"{class}\" points=\""));
        for (x, y) in points {
            self.body.push_str(&format!("{x:.1},{y:.1} "));
        }
        self.body.push_str("\"/>\n");
    }

    pub(super) fn text(&mut self, class: &str, anchor: Anchor, x: f64, y: f64, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let text = escaped(&text.to_string());
        self.body.push_str(&format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}</text>\n"
        ));
    }

    pub(super) fn finish(self) -> String {
        let Self {
            width,
            height,
            title,
            style,
            body,
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-labelledby=\"title\" font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', \
             sans-serif\" font-size=\"15\">\n<title id=\"title\">{title}</title>\n\
             <style>\n{style}\n</style>\n<rect class=\"paper\" width=\"{width}\" \
             height=\"{height}\"/>\n{body}</svg>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}
