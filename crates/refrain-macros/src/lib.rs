//! The macros of Refrain. Depend on the crate `refrain`, which re-exports them beside the types they expand to.
//!
//! | macro | on | gives |
//! | --- | --- | --- |
//! | [`macro@tool`] | `async fn f(..)` | `fn f() -> refrain::server::Tool` |
//! | [`macro@prompt`] | `async fn f(..)` | `fn f() -> refrain::server::Prompt` |
//! | [`macro@resource`] | `async fn f(..)` | `fn f() -> refrain::server::Resource`, or `refrain::server::ResourceTemplate` |
//! | [`derive@Elicit`] | a struct | `impl refrain::Elicit`: a form |
//! | [`derive@Elicit`] | an enum without data | `impl refrain::ElicitEnum`: the choices of a field |
//!
//! None of them does what could not be written by hand: each expands to calls of public builders. Here only the
//! syntax is checked. The types are checked by the bounds of those builders, at the author's own code.
//!
//! The examples are not run in this crate, which cannot depend on `refrain`; `refrain` tests the macros.

mod docs;
mod elicit;
mod errors;
mod handler;
mod keys;
mod prompt;
mod resource;
mod tool;

use proc_macro::TokenStream;

/// Makes a tool of an async function.
///
/// The function takes `Cx`, then any number of `State<T>`, then at most one struct of arguments, and returns a
/// `Result`. In its place stands a function of the same name and visibility, without arguments, that gives out a
/// `refrain::server::Tool` to register.
///
/// ```ignore (needs the crate refrain)
/// use refrain::prelude::*;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Place {
///     location: String,
/// }
///
/// #[derive(serde::Deserialize, Elicit)]
/// struct Login {
///     name: String,
/// }
///
/// /// Tells the weather of a place.
/// #[tool(title = "Weather")]
/// async fn get_weather(cx: Cx, place: Place) -> Result<String> {
///     let login: Login = cx.elicit("github_login", "Please provide your GitHub username").await?;
///     Ok(format!("{}: sunny, {}", place.location, login.name))
/// }
///
/// let server = Server::builder("weather", "1.0").tool(get_weather()).build()?;
/// ```
///
/// # Keys
///
/// | key | meaning | without it |
/// | --- | --- | --- |
/// | `name = ".."` | the name clients call | the function's name |
/// | `title = ".."` | a name to show to people | none |
/// | `description = ".."` | what the tool does | the doc comment, lines as written |
/// | `version = ".."` | the tool's version, kept in its tokens | `"1"` |
/// | `once` | the tool uses `cx.once(..)`, and needs a replay log | it does not |
/// | `single_use` | each of its tokens is taken once | tokens may come again |
/// | `task` | a call becomes a task at once, where it can | only if the handler calls `cx.detach()` |
/// | `task_required` | the same, and where it cannot the call is refused | it runs as any other call |
/// | `detaches` | the handler may call `cx.detach()`, and lists that tell of tasks say so | it may all the same; no list tells |
/// | `live` | the handler is kept in memory between two rounds | it is run again from the top, and its journal replayed |
///
/// # What stays where
///
/// Doc comments, `#[cfg]`, `#[deprecated]` and lint attributes stay on the outer function. All others, as
/// `#[tracing::instrument]`, go to the handler inside.
#[proc_macro_attribute]
pub fn tool(attribute: TokenStream, item: TokenStream) -> TokenStream {
    tool::expand(attribute.into(), item.into()).into()
}

/// Makes a prompt of an async function.
///
/// The function is written as for [`macro@tool`]. In its place stands a function of the same name, without
/// arguments, that gives out a `refrain::server::Prompt` to register.
///
/// ```ignore (needs the crate refrain)
/// use refrain::prelude::*;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Review {
///     code: String,
/// }
///
/// /// Asks for a review of some code.
/// #[prompt(name = "code_review", title = "Code review")]
/// async fn review(_cx: Cx, args: Review) -> Result<String> {
///     Ok(format!("Please review this code:\n{}", args.code))
/// }
///
/// let server = Server::builder("reviews", "1.0").prompt(review()).build()?;
/// ```
///
/// # Keys
///
/// | key | meaning | without it |
/// | --- | --- | --- |
/// | `name = ".."` | the name clients ask for | the function's name |
/// | `title = ".."` | a name to show to people | none |
/// | `description = ".."` | what the prompt is for | the doc comment, lines as written |
#[proc_macro_attribute]
pub fn prompt(attribute: TokenStream, item: TokenStream) -> TokenStream {
    prompt::expand(attribute.into(), item.into()).into()
}

