//! Requests of a handler to its client, as asks of a `Cx`.

use refrain::ask::Form;
use refrain::runtime::wire::{Capabilities, Capability, SamplingParams};
use refrain::{Answer, AskError, Cx, Error};
use rmcp::model::{
    ClientResult, CreateMessageRequestParams, ElicitRequestParams, ElicitResult, ElicitationAction,
    EmptyResult, ErrorCode, ErrorData, InputRequest, InputRequests, InputResponses, ServerRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

/// The key of an ask in the journal.
pub(crate) enum AskName {
    /// The handler's own key.
    Key(String),
    /// The kind and number of the request, such as `elicitation-1`, if the handler gave no key. A newer version of the
    /// handler may send another form at this number, so the key in the journal also has the fingerprint of the form.
    Numbered(String),
}

/// Asks the caller. `name` is the key of the ask in the journal.
pub(crate) async fn ask(
    cx: Cx,
    name: AskName,
    request: ServerRequest,
) -> Result<ClientResult, ErrorData> {
    let is_numbered = matches!(name, AskName::Numbered(_));
    let (AskName::Key(name) | AskName::Numbered(name)) = name;
    match request {
        ServerRequest::ElicitRequest(request) => {
            elicit(&cx, name, is_numbered, request.params).await
        }
        ServerRequest::CreateMessageRequest(request) => sample(&cx, name, &request.params).await,
        ServerRequest::ListRootsRequest(_) => {
            let roots = cx.roots(name).await.map_err(|error| ask_failed(&error))?;
            convert(&json!({"roots": roots})).map(ClientResult::ListRootsResult)
        }
        ServerRequest::PingRequest(_) => Ok(ClientResult::EmptyResult(EmptyResult {})),
        _ => {
            let message = "this request cannot be sent to the client";
            Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None))
        }
    }
}

/// Sends all requests of an `InputRequiredResult` to the caller in one round.
pub(crate) async fn ask_all(cx: &Cx, requests: InputRequests) -> Result<InputResponses, ErrorData> {
    let asks = requests.into_iter().map(async |(key, request)| {
        let (name, request) = (AskName::Key(key.clone()), server_request(request)?);
        let answer = ask(cx.clone(), name, request).await?;
        Ok((key, convert::<_, Value>(&answer)?))
    });
    let answers = futures_util::future::try_join_all(asks).await?;
    Ok(answers.into_iter().collect())
}

/// Converts a request of an `InputRequiredResult` to a request of a server to its client.
pub(crate) fn server_request(request: InputRequest) -> Result<ServerRequest, ErrorData> {
    match request {
        InputRequest::Elicitation(request) => Ok(ServerRequest::ElicitRequest(request)),
        InputRequest::CreateMessage(request) => Ok(ServerRequest::CreateMessageRequest(request)),
        InputRequest::ListRoots(request) => Ok(ServerRequest::ListRootsRequest(request)),
        _ => Err(ErrorData::internal_error("unknown input request", None)),
    }
}

async fn elicit(
    cx: &Cx,
    name: String,
    is_numbered: bool,
    params: ElicitRequestParams,
) -> Result<ClientResult, ErrorData> {
    let (action, content) = match params {
        ElicitRequestParams::FormElicitationParams {
            message,
            requested_schema,
            ..
        } => {
            let schema = to_raw_value(&requested_schema).map_err(internal)?;
            let form = Form::parse(&schema).map_err(internal)?;
            let cx = match is_numbered {
                true => cx.scope(format!("{:016x}", form.fingerprint())),
                false => cx.clone(),
            };
            elicit_form(&cx, name, message, &form).await?
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            (elicit_url(cx, name, message, url).await?, None)
        }
        _ => {
            return Err(ErrorData::internal_error(
                "unknown kind of elicitation",
                None,
            ));
        }
    };
    let mut result = ElicitResult::new(action);
    result.content = content;
    Ok(ClientResult::ElicitResult(result))
}

async fn elicit_form(
    cx: &Cx,
    name: String,
    message: String,
    form: &Form,
) -> Result<(ElicitationAction, Option<Value>), ErrorData> {
    let answer = cx.ask_form(name, message, form).await;
    Ok(match answer.map_err(|error| ask_failed(&error))? {
        Answer::Accepted(content) => (ElicitationAction::Accept, Some(content)),
        Answer::Declined => (ElicitationAction::Decline, None),
        Answer::Cancelled => (ElicitationAction::Cancel, None),
    })
}

async fn elicit_url(
    cx: &Cx,
    name: String,
    message: String,
    url: String,
) -> Result<ElicitationAction, ErrorData> {
    // The handler itself checks whether the user has completed the action at the URL.
    let asked = cx.elicit_url(name, message, url, async || refrain::ok(true));
    let Err(error) = asked.await else {
        return Ok(ElicitationAction::Accept);
    };
    match error.as_ask() {
        Some(AskError::Declined { .. }) => Ok(ElicitationAction::Decline),
        Some(AskError::Cancelled { .. }) => Ok(ElicitationAction::Cancel),
        Some(error) => Err(ask_failed(error)),
        None => Err(internal(error)),
    }
}

async fn sample(
    cx: &Cx,
    name: String,
    params: &CreateMessageRequestParams,
) -> Result<ClientResult, ErrorData> {
    let params: SamplingParams = convert(params)?;
    let checked = params.check();
    checked.map_err(|reason| ErrorData::invalid_params(reason.to_string(), None))?;
    let answer = cx.sample(name, params).await;
    let answer = answer.map_err(|error| ask_failed(&error))?;
    let result = Box::new(convert(&answer)?);
    Ok(ClientResult::CreateMessageResult(result))
}

/// Converts between the types of Refrain and rmcp for one message.
pub(crate) fn convert<T: Serialize, U: DeserializeOwned>(from: &T) -> Result<U, ErrorData> {
    let json = serde_json::to_value(from);
    json.and_then(serde_json::from_value).map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// The error that the handler receives if its request got no answer.
fn ask_failed(error: &AskError) -> ErrorData {
    let AskError::Unsupported { capability, .. } = error else {
        return internal(error);
    };
    let required: Capabilities = [*capability].into_iter().collect();
    let code = ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY;
    let data = json!({"requiredCapabilities": required});
    ErrorData::new(code, error.to_string(), Some(data))
}

/// The error of a call whose handler failed.
pub(crate) fn call_failed(error: ErrorData) -> Error {
    let data = error.data.unwrap_or_default();
    if error.code == ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
        && let Some(capability) = required_capability(&data["requiredCapabilities"])
    {
        let name = capability.to_string();
        return AskError::Unsupported { name, capability }.into();
    }
    Error::rpc(error.code.0.into(), error.message, data)
}

/// The capability in a `requiredCapabilities` object. If there are several, the first in the order of `known`, where
/// `sampling.tools` precedes `sampling`, which contains it.
fn required_capability(required: &Value) -> Option<Capability> {
    let known = [
        (Capability::SamplingTools, "/sampling/tools"),
        (Capability::Sampling, "/sampling"),
        (Capability::Url, "/elicitation/url"),
        (Capability::Form, "/elicitation"),
        (Capability::Roots, "/roots"),
        (
            Capability::Tasks,
            "/extensions/io.modelcontextprotocol~1tasks",
        ),
    ];
    let mut known = known.into_iter();
    known.find_map(|(capability, path)| required.pointer(path).map(|_| capability))
}
