//! The replay log, and tokens that are too large to travel.

use super::PgStore;
use super::text::{indexed, read, written};
use crate::sql::{BEGIN_RECORD, DELETE_RECORD, FINISH_RECORD, GET_RECORD, column};
use crate::store::StoreError;
use crate::time::micros;
use refrain_core::{Keep, LogKey, Recorded};
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

const SPILL: &str = concat!(
    "INSERT INTO refrain_tokens (id, bytes, until) VALUES ($1, $2, ",
    now!(),
    " + $3)
    ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, until = excluded.until"
);

const SPILLED: &str = concat!(
    "SELECT bytes FROM refrain_tokens WHERE id = $1 AND until > ",
    now!()
);

impl PgStore {
    pub(super) async fn begin_record(&self, key: &LogKey, keep: Keep) -> Result<Recorded> {
        let (flow, name) = (key.flow(), indexed("the name of a record", key.name())?);
        let begin = sqlx::query(BEGIN_RECORD)
            .bind(&flow.as_bytes()[..])
            .bind(&name)
            .bind(column(keep.until))
            .bind(column(keep.now));
        let get = sqlx::query_scalar(GET_RECORD)
            .bind(&flow.as_bytes()[..])
            .bind(&name);
        let run = self.database.run(async |connection| {
            if begin.execute(&mut *connection).await?.rows_affected() > 0 {
                return Ok(Recorded::Fresh);
            }
            // If it was taken back just now, it had begun all the same.
            let value: Option<Option<String>> = get.fetch_optional(connection).await?;
            let value = value.flatten().map(read);
            Ok(value.map_or(Recorded::Begun, Recorded::Done))
        });
        run.await
    }

    pub(super) async fn finish_record(&self, key: &LogKey, value: &str) -> Result<()> {
        let flow = key.flow();
        let finish = sqlx::query(FINISH_RECORD)
            .bind(&flow.as_bytes()[..])
            .bind(written(key.name()))
            .bind(written(value));
        self.database.execute(finish).await
    }

    pub(super) async fn forget_record(&self, key: &LogKey) -> Result<()> {
        let flow = key.flow();
        let delete = sqlx::query(DELETE_RECORD)
            .bind(&flow.as_bytes()[..])
            .bind(written(key.name()));
        self.database.execute(delete).await
    }

    pub(super) async fn spill_token(&self, id: &str, token: Vec<u8>, keep: Duration) -> Result<()> {
        let spill = sqlx::query(SPILL)
            .bind(indexed("the id of a token", id)?)
            .bind(token)
            .bind(micros(keep));
        self.database.execute(spill).await
    }

    pub(super) async fn spilled_token(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let get = sqlx::query_scalar(SPILLED).bind(written(id));
        self.database
            .run(async |connection| Ok(get.fetch_optional(connection).await?))
            .await
    }
}
