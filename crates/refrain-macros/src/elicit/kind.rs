//! The kind of a form field, from its type.

use syn::{GenericArgument, PathArguments, PathSegment, Type, TypePath};

const HINT: &str = "a form is flat: use `String`, `bool`, an integer of up to 64 bits, `f32`, `f64`, an enum that \
                    derives `Elicit`, a `Vec` of such an enum, or an `Option` of one of these";

/// The kind of a form field.
pub(super) enum FieldType<'a> {
    Text,
    /// An integer in the range of this type.
    Integer(Integer),
    Number,
    Boolean,
    /// One of the choices of this enum.
    One(&'a Type),
    /// Any of the choices of this enum.
    Many(&'a Type),
}

impl FieldType<'_> {
    /// The name of the kind in messages.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Integer(_) => "an integer",
            Self::Number => "a number",
            Self::Boolean => "a bool",
            Self::One(_) => "a single choice",
            Self::Many(_) => "a list of choices",
        }
    }
}

/// An integer type.
pub(super) struct Integer {
    pub(super) name: String,
    pub(super) min: i128,
    pub(super) max: i128,
}

impl Integer {
    /// Parses the name of an integer type of up to 64 bits. `isize` and `usize` count as 64 bits.
    fn parse(name: &str) -> Option<Self> {
        let (signed, bits) = match name.split_at_checked(1)? {
            ("i", bits) => (true, bits),
            ("u", bits) => (false, bits),
            _ => return None,
        };
        let bits = match bits {
            "8" => 8,
            "16" => 16,
            "32" => 32,
            "64" | "size" => 64,
            _ => return None,
        };
        let max = (1 << (bits - i32::from(signed))) - 1;
        Some(Self {
            name: name.to_owned(),
            min: if signed { -max - 1 } else { 0 },
            max,
        })
    }
}

/// The type of a field.
pub(super) struct ParsedType<'a> {
    pub(super) kind: FieldType<'a>,
    /// Whether the type is an `Option`.
    pub(super) is_optional: bool,
}

pub(super) fn parse(ty: &Type) -> syn::Result<ParsedType<'_>> {
    let ty = ungrouped(ty);
    let Some(inner) = argument_of(ty, "Option")? else {
        return Ok(ParsedType {
            kind: kind_of(ty)?,
            is_optional: false,
        });
    };
    if argument_of(inner, "Option")?.is_some() {
        return Err(unsupported(inner, "an `Option` in an `Option`"));
    }
    Ok(ParsedType {
        kind: kind_of(inner)?,
        is_optional: true,
    })
}

/// The kind of a type that is not an `Option`.
fn kind_of(ty: &Type) -> syn::Result<FieldType<'_>> {
    if let Some(inner) = argument_of(ty, "Vec")? {
        let name =
            plain_name(inner).map_err(|kind| unsupported(inner, &format!("{kind} in a list")))?;
        return match name {
            name if primitive_type(&name).is_some() || UNSUPPORTED.contains(&name.as_str()) => {
                Err(unsupported(ty, &format!("a list of `{name}`")))
            }
            _ => Ok(FieldType::Many(inner)),
        };
    }
    let name = plain_name(ty).map_err(|kind| unsupported(ty, &kind))?;
    if UNSUPPORTED.contains(&name.as_str()) {
        return Err(unsupported(ty, &format!("`{name}`")));
    }
    Ok(primitive_type(&name).unwrap_or(FieldType::One(ty)))
}

/// Built-in types that could be mistaken for an enum.
const UNSUPPORTED: [&str; 4] = ["char", "str", "i128", "u128"];

fn primitive_type(name: &str) -> Option<FieldType<'static>> {
    match name {
        "String" => Some(FieldType::Text),
        "bool" => Some(FieldType::Boolean),
        "f32" | "f64" => Some(FieldType::Number),
        _ => Integer::parse(name).map(FieldType::Integer),
    }
}

