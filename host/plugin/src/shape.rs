//! The shapes of interfaces, so that a policy that doesn't fit can be told where.
//!
//! The engine's own linker says only that something doesn't fit, in the words of its internals. Here what the host wants
//! (from `wit/policy.wit`) and what a component has (from its type) become the same plain values, which can be compared
//! and shown. Named types are compared by their structure, as the engine does.

use crate::world::{PACKAGE_VERSION, World};
use std::collections::BTreeMap;
use std::fmt;
use wasmtime::Engine;
use wasmtime::component::types::{Component as ComponentType, ComponentInstance, ComponentItem, Type as Found};
use wit_parser::{Resolve, Type as Wanted, TypeDefKind, WorldItem, WorldKey};

/// The package's text: the one copy.
const WIT: &str = include_str!("../../../wit/policy.wit");
/// The package's name.
pub(crate) const PACKAGE: &str = "warmhold:policy";

/// A value's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Plain(&'static str),
    List(Box<Shape>),
    Option(Box<Shape>),
    Tuple(Vec<Shape>),
    Record(Vec<(String, Shape)>),
    Variant(Vec<(String, Option<Shape>)>),
    Enum(Vec<String>),
    Flags(Vec<String>),
    Result(Option<Box<Shape>>, Option<Box<Shape>>),
    Other(String),
}

/// A function's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    params: Vec<(String, Shape)>,
    result: Option<Shape>,
}

/// An interface's functions by name.
pub(crate) type Functions = BTreeMap<String, Signature>;

/// What a component imports and exports, by the interfaces' full names (with their versions).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) imports: BTreeMap<String, Functions>,
    pub(crate) exports: BTreeMap<String, Functions>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |items: &[String]| items.join(", ");
        match self {
            Self::Plain(name) => f.write_str(name),
            Self::Other(name) => f.write_str(name),
            Self::List(item) => write!(f, "list<{item}>"),
            Self::Option(item) => write!(f, "option<{item}>"),
            Self::Tuple(items) => write!(f, "tuple<{}>", join(&items.iter().map(Self::to_string).collect::<Vec<_>>())),
            Self::Record(fields) => {
                let names: Vec<_> = fields.iter().map(|(name, _)| name.clone()).collect();
                write!(f, "a record of {}", join(&names))
            }
            Self::Variant(cases) => {
                let names: Vec<_> = cases.iter().map(|(name, _)| name.clone()).collect();
                write!(f, "a variant of {}", join(&names))
            }
            Self::Enum(names) => write!(f, "an enum of {}", join(names)),
            Self::Flags(names) => write!(f, "flags of {}", join(names)),
            Self::Result(ok, error) => {
                let part = |part: &Option<Box<Self>>| part.as_ref().map_or("_".to_owned(), |shape| shape.to_string());
                write!(f, "result<{}, {}>", part(ok), part(error))
            }
        }
    }
}

/// Where two types first differ, as a path with both sides.
struct Difference {
    path: String,
    expected: String,
    found: String,
}

impl Difference {
    fn within(mut self, step: &str) -> Self {
        self.path = if self.path.is_empty() { step.to_owned() } else { format!("{step}, {}", self.path) };
        self
    }
}

