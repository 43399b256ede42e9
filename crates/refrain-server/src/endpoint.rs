//! The handler of the messages of an endpoint: a server, or a draft around it. Transports know no drafts.

use crate::dispatch::{Context, ParsedMessage, SessionContext, belongs_to_session, read};
use crate::drafts::DraftEndpoint;
use crate::response::Disposition;
use crate::server::Server;
use refrain_wire::drafts::Draft;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    Server(Server),
    Draft(Arc<DraftEndpoint>),
}

impl Endpoint {
    pub(crate) fn draft(draft: Draft, server: Server) -> Self {
        Self::Draft(Arc::new(DraftEndpoint::new(draft, server)))
    }

    pub(crate) fn server(&self) -> &Server {
        match self {
            Self::Server(server) => server,
            Self::Draft(draft) => &draft.server,
        }
    }

    /// Whether messages are translated. Then a message needs a session only if it names one, and its translation may depend on
    /// the session.
    pub(crate) fn translates(&self) -> bool {
        matches!(self, Self::Draft(_))
    }

    /// Parses a message.
    pub(crate) fn read<'a>(&self, bytes: &'a [u8], in_session: bool) -> ParsedMessage<'a> {
        // A draft call becomes a 2026-07-28 call only by translation.
        read(bytes, in_session || self.translates())
    }

    /// Whether a message that names a legacy session belongs to it, and is not translated.
    pub(crate) fn belongs_to_session(&self, bytes: &[u8], message: &ParsedMessage<'_>) -> bool {
        match self {
            Self::Server(_) => belongs_to_session(message),
            Self::Draft(draft) => !draft.needs_translation(bytes, message),
        }
    }

    /// Handles a message. It may be a 2026-07-28 request, even if the context has an open legacy session.
    pub(crate) async fn accept<'a>(
        &self,
        bytes: &[u8],
        message: ParsedMessage<'a>,
        mut context: Context<'_>,
    ) -> Disposition<'a> {
        let is_open = matches!(context.sessions, SessionContext::Open(_));
        if let Self::Draft(draft) = self
            && (!is_open || draft.needs_translation(bytes, &message))
        {
            return Box::pin(draft.accept(bytes, &message, context)).await;
        }
        if is_open && !belongs_to_session(&message) {
            context.sessions = SessionContext::None;
        }
        self.server().accept(message, context).await
    }
}
