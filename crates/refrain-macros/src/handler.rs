//! The handler attributes `#[tool]`, `#[prompt]` and `#[resource]`.
//!
//! `async fn f(..) -> R { .. }` becomes `fn f() -> B { async fn f(..) -> R { .. } B::new(.., send) }`, where `B` is the
//! builder to register and `send` is `fn(..) -> impl Future<Output = R> + Send { f(..) }`. With `send`, rustc reports a value that
//! is not `Send` where it is held across an await. Otherwise only the syntax is checked here; the trait bounds of the builder
//! check the types.

use crate::docs;
use crate::errors::Errors;
use crate::keys::AttributeKeys;
use crate::resource;
use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, FnArg, Ident, LitStr, ReturnType, Signature, Type, TypePath, Visibility};

/// A handler attribute: its name, its builder, its keys with a string value and its flags.
pub(crate) struct HandlerKind {
    name: &'static str,
    builder: &'static str,
    texts: &'static [&'static str],
    /// Each flag is a method of the builder.
    flags: &'static [&'static str],
}

pub(crate) const TOOL: HandlerKind = HandlerKind {
    name: "tool",
    builder: "Tool",
    texts: &["name", "title", "description", "version"],
    flags: &[
        "once",
        "single_use",
        "task",
        "task_required",
        "detaches",
        "live",
    ],
};

pub(crate) const PROMPT: HandlerKind = HandlerKind {
    name: "prompt",
    builder: "Prompt",
    texts: &["name", "title", "description"],
    flags: &[],
};

pub(crate) const RESOURCE: HandlerKind = HandlerKind {
    name: "resource",
    builder: "Resource",
    texts: &["uri", "name", "title", "description", "mime_type"],
    flags: &[],
};

/// A function whose body is not parsed.
struct HandlerFn {
    attrs: Vec<Attribute>,
    vis: Visibility,
    sig: Signature,
    body: TokenTree,
}

impl Parse for HandlerFn {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig = input.parse()?;
        let body_span = input.span();
        let body = input.parse()?;
        match &body {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Ok(Self {
                attrs,
                vis,
                sig,
                body,
            }),
            _ => Err(syn::Error::new(body_span, "expected a function body")),
        }
    }
}

