//! A request read, and answered from what is registered or begun as a round.

use crate::auth::Caller;
use crate::round::{Begin, begin};
use crate::server::Server;
use refrain_wire::{
    Call, CallKind, Meta, PROTOCOL_VERSION, RpcError, decode_call, decode_list, decode_meta,
};
use serde_json::value::RawValue;

/// A request whose method and parameters were read.
pub(crate) enum Request<'a> {
    Call(Call<'a>),
    List(List, Meta<'a>),
}

/// The methods that are answered from what is registered.
#[derive(Clone, Copy)]
pub(crate) enum List {
    Discover,
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl<'a> Request<'a> {
    /// Reads the parameters of the method.
    pub(crate) fn decode(method: &str, params: Option<&'a RawValue>) -> Result<Self, RpcError> {
        if let Some(kind) = CallKind::from_method(method) {
            return decode_call(kind, params).map(Self::Call);
        }
        let list = match method {
            "server/discover" => return Ok(Self::List(List::Discover, decode_meta(params)?)),
            "tools/list" => List::Tools,
            "prompts/list" => List::Prompts,
            "resources/list" => List::Resources,
            "resources/templates/list" => List::Templates,
            _ => return Err(RpcError::method_not_found(method)),
        };
        let params = decode_list(params)?;
        if params.cursor.is_some() {
            return Err(RpcError::invalid_params(
                "cursor: this server's lists have one page, and no cursor was given out",
            ));
        }
        Ok(Self::List(list, params.meta))
    }

    pub(crate) fn meta(&self) -> &Meta<'a> {
        match self {
            Self::Call(call) => &call.meta,
            Self::List(_, meta) => meta,
        }
    }

    /// The name or URI that the `Mcp-Name` header repeats.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Call(call) => Some(&call.target),
            Self::List(..) => None,
        }
    }

    /// Is the revision one that this server speaks?
    pub(crate) fn check_version(&self) -> Result<(), RpcError> {
        let requested = &self.meta().protocol_version;
        if requested == PROTOCOL_VERSION {
            return Ok(());
        }
        Err(RpcError::unsupported_version(
            requested,
            &[PROTOCOL_VERSION],
        ))
    }
}

impl Server {
    /// Answers a request, or begins the round that will.
    pub(crate) fn answer(&self, request: Request<'_>, caller: Caller) -> Begin {
        let lists = &self.0.lists;
        let list = match request {
            Request::Call(call) => return begin(self, &call, caller),
            Request::List(list, _) => list,
        };
        if let Err(missing) = self.0.access.allow(&caller, &[]) {
            return Begin::Forbidden(missing);
        }
        Begin::Reply(
            match list {
                List::Discover => &lists.discover,
                List::Tools => &lists.tools,
                List::Prompts => &lists.prompts,
                List::Resources => &lists.resources,
                List::Templates => &lists.templates,
            }
            .clone(),
        )
    }
}
