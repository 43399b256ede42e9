//! A replay log with sealed values.
//!
//! A value opens only for the server and the record that it was sealed for. Other values are rejected: otherwise anyone
//! with write access to the log could replace a reply.

use crate::services::{open_text, seal_text};
use refrain_core::{
    LogError, LogFuture, LogKey, Principal, RecordState, ReplayLog, Retention, Sealer,
};
use std::sync::Arc;

pub(crate) struct SealedLog {
    log: Arc<dyn ReplayLog>,
    sealer: Arc<Sealer>,
}

impl SealedLog {
    pub(crate) fn new(log: Arc<dyn ReplayLog>, sealer: Arc<Sealer>) -> Self {
        Self { log, sealer }
    }

    fn binding(&self, key: &LogKey) -> Vec<u8> {
        let audience = &self.sealer.options().audience;
        let (length, flow, name) = (audience.len(), key.flow(), key.name());
        format!("replay log of {length}:{audience} flow {flow} work {name}").into_bytes()
    }

    fn seal(&self, key: &LogKey, value: &str) -> String {
        seal_text(&self.sealer, &self.binding(key), value.as_bytes())
    }

    fn open(&self, key: &LogKey, value: &str) -> Result<String, LogError> {
        let unreadable = |source| LogError::Unreadable { source };
        let opened = open_text(&self.sealer, &self.binding(key), value);
        let opened = opened.map_err(|error| unreadable(error.into()))?;
        String::from_utf8(opened).map_err(|error| unreadable(error.into()))
    }
}

impl ReplayLog for SealedLog {
    fn begin<'a>(
        &'a self,
        key: &'a LogKey,
        account: &'a Principal,
        retention: Retention,
    ) -> LogFuture<'a, RecordState> {
        Box::pin(async move {
            Ok(match self.log.begin(key, account, retention).await? {
                RecordState::Done(value) => RecordState::Done(self.open(key, &value)?),
                state => state,
            })
        })
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        let sealed = self.seal(key, value);
        Box::pin(async move { self.log.finish(key, &sealed).await })
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        self.log.forget(key)
    }
}
