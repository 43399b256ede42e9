//! What the three handler attributes share: the async fn they are put on, and what becomes of it.
//!
//! `async fn f(..) -> R { .. }` becomes `fn f() -> B { async fn f(..) -> R { .. } B::new(.., f) }`, where `B` is the
//! builder that is registered. Only the syntax is checked here; whether the types fit, the builder's bounds tell.

use crate::docs;
use crate::errors::Errors;
use crate::keys::Keys;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, FnArg, LitStr, ReturnType, Signature, Type, TypePath, Visibility};

/// The function an attribute was put on. Its body stays as the author's tokens.
pub(crate) struct Handler {
    attribute: &'static str,
    attrs: Vec<Attribute>,
    vis: Visibility,
    sig: Signature,
    body: TokenTree,
    /// Whether nothing is wrong with the signature.
    sound: bool,
}

/// The parts of a function, with the body left unread.
struct Parts(Vec<Attribute>, Visibility, Signature, TokenTree);

impl Parse for Parts {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig = input.parse()?;
        let ahead = input.span();
        match input.parse()? {
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                Ok(Self(attrs, vis, sig, TokenTree::Group(body)))
            }
            _ => Err(syn::Error::new(ahead, "expected the body of the function")),
        }
    }
}

impl Handler {
    /// Reads the function and reports what is wrong with its signature. `None` if it is no function at all.
    pub(crate) fn parse(
        attribute: &'static str,
        item: TokenStream,
        errors: &mut Errors,
    ) -> Option<Self> {
        match syn::parse2(item) {
            Ok(Parts(attrs, vis, sig, body)) => {
                let mut wrong = Errors::default();
                check(attribute, &sig, &mut wrong);
                let sound = wrong.is_empty();
                errors.append(wrong);
                Some(Self {
                    attribute,
                    attrs,
                    vis,
                    sig,
                    body,
                    sound,
                })
            }
            Err(error) => {
                let message = format!("`#[{attribute}]` goes on an async function: {error}");
                errors.at_span(error.span(), message);
                None
            }
        }
    }

    /// The name to register under: the key `name`, else the function's.
    pub(crate) fn name(&self, keys: &Keys, errors: &mut Errors) -> LitStr {
        keys.filled_text("name", errors).unwrap_or_else(|| {
            let ident = &self.sig.ident;
            LitStr::new(&ident.unraw().to_string(), ident.span())
        })
    }

