//! Which modules of a crate use which, and where they use each other in a circle.
//!
//! A parent and its children belong together, so what they use of each other counts nothing. Of any
//! other use, the two ends are lifted to the children of the module that contains both: what
//! `clients::http::head` uses of `streams::live` is an arrow from `clients` to `streams`, and what it
//! uses of `clients::connect` an arrow from `clients::http` to `clients::connect`.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, UseTree};

use crate::source::{File, Target};

/// Modules with the same parent that use each other in a circle.
pub(crate) struct Circle {
    /// Names of the modules from the root of the crate to the parent.
    pub(crate) parent: Vec<String>,
    /// Names of the modules, sorted.
    pub(crate) members: Vec<String>,
    /// The uses between them.
    pub(crate) arrows: Vec<Arrow>,
}

/// One use of one module by another.
#[derive(Clone)]
pub(crate) struct Arrow {
    /// The file that uses it, from the top of the repository.
    pub(crate) path: String,
    /// The line.
    pub(crate) line: usize,
    from: Vec<String>,
    to: Vec<String>,
}

impl Arrow {
    /// Says who uses whom.
    pub(crate) fn describe(&self) -> String {
        format!("{} uses {}", self.from.join("::"), self.to.join("::"))
    }

    /// The place of the two ends below the module that contains both. `None` if one end contains the
    /// other.
    fn lifted(&self) -> Option<Lifted<'_>> {
        let mut depth = 0;
        while let (Some(from), Some(to)) = (self.from.get(depth), self.to.get(depth)) {
            if from != to {
                return Some(Lifted {
                    parent: &self.from[..depth],
                    from,
                    to,
                });
            }
            depth += 1;
        }
        None
    }
}

struct Lifted<'a> {
    parent: &'a [String],
    from: &'a str,
    to: &'a str,
}

/// All circles of a library or a program.
pub(crate) fn circles(target: &Target) -> Vec<Circle> {
    let modules: BTreeSet<&[String]> = target.files.iter().map(|file| &*file.module).collect();
    let mut arrows = Vec::new();
    for file in &target.files {
        let mut finder = Finder {
            file,
            modules: &modules,
            module: file.module.clone(),
            arrows: &mut arrows,
        };
        for item in &file.items {
            finder.visit_item(item);
        }
    }
    let mut parents: BTreeMap<&[String], Vec<&Arrow>> = BTreeMap::new();
    for arrow in &arrows {
        if let Some(lifted) = arrow.lifted() {
            parents.entry(lifted.parent).or_default().push(arrow);
        }
    }
    let mut circles = Vec::new();
    for (parent, arrows) in parents {
        circles.extend(circles_below(parent, &arrows));
    }
    circles
}

/// The circles among the children of one module.
fn circles_below(parent: &[String], arrows: &[&Arrow]) -> Vec<Circle> {
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        if let Some(lifted) = arrow.lifted() {
            uses.entry(lifted.from).or_default().insert(lifted.to);
        }
    }
    let mut circles = Vec::new();
    let mut seen = BTreeSet::new();
    for &module in uses.keys() {
        if seen.contains(module) {
            continue;
        }
        let mut members = Vec::new();
        for other in reachable(module, &uses) {
            if reachable(other, &uses).contains(module) {
                seen.insert(other);
                members.push(other.to_owned());
            }
        }
        if !members.is_empty() {
            circles.push(Circle {
                parent: parent.to_vec(),
                arrows: arrows_between(&members, arrows),
                members,
            });
        }
    }
    circles
}

fn arrows_between(members: &[String], arrows: &[&Arrow]) -> Vec<Arrow> {
    let mut between = Vec::new();
    for &arrow in arrows {
        if let Some(lifted) = arrow.lifted()
            && members.iter().any(|member| member == lifted.from)
            && members.iter().any(|member| member == lifted.to)
        {
            between.push(arrow.clone());
        }
    }
    between
}

/// All modules that `start` uses, and those that these use, and so on.
fn reachable<'a>(start: &str, uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(module) = open.pop() {
        let Some(others) = uses.get(module) else {
            continue;
        };
        for &other in others {
            if reached.insert(other) {
                open.push(other);
            }
        }
    }
    reached
}

