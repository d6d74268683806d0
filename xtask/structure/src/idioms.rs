//! What is counted inside of a file: how long functions are, how statements are written, what
//! signatures and names say.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Expr, ExprField, ExprMethodCall, FnArg, ImplItemFn, ItemEnum, ItemFn, ItemStruct, ItemTrait,
    Local, Member, Pat, Signature, Type, Visibility,
};

use crate::source::{File, count_tokens};

/// Methods that take a closure, or stand for one, and hide a branch or a loop. `map` and `map_err`
/// are left out, because most Rust is written in them, and questions to a list, such as `any`.
const COMBINATORS: [&str; 21] = [
    "and_then",
    "filter",
    "filter_map",
    "find_map",
    "flat_map",
    "fold",
    "inspect",
    "is_err_and",
    "is_none_or",
    "is_ok_and",
    "is_some_and",
    "map_or",
    "map_or_else",
    "ok_or_else",
    "or_else",
    "partition",
    "skip_while",
    "take_while",
    "then",
    "then_some",
    "unwrap_or_else",
];

/// Names of functions with many meanings, or with one that only their author knows. A getter is a
/// noun, a setter is `set_x` or `record_x`, and what it does is a verb of the field.
const FUNCTIONS: [&str; 26] = [
    "asked", "begin", "dialled", "go_on", "heard", "held", "hold", "keep", "kept", "known", "live",
    "meant", "news", "note", "refused", "seen", "shown", "standing", "take", "taken", "tell",
    "told", "turn", "wanted", "word", "words",
];

/// Names of types that say a mood or an action and not what the type is.
const TYPES: [&str; 27] = [
    "Again",
    "Asked",
    "Early",
    "Elsewhere",
    "Found",
    "Heard",
    "Held",
    "Kept",
    "Known",
    "Late",
    "Most",
    "News",
    "Now",
    "Own",
    "Place",
    "Reach",
    "Seen",
    "Standing",
    "Taken",
    "Told",
    "Trouble",
    "Turn",
    "Unanswered",
    "Wanted",
    "Way",
    "Why",
    "Wish",
];

/// One place in a file.
pub(crate) struct Location {
    /// The line.
    pub(crate) line: usize,
    /// What is there, such as the name of a function.
    pub(crate) what: String,
}

/// A function, with its length.
pub(crate) struct Function {
    /// Where it is. `what` is its name.
    pub(crate) place: Location,
    /// How many tokens its signature and its body have.
    pub(crate) tokens: usize,
}

/// What one file has.
#[derive(Default)]
pub(crate) struct Idioms {
    /// All functions.
    pub(crate) functions: Vec<Function>,
    /// Calls of [`COMBINATORS`].
    pub(crate) combinators: usize,
    /// Closures that are bound to a name.
    pub(crate) closures: Vec<Location>,
    /// `let (a, b) = (x, y)`.
    pub(crate) tuples: Vec<Location>,
    /// Parameters of type `bool` of functions that other modules can call.
    pub(crate) bools: Vec<Location>,
    /// Functions and types whose names are on a list above.
    pub(crate) names: Vec<Location>,
    /// Reads of a field of `args`, in a file that does not define the flags.
    pub(crate) flags: Vec<Location>,
    defines_flags: bool,
}

impl Idioms {
    /// Counts in one file.
    pub(crate) fn of(file: &File) -> Self {
        let mut idioms = Self::default();
        for item in &file.items {
            idioms.visit_item(item);
        }
        if idioms.defines_flags || file.path.ends_with("/config.rs") {
            idioms.flags.clear();
        }
        idioms
    }

    fn function(&mut self, signature: &Signature, tokens: usize, visibility: &Visibility) {
        let name = signature.ident.to_string();
        let line = signature.ident.span().start().line;
        if FUNCTIONS.contains(&name.as_str()) {
            self.names.push(Location {
                line,
                what: format!("fn {name}"),
            });
        }
        if !matches!(visibility, Visibility::Inherited) {
            for input in &signature.inputs {
                if let FnArg::Typed(parameter) = input
                    && let Type::Path(path) = &*parameter.ty
                    && path.path.is_ident("bool")
                {
                    self.bools.push(Location {
                        line,
                        what: format!("fn {name}"),
                    });
                }
            }
        }
        self.functions.push(Function {
            place: Location { line, what: name },
            tokens,
        });
    }