    /// The builder calls for the title and the description, which is the doc comment unless a key says otherwise.
    pub(crate) fn about(&self, keys: &Keys, errors: &mut Errors) -> TokenStream {
        let title = keys.text("title", errors);
        let description = keys.text("description", errors).or_else(|| {
            let text = docs::text(&self.attrs)?;
            Some(LitStr::new(&text, self.sig.ident.span()))
        });
        let title = title.map(|title| quote!(.title(#title)));
        let description = description.map(|text| quote!(.describe(#text)));
        quote!(#title #description)
    }

    /// The function that gives out the builder. `new` are the arguments before the handler, `calls` what follows.
    pub(crate) fn expand(
        &self,
        builder: &str,
        new: &TokenStream,
        calls: &TokenStream,
        errors: Errors,
    ) -> TokenStream {
        let Self {
            attribute,
            attrs,
            vis,
            sig,
            body,
            sound,
        } = self;
        let builder = format_ident!("{builder}");
        let ident = &sig.ident;
        let (outer, inner): (Vec<_>, Vec<_>) = attrs.iter().partition(|attr| is_outer(attr));
        let unused = format!("this only describes the {attribute}: register it with the server");
        let errors = errors.into_compile_errors();
        // With a mistake elsewhere the function still exists, so that its uses are not reported as well.
        let (build, unused_handler) = match &errors {
            None => (
                quote!(::refrain::server::#builder::new(#new, #ident) #calls),
                None,
            ),
            Some(_) => (quote!(::core::unreachable!()), Some(quote!(dead_code))),
        };
        // What a handler takes, and that it is async, is fixed by its kind: lints about that are not the author's concern.
        let handler = sound.then(|| {
            quote! {
                #[allow(clippy::unused_async, clippy::needless_pass_by_value, #unused_handler)]
                #(#inner)*
                #sig #body
            }
        });
        quote! {
            #errors
            #(#outer)*
            #[must_use = #unused]
            #vis fn #ident() -> ::refrain::server::#builder {
                #handler
                #build
            }
        }
    }
}

/// Reports what is wrong with a signature.
fn check(attribute: &str, sig: &Signature, errors: &mut Errors) {
    if sig.asyncness.is_none() {
        let message = format!("`#[{attribute}]` needs an async function: `async fn`");
        errors.at(sig.fn_token, message);
    }
    if let Some(token) = &sig.constness {
        errors.at(token, format!("`#[{attribute}]` cannot be `const`"));
    }
    if let syn::Safety::Unsafe(token) = &sig.safety {
        errors.at(token, format!("`#[{attribute}]` cannot be `unsafe`"));
    }
    if let Some(abi) = &sig.abi {
        errors.at(abi, format!("`#[{attribute}]` cannot have an ABI"));
    }
    if !sig.generics.params.is_empty() {
        let message = format!("`#[{attribute}]` cannot be generic: name the types");
        errors.at(&sig.generics, message);
    } else if let Some(clause) = &sig.generics.where_clause {
        let message = format!("`#[{attribute}]` cannot have a where clause");
        errors.at(clause, message);
    }
    if let ReturnType::Default = sig.output {
        let message = format!("`#[{attribute}]` needs a return type: `-> Result<..>`");
        errors.at_span(sig.paren_token.span.close(), message);
    }
    check_inputs(attribute, sig, errors);
}

fn check_inputs(attribute: &str, sig: &Signature, errors: &mut Errors) {
    let missing = format!("`#[{attribute}]` needs `cx: Cx` as its first argument");
    let mut inputs = sig.inputs.iter();
    match inputs.next() {
        None => errors.at_span(sig.paren_token.span.join(), missing),
        Some(FnArg::Receiver(receiver)) => errors.at(
            receiver,
            format!(
                "`#[{attribute}]` takes no `self`: begin with `cx: Cx` and take shared things as `State<T>`"
            ),
        ),
        Some(FnArg::Typed(first)) => match &*first.ty {
            ty if is_cx(ty) => {}
            Type::Reference(to) if is_cx(&to.elem) => {
                errors.at(to, "`Cx` is taken by value: `cx: Cx`");
            }
            _ => errors.at(first, missing),
        },
    }
    for input in inputs {
        let FnArg::Typed(input) = input else { continue };
        match &*input.ty {
            Type::Reference(_) => errors.at(
                &input.ty,
                format!("`#[{attribute}]` takes its arguments by value, not by reference"),
            ),
            Type::ImplTrait(_) => errors.at(
                &input.ty,
                format!("`#[{attribute}]` cannot be generic: name the type"),
            ),
            _ => {}
        }
    }
    if let Some(variadic) = &sig.variadic {
        errors.at(variadic, format!("`#[{attribute}]` cannot be variadic"));
    }
}

/// Attributes that speak of the item as others see it, or of everything in it. The rest is for the handler itself.
fn is_outer(attr: &Attribute) -> bool {
    const OUTER: [&str; 9] = [
        "allow",
        "cfg",
        "cfg_attr",
        "deny",
        "deprecated",
        "doc",
        "expect",
        "forbid",
        "warn",
    ];
    OUTER.iter().any(|name| attr.path().is_ident(name))
}

/// Whether the type is called `Cx`, however it is reached.
fn is_cx(ty: &Type) -> bool {
    match ty {
        Type::Path(TypePath { path, .. }) => {
            path.segments.last().is_some_and(|last| last.ident == "Cx")
        }
        Type::Group(group) => is_cx(&group.elem),
        Type::Paren(paren) => is_cx(&paren.elem),
        _ => false,
    }
}