fn compare(expected: &Shape, found: &Shape) -> Option<Difference> {
    let here = || Some(Difference { path: String::new(), expected: expected.to_string(), found: found.to_string() });
    let optional = |a: Option<&Shape>, b: Option<&Shape>, step: &str| match (a, b) {
        (None, None) => None,
        (Some(a), Some(b)) => compare(a, b).map(|difference| difference.within(step)),
        (a, b) => Some(Difference {
            path: step.to_owned(),
            expected: a.map_or("nothing".to_owned(), Shape::to_string),
            found: b.map_or("nothing".to_owned(), Shape::to_string),
        }),
    };
    match (expected, found) {
        (Shape::List(a), Shape::List(b)) => compare(a, b).map(|difference| difference.within("an item")),
        (Shape::Option(a), Shape::Option(b)) => compare(a, b),
        (Shape::Tuple(a), Shape::Tuple(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(n, (a, b))| compare(a, b).map(|difference| difference.within(&format!("part {}", n + 1)))),
        (Shape::Record(a), Shape::Record(b)) if names(a) == names(b) => {
            a.iter().zip(b).find_map(|((name, a), (_, b))| {
                compare(a, b).map(|difference| difference.within(&format!("field `{name}`")))
            })
        }
        (Shape::Variant(a), Shape::Variant(b)) if names(a) == names(b) => {
            a.iter().zip(b).find_map(|((name, a), (_, b))| optional(a.as_ref(), b.as_ref(), &format!("case `{name}`")))
        }
        (Shape::Result(a, b), Shape::Result(c, d)) => {
            optional(a.as_deref(), c.as_deref(), "ok").or_else(|| optional(b.as_deref(), d.as_deref(), "error"))
        }
        (a, b) if a == b => None,
        _ => here(),
    }
}

fn names<T>(items: &[(String, T)]) -> Vec<&str> {
    items.iter().map(|(name, _)| name.as_str()).collect()
}

/// Where two functions first differ, in words.
pub(crate) fn difference(expected: &Signature, found: &Signature) -> Option<String> {
    let tell = |difference: Difference, what: &str| {
        let place = if difference.path.is_empty() { what.to_owned() } else { format!("{what}, {}", difference.path) };
        format!("{place}: expected {}, found {}", difference.expected, difference.found)
    };
    if expected.params.len() != found.params.len() {
        let list = |signature: &Signature| names(&signature.params).join(", ");
        return Some(format!("parameters: expected ({}), found ({})", list(expected), list(found)));
    }
    for ((name, a), (_, b)) in expected.params.iter().zip(&found.params) {
        if let Some(difference) = compare(a, b) {
            return Some(tell(difference, &format!("parameter `{name}`")));
        }
    }
    match (&expected.result, &found.result) {
        (None, None) => None,
        (Some(a), Some(b)) => compare(a, b).map(|difference| tell(difference, "result")),
        (a, b) => {
            let show = |shape: &Option<Shape>| shape.as_ref().map_or("nothing".to_owned(), Shape::to_string);
            Some(format!("result: expected {}, found {}", show(a), show(b)))
        }
    }
}

/// The interface's name and its version, if it has one.
pub(crate) fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (name, None),
    }
}

/// Whether a version can stand for the one that this host speaks: before 1.0 the same minor, from then on the same major.
pub(crate) fn compatible(version: &str) -> bool {
    let line = |version: &str| {
        let mut parts = version.split(['.', '-', '+']);
        let (major, minor) = (parts.next().unwrap_or_default().to_owned(), parts.next().unwrap_or_default().to_owned());
        if major == "0" { format!("0.{minor}") } else { major }
    };
    line(version) == line(PACKAGE_VERSION)
}

/// What the host wants of a world: what may be imported, and what must be exported. Names are without versions.
///
/// # Errors
/// When the package's text can't be parsed: a fault of this program.
pub(crate) fn expected(world: World) -> Result<Outline, String> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", WIT).map_err(|error| format!("{error:#}"))?;
    let id = resolve.select_world(&[package], Some(world.wit_name())).map_err(|error| format!("{error:#}"))?;
    let world = resolve.worlds.get(id).ok_or("the world is not in the package")?;
    let collect = |items: &wit_parser::IndexMap<WorldKey, WorldItem>| {
        items
            .iter()
            .filter_map(|(key, item)| match item {
                WorldItem::Interface { id, .. } => {
                    let name = resolve.name_world_key(key);
                    let functions = resolve
                        .interfaces
                        .get(*id)?
                        .functions
                        .iter()
                        .map(|(name, function)| {
                            let params =
                                function.params.iter().map(|param| (param.name.clone(), wanted(&resolve, &param.ty)));
                            let result = function.result.as_ref().map(|shape| wanted(&resolve, shape));
                            (name.clone(), Signature { params: params.collect(), result })
                        })
                        .collect();
                    Some((split(&name).0.to_owned(), functions))
                }
                _ => None,
            })
            .collect()
    };
    Ok(Outline { imports: collect(&world.imports), exports: collect(&world.exports) })
}

