//! Handler functions.
//!
//! A handler is an `async fn` that takes a [`Cx`], up to four [`State`]s and at most one argument struct, in this order:
//! `fn(Cx)`, `fn(Cx, Args)`, `fn(Cx, State<A>, Args)` and so on.

use crate::reply::{IntoReply, ReplyTo};
use crate::rounds::Flows;
use crate::server::Server;
use refrain_core::{Cx, HandlerFuture, Result};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

/// Application state, set with [`ServerBuilder::state`](crate::ServerBuilder::state). `State<Server>` is the server itself.
#[derive(Debug)]
pub struct State<T>(Arc<T>);

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The application state by type.
#[derive(Clone, Default)]
pub(crate) struct StateMap(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl StateMap {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    pub(crate) fn has(&self, id: TypeId) -> bool {
        id == TypeId::of::<Server>() || self.0.contains_key(&id)
    }
}

/// A type of state that a handler takes.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct StateRequirement {
    pub(crate) id: TypeId,
    pub(crate) name: &'static str,
}

/// A function that can be registered as a handler. `M` is inferred; `K` is the kind of call.
#[diagnostic::on_unimplemented(
    message = "this function cannot be a handler",
    note = "a handler is an async fn that takes, in this order: a Cx, up to four State<T>, at most one argument struct",
    note = "the argument struct needs #[derive(Deserialize, JsonSchema)]",
    note = "it returns refrain::Result<T>; for a tool T is String, Json<..>, ToolResult, Vec<Content> and the like",
    note = "its future must be Send: hold no Rc or similar value across an await"
)]
pub trait Handler<M, K>: Send + Sync + 'static {
    /// The JSON schema of the arguments, if the handler takes any.
    fn schema() -> Option<Value>;
    /// The JSON schema of the structured result, if the handler returns one.
    fn output_schema() -> Option<Value>;
    /// The states that the handler takes.
    #[doc(hidden)]
    fn required_states() -> Vec<StateRequirement>;
    /// Starts the handler. Fails if the arguments do not match.
    #[doc(hidden)]
    fn start(&self, cx: Cx, input: HandlerInput<'_>) -> Result<HandlerFuture, serde_json::Error>;
}

/// The input of a handler.
#[doc(hidden)]
pub struct HandlerInput<'a> {
    pub(crate) flows: &'a Flows,
    pub(crate) arguments: Value,
    pub(crate) to: ReplyTo,
}

impl std::fmt::Debug for HandlerInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerInput").finish_non_exhaustive()
    }
}

impl HandlerInput<'_> {
    fn state<T: Send + Sync + 'static>(&self) -> State<T> {
        let state: Option<Arc<dyn Any + Send + Sync>> =
            if TypeId::of::<T>() == TypeId::of::<Server>() {
                // The server is not in the map, because a server that owns itself is never
                // dropped.
                self.flows.server().map(|server| Arc::new(server) as _)
            } else {
                self.flows.states().0.get(&TypeId::of::<T>()).cloned()
            };
        State(
            state
                .and_then(|state| state.downcast().ok())
                .expect("registration checks that the states exist"),
        )
    }
}

/// The formats of JSON Schema 2020-12.
const STANDARD_FORMATS: [&str; 19] = [
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "uuid",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
    "regex",
];

/// The settings for schemas that clients read. Non-standard formats, such as `uint64`, are left out: clients that validate
/// with Ajv warn about them or reject the schema.
pub(crate) fn schema_settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with_transform(RecursiveTransform(|schema: &mut Schema| {
        let format = schema.get("format").and_then(Value::as_str);
        if format.is_some_and(|format| !STANDARD_FORMATS.contains(&format)) {
            schema.remove("format");
        }
    }))
}

pub(crate) fn schema_of<A: JsonSchema>() -> Value {
    let generator = schema_settings().into_generator();
    let mut schema = generator.into_root_schema_for::<A>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
        object.remove("$schema");
        object.entry("type").or_insert_with(|| "object".into());
    }
    schema
}

/// Implements [`Handler`] for functions with these states and, after the semicolon, an optional argument struct.
macro_rules! handler {
    (@schema) => { None };
    (@schema $args:ident) => { Some(schema_of::<$args>()) };
    ($($state:ident),*; $($args:ident)?) => {
        impl<F, Fut, R, K, $($state,)* $($args,)?>
            Handler<(Cx, $(State<$state>,)* $($args,)?), K> for F
        where
            F: Fn(Cx, $(State<$state>,)* $($args,)?) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<R>> + Send + 'static,
            R: IntoReply<K>,
            $($state: Send + Sync + 'static,)*
            $($args: DeserializeOwned + JsonSchema,)?
        {
            fn schema() -> Option<Value> {
                handler!(@schema $($args)?)
            }

            fn output_schema() -> Option<Value> {
                R::output_schema()
            }

            fn required_states() -> Vec<StateRequirement> {
                vec![$(StateRequirement { id: TypeId::of::<$state>(), name: std::any::type_name::<$state>() }),*]
            }

            fn start(&self, cx: Cx, input: HandlerInput<'_>) -> Result<HandlerFuture, serde_json::Error> {
                let future = self(
                    cx,
                    $(input.state::<$state>(),)*
                    $(serde_json::from_value::<$args>(input.arguments)?,)?
                );
                let to = input.to;
                Ok(Box::pin(async move { future.await?.into_reply(&to) }))
            }
        }
    };
}

handler!(;);
handler!(S1;);
handler!(S1, S2;);
handler!(S1, S2, S3;);
handler!(S1, S2, S3, S4;);
handler!(; A);
handler!(S1; A);
handler!(S1, S2; A);
handler!(S1, S2, S3; A);
handler!(S1, S2, S3, S4; A);

pub(crate) type ErasedHandler =
    Box<dyn Fn(Cx, HandlerInput<'_>) -> Result<HandlerFuture, serde_json::Error> + Send + Sync>;

pub(crate) fn erase<M, K, H: Handler<M, K>>(handler: H) -> ErasedHandler {
    Box::new(move |cx, input| handler.start(cx, input))
}