fn unsupported(ty: &Type, what: &str) -> syn::Error {
    syn::Error::new_spanned(ty, format!("{what} cannot be a field of a form; {HINT}"))
}

/// The name of a type without generics. For any other type, `Err` with a description of it.
fn plain_name(ty: &Type) -> Result<String, String> {
    Err(match ty {
        Type::Path(TypePath {
            qself: None, path, ..
        }) => match path.segments.last() {
            Some(last) if last.arguments.is_none() => return Ok(last.ident.to_string()),
            Some(last) => format!("`{}<..>`", last.ident),
            None => "this type".to_owned(),
        },
        Type::Array(_) | Type::Slice(_) => "an array".to_owned(),
        Type::Reference(_) => "a reference".to_owned(),
        Type::Ptr(_) => "a raw pointer".to_owned(),
        Type::Tuple(_) => "a tuple".to_owned(),
        Type::FnPtr(_) => "a function".to_owned(),
        Type::TraitObject(_) => "a trait object".to_owned(),
        _ => "this type".to_owned(),
    })
}

/// The `T` of `path::Outer<T>`.
fn argument_of<'a>(ty: &'a Type, outer: &str) -> syn::Result<Option<&'a Type>> {
    let Type::Path(TypePath {
        qself: None, path, ..
    }) = ty
    else {
        return Ok(None);
    };
    let Some(last) = path.segments.last().filter(|last| last.ident == outer) else {
        return Ok(None);
    };
    match only_argument(last) {
        Some(inner) => Ok(Some(ungrouped(inner))),
        None => Err(unsupported(ty, &format!("`{outer}` without its type"))),
    }
}

fn only_argument(segment: &PathSegment) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return None;
    };
    match (arguments.args.first(), arguments.args.len()) {
        (Some(GenericArgument::Type(ty)), 1) => Some(ty),
        _ => None,
    }
}

/// The type without parentheses and without the invisible groups of a macro.
fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        Type::Paren(paren) => ungrouped(&paren.elem),
        ty => ty,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(ty: &str) -> Result<(&'static str, bool), String> {
        let ty: Type = syn::parse_str(ty).unwrap();
        parse(&ty)
            .map(|parsed| (parsed.kind.noun(), parsed.is_optional))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn supported_types_map_to_kinds() {
        for (ty, kind, optional) in [
            ("String", "a string", false),
            ("std::string::String", "a string", false),
            ("Option<String>", "a string", true),
            ("core::option::Option<(bool)>", "a bool", true),
            ("u8", "an integer", false),
            ("isize", "an integer", false),
            ("f32", "a number", false),
            ("Color", "a single choice", false),
            ("crate::Color", "a single choice", false),
            ("Vec<Color>", "a list of choices", false),
            ("Option<Vec<my::Color>>", "a list of choices", true),
        ] {
            assert_eq!(described(ty), Ok((kind, optional)), "{ty}");
        }
    }

    #[test]
    fn unsupported_types_are_rejected() {
        for (ty, what) in [
            ("(u8, u8)", "a tuple cannot"),
            ("&'static str", "a reference cannot"),
            ("*const u8", "a raw pointer cannot"),
            ("[u8; 4]", "an array cannot"),
            ("HashMap<String, u8>", "`HashMap<..>` cannot"),
            ("Vec<String>", "a list of `String` cannot"),
            ("Vec<Vec<Color>>", "`Vec<..>` in a list cannot"),
            ("Vec<Option<Color>>", "`Option<..>` in a list cannot"),
            ("Option<Option<bool>>", "an `Option` in an `Option` cannot"),
            ("Vec", "`Vec` without its type cannot"),
            ("u128", "`u128` cannot"),
            ("char", "`char` cannot"),
            ("<A as B>::C", "this type cannot"),
        ] {
            let message = described(ty).unwrap_err();
            assert!(message.starts_with(what), "{ty}: {message}");
            assert!(message.contains("a form is flat"), "{ty}: {message}");
        }
    }
}
