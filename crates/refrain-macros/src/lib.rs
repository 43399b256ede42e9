//! The macros of Refrain. Depend on the crate `refrain`, which re-exports them.
//!
//! | macro | on | expands to |
//! | --- | --- | --- |
//! | [`macro@tool`] | `async fn f(..)` | `fn f() -> refrain::server::Tool` |
//! | [`macro@prompt`] | `async fn f(..)` | `fn f() -> refrain::server::Prompt` |
//! | [`macro@resource`] | `async fn f(..)` | `fn f() -> refrain::server::Resource`, or `refrain::server::ResourceTemplate` |
//! | [`derive@Elicit`] | a struct | `impl refrain::Elicit`: a form |
//! | [`derive@Elicit`] | an enum whose variants have no fields | `impl refrain::ElicitEnum`: the choices of a form field |
//!
//! Each macro expands to calls of public builders. The macros check the syntax; the trait bounds of the builders check the
//! types.

mod docs;
mod elicit;
mod errors;
mod handler;
mod keys;
mod resource;

use proc_macro::TokenStream;

/// Turns an async function into a tool.
///
/// The function takes `Cx`, then up to four `State<T>`, then at most one struct of arguments, and returns a `Result`. The
/// macro replaces it with a function without arguments that returns a `refrain::server::Tool` to register.
///
/// ```
/// use refrain::prelude::*;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct City {
///     name: String,
/// }
///
/// #[derive(Deserialize, Elicit)]
/// struct Login {
///     name: String,
/// }
///
/// /// Returns the weather of a city.
/// #[tool(title = "Weather")]
/// async fn get_weather(cx: Cx, city: City) -> Result<String> {
///     let login: Login = cx.elicit("github_login", "Please provide your GitHub username").await?;
///     Ok(format!("{}: sunny, {}", city.name, login.name))
/// }
///
/// let server = Server::builder("weather", "1.0").tool(get_weather()).build()?;
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
///
/// # Keys
///
/// | key | meaning | default |
/// | --- | --- | --- |
/// | `name = ".."` | the name that clients call | the function's name |
/// | `title = ".."` | a display name | none |
/// | `description = ".."` | the description that models read | the doc comment |
/// | `version = ".."` | the tool's version, stored in its tokens | `"1"` |
/// | `once` | the tool uses `cx.once(..)` and needs a replay log | no |
/// | `single_use` | each of its tokens is accepted once | a token can be presented again |
/// | `task` | each call becomes a task at once, if the client supports tasks | only by `cx.detach()` or `Tool::task_after` |
/// | `task_required` | the same, and a call that cannot become a task is rejected | no |
/// | `detaches` | `cx.detach()` also works in live tools and in drafts, whose tool lists declare it | no |
/// | `live` | the handler stays in memory between rounds | each round replays the journal |
///
/// # Other attributes
///
/// Doc comments, `#[cfg]`, `#[deprecated]` and lint attributes apply to the generated function. Others, such as
/// `#[tracing::instrument]`, apply to the handler.
#[proc_macro_attribute]
pub fn tool(attribute: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(&handler::TOOL, attribute.into(), item.into()).into()
}

/// Turns an async function into a prompt.
///
/// The function has the same signature as for [`macro@tool`]. The macro replaces it with one that returns a
/// `refrain::server::Prompt`.
///
/// ```
/// # use refrain::prelude::*;
/// # #[derive(Deserialize, JsonSchema)] struct Review { code: String }
/// /// Asks for a review of some code.
/// #[prompt(name = "code_review", title = "Code review")]
/// async fn review(_cx: Cx, args: Review) -> Result<String> {
///     Ok(format!("Please review this code:\n{}", args.code))
/// }
///
/// let server = Server::builder("reviews", "1.0").prompt(review()).build()?;
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
///
/// # Keys
///
/// | key | meaning | default |
/// | --- | --- | --- |
/// | `name = ".."` | the name that clients request | the function's name |
/// | `title = ".."` | a display name | none |
/// | `description = ".."` | the description | the doc comment |
#[proc_macro_attribute]
pub fn prompt(attribute: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(&handler::PROMPT, attribute.into(), item.into()).into()
}