    fn type_name(&mut self, name: &syn::Ident) {
        let text = name.to_string();
        if TYPES.contains(&text.as_str()) {
            self.names.push(Location {
                line: name.span().start().line,
                what: format!("type {text}"),
            });
        }
        if text.ends_with("Args") {
            self.defines_flags = true;
        }
    }
}

impl<'ast> Visit<'ast> for Idioms {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        let tokens = count_tokens(&item.sig) + count_tokens(&item.block);
        self.function(&item.sig, tokens, &item.vis);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        let tokens = count_tokens(&item.sig) + count_tokens(&item.block);
        self.function(&item.sig, tokens, &item.vis);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.type_name(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.type_name(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.type_name(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if COMBINATORS.iter().any(|name| call.method == name) {
            self.combinators += 1;
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(value) = &local.init {
            let line = local.span().start().line;
            if let Expr::Closure(_) = *value.expr {
                self.closures.push(Location {
                    line,
                    what: "a closure with a name".to_owned(),
                });
            }
            if let (Expr::Tuple(_), Pat::Tuple(_)) = (&*value.expr, &local.pat) {
                self.tuples.push(Location {
                    line,
                    what: "let (..) = (..)".to_owned(),
                });
            }
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_field(&mut self, field: &'ast ExprField) {
        if is_args(&field.base)
            && let Member::Named(name) = &field.member
        {
            self.flags.push(Location {
                line: name.span().start().line,
                what: format!("args.{name}"),
            });
        }
        visit::visit_expr_field(self, field);
    }
}

/// Whether it is `args`, or a field of that name.
fn is_args(expression: &Expr) -> bool {
    match expression {
        Expr::Path(path) => path.path.is_ident("args"),
        Expr::Field(field) => matches!(&field.member, Member::Named(name) if name == "args"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idioms(source: &str) -> Idioms {
        Idioms::of(&File {
            path: "src/file.rs".to_owned(),
            module: Vec::new(),
            items: syn::parse_file(source).expect("Rust").items,
            lines: 0,
        })
    }

    #[test]
    fn a_function_has_the_tokens_of_its_signature_and_body_without_documentation() {
        let found = idioms("/// Adds one.\n#[inline]\npub fn next(of: u8) -> u8 { of + 1 }");
        // fn next ( of : u8 ) -> u8 { of + 1 }
        assert_eq!(found.functions[0].tokens, 14);
    }

    #[test]
    fn combinators_closures_and_tuples_are_found_inside_of_methods_too() {
        let found = idioms(
            "impl A { fn f(&self) {
                let (a, b) = (1, 2);
                let add = |x| x + a;
                let (c, d) = self.pair();
                Some(b).filter(|x| add(*x) > 1).and_then(g).map(h);
            } }",
        );
        assert_eq!(found.combinators, 2);
        assert_eq!(found.closures.len(), 1);
        assert_eq!(found.tuples.len(), 1);
    }

    #[test]
    fn a_bool_counts_where_another_module_can_call_the_function() {
        let found =
            idioms("fn a(x: bool) {} pub(crate) fn b(x: bool, y: &bool) {} pub fn c(x: u8) {}");
        assert_eq!(found.bools.len(), 1);
    }

    #[test]
    fn flags_are_read_where_they_are_defined() {
        assert_eq!(
            idioms("fn f(args: &A) { g(args.x, self.args.y) }")
                .flags
                .len(),
            2
        );
        let found = idioms("struct RunArgs { x: u8 } fn f(args: &RunArgs) { g(args.x) }");
        assert!(found.flags.is_empty());
    }

    #[test]
    fn names_on_the_lists_are_found() {
        let found = idioms("enum Found {} impl A { fn take(self) {} fn taken_by(self) {} }");
        assert_eq!(found.names.len(), 2);
    }
}
