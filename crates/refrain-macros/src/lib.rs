//! The macros of Refrain. Depend on the crate `refrain`, which re-exports them beside the types they expand to.
//!
//! | macro | on | expands to |
//! | --- | --- | --- |
//! | [`macro@tool`] | `async fn f(..)` | `fn f() -> refrain::server::Tool` |
//! | [`macro@prompt`] | `async fn f(..)` | `fn f() -> refrain::server::Prompt` |
//! | [`macro@resource`] | `async fn f(..)` | `fn f() -> refrain::server::Resource`, or `refrain::server::ResourceTemplate` |
//! | [`derive@Elicit`] | a struct | `impl refrain::Elicit`: a form |
//! | [`derive@Elicit`] | an enum without data | `impl refrain::ElicitEnum`: the choices of a field |
//!
//! Each macro expands to calls of public builders. The macros check the syntax, the bounds of the builders check the types.
//! The examples are not run here, since this crate cannot depend on `refrain`; `refrain` tests the macros.

mod docs;
mod elicit;
mod errors;
mod handler;
mod keys;
mod resource;

use proc_macro::TokenStream;

/// Turns an async function into a tool.
///
/// The function takes `Cx`, then any number of `State<T>`, then at most one struct of arguments, and returns a
/// `Result`. It is replaced by a function of the same name and visibility, without arguments, that returns a
/// `refrain::server::Tool` to register.
///
/// ```ignore (needs the crate refrain)
/// use refrain::prelude::*;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Place {
///     location: String,
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
/// | `single_use` | each of its tokens is accepted once | tokens may be repeated |
/// | `task` | a call becomes a task at once, where it can | only if the handler calls `cx.detach()` |
/// | `task_required` | the same, and a call that cannot become a task is rejected | it runs as any other call |
/// | `detaches` | lists with tasks say that the handler may call `cx.detach()` | lists do not say so |
/// | `live` | the handler stays in memory between rounds | each round runs it from the top, with its journal replayed |
///
/// # Other attributes
///
/// Doc comments, `#[cfg]`, `#[deprecated]` and lint attributes stay on the outer function. Others, such as
/// `#[tracing::instrument]`, go to the handler inside.
#[proc_macro_attribute]
pub fn tool(attribute: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(&handler::TOOL, attribute.into(), item.into()).into()
}

/// Turns an async function into a prompt.
///
/// The function is written as for [`macro@tool`], and becomes a function that returns a `refrain::server::Prompt`.
///
/// ```ignore (needs the crate refrain)
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
    handler::expand(&handler::PROMPT, attribute.into(), item.into()).into()
}

/// Turns an async function into a resource, or into a template of resources.
///
/// The function is written as for [`macro@tool`], and becomes a function that returns a `refrain::server::Resource`. If the
/// URI has variables in braces, it returns a `refrain::server::ResourceTemplate`, whose documentation describes templates;
/// the variables are the fields of the argument struct.
///
/// ```ignore (needs the crate refrain)
/// /// The settings in force.
/// #[resource(uri = "config://app", mime_type = "application/json")]
/// async fn settings(_cx: Cx, settings: State<Settings>) -> Result<String> {
///     Ok(settings.to_json())
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
    handler::expand(&handler::RESOURCE, attribute.into(), item.into()).into()
}

/// Turns a struct into a form, or an enum into the choices of a form's field.
///
/// Derive `Deserialize` with serde as well.
///
/// ```ignore (needs the crate refrain)
/// #[derive(Deserialize, Elicit)]
/// #[serde(rename_all = "camelCase")]
/// struct SignUp {
///     /// Where to send the newsletter.
///     #[elicit(title = "E-mail", format = "email")]
///     address: String,
///     #[elicit(min = 0, max = 150)]
///     age: Option<u8>,
///     #[elicit(min = 1, default = ["news"])]
///     topics: Vec<Topic>,
/// }
///
/// #[derive(Deserialize, Elicit)]
/// #[serde(rename_all = "lowercase")]
/// enum Topic {
///     #[elicit(title = "News and events")]
///     News,
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
/// another shape (`flatten`, `transparent`, `tag`, `content`, `untagged`) are rejected.
#[proc_macro_derive(Elicit, attributes(elicit, serde))]
pub fn elicit(input: TokenStream) -> TokenStream {
    elicit::expand(input.into()).into()
}