fn wanted(resolve: &Resolve, shape: &Wanted) -> Shape {
    match shape {
        Wanted::Bool => Shape::Plain("bool"),
        Wanted::U8 => Shape::Plain("u8"),
        Wanted::U16 => Shape::Plain("u16"),
        Wanted::U32 => Shape::Plain("u32"),
        Wanted::U64 => Shape::Plain("u64"),
        Wanted::S8 => Shape::Plain("s8"),
        Wanted::S16 => Shape::Plain("s16"),
        Wanted::S32 => Shape::Plain("s32"),
        Wanted::S64 => Shape::Plain("s64"),
        Wanted::F32 => Shape::Plain("f32"),
        Wanted::F64 => Shape::Plain("f64"),
        Wanted::Char => Shape::Plain("char"),
        Wanted::String => Shape::Plain("string"),
        Wanted::ErrorContext => Shape::Other("error-context".to_owned()),
        Wanted::Id(id) => match resolve.types.get(*id).map(|def| &def.kind) {
            Some(TypeDefKind::Type(shape)) => wanted(resolve, shape),
            Some(TypeDefKind::List(item)) => Shape::List(Box::new(wanted(resolve, item))),
            Some(TypeDefKind::Option(item)) => Shape::Option(Box::new(wanted(resolve, item))),
            Some(TypeDefKind::Tuple(tuple)) => Shape::Tuple(tuple.types.iter().map(|t| wanted(resolve, t)).collect()),
            Some(TypeDefKind::Record(record)) => {
                Shape::Record(record.fields.iter().map(|f| (f.name.clone(), wanted(resolve, &f.ty))).collect())
            }
            Some(TypeDefKind::Variant(variant)) => {
                let case = |c: &wit_parser::Case| (c.name.clone(), c.ty.as_ref().map(|t| wanted(resolve, t)));
                Shape::Variant(variant.cases.iter().map(case).collect())
            }
            Some(TypeDefKind::Enum(e)) => Shape::Enum(e.cases.iter().map(|c| c.name.clone()).collect()),
            Some(TypeDefKind::Flags(flags)) => Shape::Flags(flags.flags.iter().map(|f| f.name.clone()).collect()),
            Some(TypeDefKind::Result(r)) => {
                let part = |t: &Option<Wanted>| t.as_ref().map(|t| Box::new(wanted(resolve, t)));
                Shape::Result(part(&r.ok), part(&r.err))
            }
            Some(TypeDefKind::Handle(wit_parser::Handle::Own(_))) => Shape::Plain("own<resource>"),
            Some(TypeDefKind::Handle(wit_parser::Handle::Borrow(_))) => Shape::Plain("borrow<resource>"),
            other => Shape::Other(format!("{other:?}")),
        },
    }
}

/// What a component imports and exports. Names keep their versions.
pub(crate) fn found(engine: &Engine, component: &ComponentType) -> Outline {
    let functions = |instance: &ComponentInstance| -> Functions {
        instance
            .exports(engine)
            .filter_map(|(name, item)| match item.ty {
                ComponentItem::ComponentFunc(function) => {
                    let params = function.params().map(|(name, shape)| (name.to_owned(), have(&shape))).collect();
                    let result = function.results().next().map(|shape| have(&shape));
                    Some((name.to_owned(), Signature { params, result }))
                }
                _ => None,
            })
            .collect()
    };
    let entry = |name: &str, item: &ComponentItem| match item {
        ComponentItem::ComponentInstance(instance) => (name.to_owned(), functions(instance)),
        // A function, module or type outside of an interface: nothing that these worlds know.
        _ => (name.to_owned(), Functions::new()),
    };
    Outline {
        imports: component.imports(engine).map(|(name, item)| entry(name, &item.ty)).collect(),
        exports: component.exports(engine).map(|(name, item)| entry(name, &item.ty)).collect(),
    }
}

fn have(shape: &Found) -> Shape {
    match shape {
        Found::Bool => Shape::Plain("bool"),
        Found::U8 => Shape::Plain("u8"),
        Found::U16 => Shape::Plain("u16"),
        Found::U32 => Shape::Plain("u32"),
        Found::U64 => Shape::Plain("u64"),
        Found::S8 => Shape::Plain("s8"),
        Found::S16 => Shape::Plain("s16"),
        Found::S32 => Shape::Plain("s32"),
        Found::S64 => Shape::Plain("s64"),
        Found::Float32 => Shape::Plain("f32"),
        Found::Float64 => Shape::Plain("f64"),
        Found::Char => Shape::Plain("char"),
        Found::String => Shape::Plain("string"),
        Found::List(list) => Shape::List(Box::new(have(&list.ty()))),
        Found::Option(option) => Shape::Option(Box::new(have(&option.ty()))),
        Found::Tuple(tuple) => Shape::Tuple(tuple.types().map(|t| have(&t)).collect()),
        Found::Record(record) => Shape::Record(record.fields().map(|f| (f.name.to_owned(), have(&f.ty))).collect()),
        Found::Variant(variant) => {
            Shape::Variant(variant.cases().map(|c| (c.name.to_owned(), c.ty.as_ref().map(have))).collect())
        }
        Found::Enum(e) => Shape::Enum(e.names().map(str::to_owned).collect()),
        Found::Flags(flags) => Shape::Flags(flags.names().map(str::to_owned).collect()),
        Found::Result(r) => Shape::Result(r.ok().map(|t| Box::new(have(&t))), r.err().map(|t| Box::new(have(&t)))),
        Found::Own(_) => Shape::Plain("own<resource>"),
        Found::Borrow(_) => Shape::Plain("borrow<resource>"),
        other => Shape::Other(format!("{other:?}")),
    }
}