pub(crate) fn expand(kind: &HandlerKind, attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let mut keys = AttributeKeys::default();
    let attribute_name = format!("`#[{}]`", kind.name);
    let allowed = [kind.texts, kind.flags].concat();
    keys.extend(&attribute_name, &allowed, attribute, &mut errors);
    let uri = match kind.name {
        "resource" => resource::uri(&keys, &mut errors),
        _ => None,
    };
    let handler: HandlerFn = match syn::parse2(item) {
        Ok(handler) => handler,
        Err(error) => {
            let message = format!("{attribute_name} is only allowed on an async function: {error}");
            errors.at_span(error.span(), message);
            return errors.into_compile_errors().unwrap_or_default();
        }
    };
    let mut checker = SignatureChecker {
        attribute: kind.name,
        errors: Errors::default(),
    };
    checker.check(&handler.sig);
    let is_valid = checker.errors.is_empty();
    errors.append(checker.errors);

    let ident = &handler.sig.ident;
    let name = keys.filled_text("name", &mut errors);
    let name = name.unwrap_or_else(|| LitStr::new(&ident.unraw().to_string(), ident.span()));
    let title = keys.text("title", &mut errors);
    let title = title.map(|title| quote!(.title(#title)));
    let description = keys.text("description", &mut errors);
    let description = description.map(|text| text.value());
    let description = description.or_else(|| docs::text(&handler.attrs));
    let description = description.map(|text| {
        let text = LitStr::new(&text, ident.span());
        quote!(.describe(#text))
    });
    let mut calls = quote!(#title #description);
    for key in ["version", "mime_type"] {
        let (method, text) = (format_ident!("{key}"), keys.filled_text(key, &mut errors));
        calls.extend(text.map(|text| quote!(.#method(#text))));
    }
    for key in kind.flags {
        if keys.flag(key, &mut errors) {
            let method = format_ident!("{key}");
            calls.extend(quote!(.#method()));
        }
    }
    let builder = match &uri {
        Some(uri) if uri.value().contains('{') => "ResourceTemplate",
        _ => kind.builder,
    };
    let uri = uri.map(|uri| quote!(#uri,));
    let send = handler.send_ident();
    let build = quote!(new(#uri #name, #send) #calls);
    handler.expand(kind.name, builder, &build, is_valid, errors)
}

impl HandlerFn {
    /// The name of the function whose future is declared `Send`. Errors about it are reported at the handler's name.
    fn send_ident(&self) -> Ident {
        Ident::new("__refrain_handler", self.sig.ident.span())
    }

    /// The function whose future is declared `Send`.
    fn send_fn(&self) -> TokenStream {
        let ident = &self.sig.ident;
        let inputs = self.sig.inputs.iter().enumerate();
        let (names, types): (Vec<_>, Vec<_>) = inputs
            .filter_map(|(i, input)| match input {
                FnArg::Typed(input) => Some((format_ident!("a{i}"), &input.ty)),
                FnArg::Receiver(_) => None,
            })
            .unzip();
        let output = match &self.sig.output {
            ReturnType::Type(_, output) => output.to_token_stream(),
            ReturnType::Default => quote!(()),
        };
        let send = self.send_ident();
        quote! {
            fn #send(#(#names: #types),*) -> impl ::core::future::Future<Output = #output> + ::core::marker::Send {
                #ident(#(#names),*)
            }
        }
    }

    /// The function that returns the builder. A handler with an invalid signature is omitted.
    fn expand(
        &self,
        attribute: &str,
        builder: &str,
        build: &TokenStream,
        is_valid: bool,
        errors: Errors,
    ) -> TokenStream {
        let Self {
            attrs,
            vis,
            sig,
            body,
        } = self;
        let ident = &sig.ident;
        // The function has the spans of the author's code, so that rustc reports a handler that is
        // never registered as dead code. It does not report dead code with the spans of a macro.
        let fn_token = &sig.fn_token;
        let builder = Ident::new(builder, ident.span());
        let output = quote_spanned!(ident.span()=> () -> ::refrain::server::#builder);
        let (outer, inner): (Vec<_>, Vec<_>) = attrs.iter().partition(|attr| is_outer(attr));
        let unused = format!("a {attribute} does nothing until it is registered with the server");
        let errors = errors.into_compile_errors();
        // After an error the function still exists, so that its uses cause no further errors.
        let (build, unused_handler) = match &errors {
            None => {
                let send = self.send_fn();
                (quote!(#send ::refrain::server::#builder::#build), None)
            }
            Some(_) => (quote!(::core::unreachable!()), Some(quote!(dead_code))),
        };
        // A handler must be async and take its arguments by value, so these lints do not apply.
        let handler = is_valid.then(|| {
            quote! {
                #[allow(clippy::unused_async, clippy::needless_pass_by_value, #unused_handler)]
                #(#inner)*
                #sig #body
            }
        });
        let mut block = Group::new(Delimiter::Brace, quote!(#handler #build));
        block.set_span(body.span());
        quote! {
            #errors
            #(#outer)*
            #[must_use = #unused]
            #vis #fn_token #ident #output #block
        }
    }
}

/// Checks the signature of a handler.
struct SignatureChecker {
    attribute: &'static str,
    errors: Errors,
}

impl SignatureChecker {
    fn at(&mut self, tokens: impl ToTokens, problem: &str) {
        let message = format!("`#[{}]` {problem}", self.attribute);
        self.errors.at(tokens, message);
    }

    fn at_span(&mut self, span: Span, problem: &str) {
        let message = format!("`#[{}]` {problem}", self.attribute);
        self.errors.at_span(span, message);
    }

    fn check(&mut self, sig: &Signature) {
        if sig.asyncness.is_none() {
            self.at(sig.fn_token, "needs an async function: `async fn`");
        }
        if let Some(token) = &sig.constness {
            self.at(token, "cannot be `const`");
        }
        if let syn::Safety::Unsafe(token) = &sig.safety {
            self.at(token, "cannot be `unsafe`");
        }
        if let Some(abi) = &sig.abi {
            self.at(abi, "cannot have an ABI");
        }
        if !sig.generics.params.is_empty() {
            self.at(&sig.generics, "cannot be generic: use concrete types");
        } else if let Some(clause) = &sig.generics.where_clause {
            self.at(clause, "cannot have a where clause");
        }
        if let ReturnType::Default = sig.output {
            let end = sig.paren_token.span.close();
            self.at_span(end, "needs a return type: `-> Result<..>`");
        }
        self.check_inputs(sig);
    }

    fn check_inputs(&mut self, sig: &Signature) {
        let missing = "needs `cx: Cx` as its first argument";
        let mut inputs = sig.inputs.iter();
        match inputs.next() {
            None => self.at_span(sig.paren_token.span.join(), missing),
            Some(FnArg::Receiver(receiver)) => self.at(
                receiver,
                "cannot have a `self` argument: start with `cx: Cx` and take shared state as `State<T>`",
            ),
            Some(FnArg::Typed(first)) => match &*first.ty {
                ty if is_cx(ty) => {}
                Type::Reference(to) if is_cx(&to.elem) => {
                    self.at(to, "takes `Cx` by value: `cx: Cx`");
                }
                _ => self.at(first, missing),
            },
        }
        for input in inputs {
            let FnArg::Typed(input) = input else { continue };
            match &*input.ty {
                Type::Reference(_) => {
                    self.at(&input.ty, "takes its arguments by value, not by reference");
                }
                Type::ImplTrait(_) => self.at(&input.ty, "cannot be generic: use a concrete type"),
                _ => {}
            }
        }
        if let Some(variadic) = &sig.variadic {
            self.at(variadic, "cannot be variadic");
        }
    }
}

/// Returns whether an attribute stays on the outer function. The others move to the handler.
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

/// Returns whether the last segment of the type is `Cx`.
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