/// Turns an async function into a resource or a resource template.
///
/// The function has the same signature as for [`macro@tool`]. The macro replaces it with one that returns a
/// `refrain::server::Resource`, or a `refrain::server::ResourceTemplate` if the URI has variables in braces. The variables
/// are the fields of the argument struct.
///
/// ```
/// # use refrain::prelude::*;
/// # struct Settings(u8);
/// # #[derive(Deserialize, JsonSchema)] struct Item { id: String }
/// /// The current settings.
/// #[resource(uri = "config://app", mime_type = "application/json")]
/// async fn settings(_cx: Cx, settings: State<Settings>) -> Result<String> {
///     Ok(format!("{{\"level\": {}}}", settings.0))
/// }
///
/// /// One work item.
/// #[resource(uri = "items://{id}", name = "work_item")]
/// async fn item(_cx: Cx, item: Item) -> Result<String> {
///     Ok(format!("item {}", item.id))
/// }
///
/// let server = Server::builder("tracker", "1.0")
///     .state(Settings(3))
///     .resource(settings())
///     .resource_template(item())
///     .build()?;
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
///
/// # Keys
///
/// | key | meaning | default |
/// | --- | --- | --- |
/// | `uri = ".."` | the URI or URI template | required |
/// | `name = ".."` | the resource's name | the function's name |
/// | `title = ".."` | a display name | none |
/// | `description = ".."` | the description | the doc comment |
/// | `mime_type = ".."` | the MIME type of the content | none |
#[proc_macro_attribute]
pub fn resource(attribute: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(&handler::RESOURCE, attribute.into(), item.into()).into()
}

/// Makes a form from a struct, or the choices of a form field from an enum.
///
/// The type must derive serde's `Deserialize` as well.
///
/// ```
/// # use refrain::prelude::*;
/// #[derive(Deserialize, Elicit)]
/// #[serde(rename_all = "camelCase")]
/// struct SignUp {
///     /// The address for the newsletter.
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
/// A form is flat. The type of a field determines its schema:
///
/// | type | field |
/// | --- | --- |
/// | `String` | a string |
/// | `bool` | a boolean |
/// | `i8` to `i64`, `u8` to `u64`, `isize`, `usize` | an integer, without bounds unless `min` and `max` set them |
/// | `f32`, `f64` | a number |
/// | an enum that derives `Elicit` | one of its choices |
/// | a `Vec` of such an enum | any of its choices |
/// | an `Option` of one of these | the same, optional |
///
/// A `u8` field has no `minimum` or `maximum` in the form. An answer that is out of range, such as 300, is rejected, and
/// the client is asked again. To tell the client beforehand, set `min` and `max`.
///
/// # Keys on a field
///
/// | key | on | meaning |
/// | --- | --- | --- |
/// | `title = ".."` | any | a display name |
/// | `description = ".."` | any | the description; default: the doc comment |
/// | `format = ".."` | strings | `email`, `uri`, `date` or `date-time` |
/// | `min = ..`, `max = ..` | numbers, strings, lists | the bounds of the value, the length or the count |
/// | `default = ..` | any | the value with which the client may prefill the field; for a choice, its serialized name, which must exist |
///
/// A default does not make a field optional; `Option` and `#[serde(default)]` do.
///
/// # Keys on a variant
///
/// `title = ".."` is the display name of the choice.
///
/// # Serde attributes
///
/// `rename`, `rename_all`, `default`, `skip` and `skip_deserializing` are respected. Attributes that change the shape
/// (`flatten`, `transparent`, `tag`, `content`, `untagged`) are rejected.
#[proc_macro_derive(Elicit, attributes(elicit, serde))]
pub fn elicit(input: TokenStream) -> TokenStream {
    elicit::expand(input.into()).into()
}