/// Makes a resource, or a template of resources, of an async function.
///
/// The function is written as for [`macro@tool`]. In its place stands a function of the same name, without
/// arguments, that gives out a `refrain::server::Resource` to register; or, where the URI has variables in braces, a
/// `refrain::server::ResourceTemplate`, whose documentation says what a template can be. The variables are the fields of the
/// argument struct.
///
/// ```ignore (needs the crate refrain)
/// use refrain::prelude::*;
///
/// /// The settings in force.
/// #[resource(uri = "config://app", mime_type = "application/json")]
/// async fn settings(_cx: Cx, settings: State<Settings>) -> Result<String> {
///     Ok(settings.to_json())
/// }
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Item {
///     id: String,
/// }
///
/// /// One work item.
/// #[resource(uri = "items://{id}", name = "work_item")]
/// async fn item(_cx: Cx, item: Item) -> Result<String> {
///     Ok(format!("item {}", item.id))
/// }
///
/// let server = Server::builder("tracker", "1.0")
///     .state(Settings::load())
///     .resource(settings())
///     .resource_template(item())
///     .build()?;
/// ```
///
/// # Keys
///
/// | key | meaning | without it |
/// | --- | --- | --- |
/// | `uri = ".."` | the URI, or the template of one | an error: it is needed |
/// | `name = ".."` | the resource's name | the function's name |
/// | `title = ".."` | a name to show to people | none |
/// | `description = ".."` | what the resource is | the doc comment, lines as written |
/// | `mime_type = ".."` | the type of its content | none |
#[proc_macro_attribute]
pub fn resource(attribute: TokenStream, item: TokenStream) -> TokenStream {
    resource::expand(attribute.into(), item.into()).into()
}

/// Makes a form of a struct, or the choices of a form's field of an enum.
///
/// `Deserialize` is not part of it: derive it with serde.
///
/// ```ignore (needs the crate refrain)
/// use refrain::prelude::*;
///
/// #[derive(serde::Deserialize, Elicit)]
/// #[serde(rename_all = "camelCase")]
/// struct SignUp {
///     /// How we write to you.
///     #[elicit(title = "E-mail", format = "email")]
///     address: String,
///     #[elicit(min = 0, max = 150)]
///     age: Option<u8>,
///     #[elicit(default = "weekly")]
///     how_often: Frequency,
///     #[elicit(min = 1, default = ["news"])]
///     topics: Vec<Topic>,
/// }
///
/// #[derive(serde::Deserialize, Elicit)]
/// #[serde(rename_all = "lowercase")]
/// enum Frequency {
///     Daily,
///     Weekly,
/// }
///
/// #[derive(serde::Deserialize, Elicit)]
/// #[serde(rename_all = "lowercase")]
/// enum Topic {
///     #[elicit(title = "What is new")]
///     News,
///     #[elicit(title = "What was mended")]
///     Fixes,
/// }
/// ```
///
/// # Fields
///
/// A form is flat. The type of a field tells what it becomes:
///
/// | type | field |
/// | --- | --- |
/// | `String` | a string |
/// | `bool` | a boolean |
/// | `i8` to `i64`, `u8` to `u64`, `isize`, `usize` | an integer |
/// | `f32`, `f64` | a number |
/// | an enum that derives `Elicit` | one of its choices |
/// | a `Vec` of such an enum | any of its choices |
/// | an `Option` of one of these | the same, and it may be left out |
///
/// # Keys on a field
///
/// | key | on | meaning |
/// | --- | --- | --- |
/// | `title = ".."` | any | a name to show |
/// | `description = ".."` | any | what the field is for; without it, the doc comment |
/// | `format = ".."` | strings | `email`, `uri`, `date` or `date-time` |
/// | `min = ..`, `max = ..` | numbers, strings, lists | the limits of the value, the length or the count |
/// | `default = ..` | any | what the client may fill in beforehand; choices as they are sent |
///
/// A default does not make a field optional: `Option` and `#[serde(default)]` do.
///
/// # Keys on a variant
///
/// `title = ".."` shows in place of the choice's name.
///
/// # Serde's attributes
///
/// `rename`, `rename_all`, `default`, `skip` and `skip_deserializing` are followed. Those that make serde read
/// another shape (`flatten`, `transparent`, `tag`, `content`, `untagged`) are refused.
#[proc_macro_derive(Elicit, attributes(elicit, serde))]
pub fn elicit(input: TokenStream) -> TokenStream {
    elicit::expand(input.into()).into()
}
