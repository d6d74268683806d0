//! The source of a crate: its production files, parsed, each with its place in the tree of modules.
//!
//! What is compiled for tests alone is left out: items and modules under `#[cfg(test)]`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, Meta};

/// One crate of the workspace.
pub(crate) struct Crate {
    /// Its folder from the top of the repository, such as `hub`.
    pub(crate) folder: String,
    /// Its library and its programs.
    pub(crate) targets: Vec<Target>,
}

/// A library or a program: a tree of modules.
pub(crate) struct Target {
    /// The file of the root from the top of the repository, such as `hub/src/lib.rs`.
    pub(crate) root: String,
    /// All its production files.
    pub(crate) files: Vec<File>,
}

/// One production file.
pub(crate) struct File {
    /// From the top of the repository, such as `hub/src/cache/answers.rs`.
    pub(crate) path: String,
    /// Names of the modules from the root of the crate to this file. Empty for the root.
    pub(crate) module: Vec<String>,
    /// Its items, without those for tests.
    pub(crate) items: Vec<Item>,
    /// Lines that are neither blank nor a comment, without those of tests.
    pub(crate) lines: usize,
}

impl Crate {
    /// Reads the files of one crate, starting at the roots of its library and programs.
    ///
    /// # Errors
    /// A file cannot be read, is no Rust, or declares a module that has no file.
    pub(crate) fn read(top: &Path, folder: &str, roots: &[PathBuf]) -> Result<Self> {
        let mut targets = Vec::new();
        for root in roots {
            let children = root.parent().unwrap_or(top).to_owned();
            let mut files = Vec::new();
            read_module(top, root, &children, Vec::new(), &mut files)?;
            targets.push(Target {
                root: root.strip_prefix(top)?.display().to_string(),
                files,
            });
        }
        Ok(Self {
            folder: folder.to_owned(),
            targets,
        })
    }

    /// The files of all its targets.
    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.targets.iter().flat_map(|target| &target.files)
    }
}

/// Reads a file and the files of its modules, which are in the folder `children`.
fn read_module(
    top: &Path,
    path: &Path,
    children: &Path,
    module: Vec<String>,
    files: &mut Vec<File>,
) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut items = syn::parse_file(&text)
        .with_context(|| format!("parse {}", path.display()))?
        .items;
    remove_tests(&mut items);
    for item in &items {
        let Item::Mod(declared) = item else { continue };
        if declared.content.is_some() {
            continue;
        }
        let name = declared.ident.to_string();
        let grandchildren = children.join(&name);
        let file = file_of(declared.attrs.as_slice(), path, children, &name)?;
        let mut inner = module.clone();
        inner.push(name);
        read_module(top, &file, &grandchildren, inner, files)?;
    }
    files.push(File {
        path: path.strip_prefix(top)?.display().to_string(),
        module,
        lines: count_lines(&items),
        items,
    });
    Ok(())
}

/// The file of the module that `parent` declares as `mod name;`.
fn file_of(
    attributes: &[Attribute],
    parent: &Path,
    children: &Path,
    name: &str,
) -> Result<PathBuf> {
    for attribute in attributes {
        if let Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("path")
            && let syn::Expr::Lit(literal) = &pair.value
            && let syn::Lit::Str(path) = &literal.lit
        {
            return Ok(parent.with_file_name(path.value()));
        }
    }
    let file = children.join(format!("{name}.rs"));
    if !file.exists() {
        bail!("{}: no file for the module {name}", parent.display());
    }
    Ok(file)
}

/// Removes what only tests compile, also from inline modules and `impl` blocks.
fn remove_tests(items: &mut Vec<Item>) {
    items.retain(|item| !attributes(item).iter().any(is_for_tests));
    for item in items {
        if let Item::Mod(module) = item
            && let Some((_, inner)) = &mut module.content
        {
            remove_tests(inner);
        }
        if let Item::Impl(block) = item {
            block.items.retain(|item| {
                let attributes = match item {
                    syn::ImplItem::Const(item) => &item.attrs,
                    syn::ImplItem::Fn(item) => &item.attrs,
                    syn::ImplItem::Type(item) => &item.attrs,
                    _ => return true,
                };
                !attributes.iter().any(is_for_tests)
            });
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether it is `#[cfg(test)]`, or `#[cfg(any(test, ..))]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else {
        return false;
    };
    if !list.path.is_ident("cfg") {
        return false;
    }
    let condition = list.tokens.to_string();
    condition == "test" || condition.starts_with("any") && condition.contains("test")
}

fn count_lines(items: &[Item]) -> usize {
    let mut lines = BTreeSet::new();
    for item in items {
        visit_tokens(item.to_token_stream(), &mut |span| {
            lines.insert(span.start().line);
            lines.insert(span.end().line);
        });
    }
    lines.len()
}

/// How many tokens something has: each name, literal, sign (`->` is one) and bracket is one.
/// Documentation and attributes count nothing.
pub(crate) fn count_tokens(source: &impl ToTokens) -> usize {
    let mut count = 0;
    visit_tokens(source.to_token_stream(), &mut |_| count += 1);
    count
}

/// Calls `visit` with the place of each token that is no part of an attribute. Of a sign of several
/// characters, only with the last one.
fn visit_tokens(tokens: TokenStream, visit: &mut impl FnMut(Span)) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if is_sign(&token, '#')
            && let Some(TokenTree::Group(group)) = tokens.peek()
            && group.delimiter() == Delimiter::Bracket
        {
            tokens.next();
            continue;
        }
        let TokenTree::Group(group) = &token else {
            if !is_joined(&token) {
                visit(token.span());
            }
            continue;
        };
        if group.delimiter() != Delimiter::None {
            visit(group.span_open());
            visit(group.span_close());
        }
        visit_tokens(group.stream(), visit);
    }
}

fn is_sign(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// Whether the next character belongs to the same sign.
fn is_joined(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_tests_compile_is_no_source() {
        let source = "
            struct A;
            impl A {
                #[cfg(test)]
                fn for_tests() {}
                fn real() {}
            }
            #[cfg(any(test, fuzzing))]
            mod fuzzing;
            #[cfg(test)]
            mod tests { use super::*; }
            // A comment.
            #[cfg(target_os = \"linux\")]
            mod linux {}
        ";
        let mut items = syn::parse_file(source).expect("Rust").items;
        remove_tests(&mut items);
        assert_eq!(items.len(), 3);
        // struct, impl with its brackets, one function, mod
        assert_eq!(count_lines(&items), 5);
    }
}