/// Finds what one file uses, in `use` declarations and in paths.
struct Finder<'a> {
    file: &'a File,
    modules: &'a BTreeSet<&'a [String]>,
    /// The module that is being read: the file's, or one inside of it.
    module: Vec<String>,
    arrows: &'a mut Vec<Arrow>,
}

impl Finder<'_> {
    /// Notes a path that is used, if it leads to another file of the crate.
    fn record(&mut self, path: &[String], line: usize) {
        let Some(absolute) = self.resolve(path) else {
            return;
        };
        let mut target = absolute.as_slice();
        while !self.modules.contains(target) {
            let Some((_, shorter)) = target.split_last() else {
                return;
            };
            target = shorter;
        }
        if target.is_empty() || target == self.file.module {
            return;
        }
        self.arrows.push(Arrow {
            path: self.file.path.clone(),
            line,
            from: self.file.module.clone(),
            to: target.to_vec(),
        });
    }

    /// The path from the root of the crate. `None` if it leads out of the crate.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?;
        let mut absolute = self.module.clone();
        let mut rest = path;
        match first.as_str() {
            "crate" => {
                absolute.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while let Some(next) = rest.first()
                    && next == "super"
                {
                    absolute.pop();
                    rest = &rest[1..];
                }
            }
            child => {
                let mut module = self.file.module.clone();
                module.push(child.to_owned());
                if !self.modules.contains(module.as_slice()) {
                    return None;
                }
                absolute = self.file.module.clone();
            }
        }
        absolute.extend_from_slice(rest);
        Some(absolute)
    }

    fn record_tree(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.record_tree(prefix, &path.tree);
                prefix.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.record_tree(prefix, tree);
                }
            }
            UseTree::Name(name) => self.record_last(prefix, &name.ident),
            UseTree::Rename(rename) => self.record_last(prefix, &rename.ident),
            UseTree::Glob(glob) => self.record(prefix, glob.star_token.spans[0].start().line),
        }
    }

    fn record_last(&mut self, prefix: &[String], name: &syn::Ident) {
        let mut path = prefix.to_vec();
        path.push(name.to_string());
        self.record(&path, name.span().start().line);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.record_tree(&mut Vec::new(), &item.tree);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(first) = path.segments.first() {
            let names: Vec<String> = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string())
                .collect();
            self.record(&names, first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The members of all circles of a crate that has these modules, each with its source.
    fn members(modules: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut files = Vec::new();
        for (module, source) in modules {
            let file = syn::parse_file(source).expect("Rust");
            files.push(File {
                path: format!("{module}.rs"),
                module: module
                    .split("::")
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect(),
                items: file.items,
                lines: 0,
            });
        }
        let target = Target {
            root: "lib.rs".to_owned(),
            files,
        };
        circles(&target)
            .into_iter()
            .map(|circle| circle.members)
            .collect()
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle_also_by_a_third_one() {
        let found = members(&[
            ("", "mod a; mod b; mod c; mod d;"),
            ("a", "use crate::b::B;"),
            ("b", "fn f() -> crate::c::C { super::c::new() }"),
            ("c", "mod inner { use super::super::a::A; }"),
            ("d", "use crate::a::A;"),
        ]);
        assert_eq!(found, [["a", "b", "c"]]);
    }

    #[test]
    fn what_is_inside_of_two_modules_counts_for_them() {
        let found = members(&[
            ("", "mod a; mod b;"),
            ("a", "mod x; mod y;"),
            ("a::x", "use crate::b::B;"),
            ("a::y", ""),
            ("b", "use crate::a::y::{self, Y as Z};"),
        ]);
        assert_eq!(found, [["a", "b"]]);
    }

    #[test]
    fn a_parent_and_its_children_may_use_each_other() {
        let found = members(&[
            ("", "mod a; use a::A; pub struct Root;"),
            ("a", "mod x; use x::X; pub struct A;"),
            ("a::x", "use super::A; use crate::Root;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_child_that_is_used_by_its_name_alone_counts() {
        let found = members(&[
            ("", "mod a;"),
            ("a", "mod x; mod y;"),
            ("a::x", "mod z; use z::Z; use super::y::Y;"),
            ("a::x::z", ""),
            ("a::y", "fn f() { super::x::z::g() }"),
        ]);
        assert_eq!(found, [["x", "y"]]);
    }
}
