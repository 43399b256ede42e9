//! The replay log, and tokens that are too large to travel.

use super::PgStore;
use super::text::{indexed, read, written};
use crate::sql::column;
use crate::store::StoreError;
use crate::time::micros;
use refrain_core::{Keep, LogKey, Recorded};
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

/// A record whose time is over counts for nothing.
const BEGIN: &str = "
INSERT INTO refrain_log AS l (flow, name, value, until) VALUES ($1, $2, NULL, $3)
ON CONFLICT (flow, name) DO UPDATE SET value = NULL, until = excluded.until WHERE l.until < $4";

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
        let name = indexed("the name of a record", key.name())?;
        let mut connection = self.database.connection().await?;
        let begun = sqlx::query(BEGIN)
            .bind(&key.flow().as_bytes()[..])
            .bind(&name)
            .bind(column(keep.until))
            .bind(column(keep.now))
            .execute(&mut *connection)
            .await?;
        if begun.rows_affected() > 0 {
            connection.done();
            return Ok(Recorded::Fresh);
        }
        // If it was taken back just now, it had begun all the same.
        let value: Option<Option<String>> =
            sqlx::query_scalar("SELECT value FROM refrain_log WHERE flow = $1 AND name = $2")
                .bind(&key.flow().as_bytes()[..])
                .bind(&name)
                .fetch_optional(&mut *connection)
                .await?;
        connection.done();
        let value = value.flatten().map(read);
        Ok(value.map_or(Recorded::Begun, Recorded::Done))
    }

    pub(super) async fn finish_record(&self, key: &LogKey, value: &str) -> Result<()> {
        let mut connection = self.database.connection().await?;
        sqlx::query("UPDATE refrain_log SET value = $3 WHERE flow = $1 AND name = $2")
            .bind(&key.flow().as_bytes()[..])
            .bind(written(key.name()))
            .bind(written(value))
            .execute(&mut *connection)
            .await?;
        connection.done();
        Ok(())
    }

    pub(super) async fn forget_record(&self, key: &LogKey) -> Result<()> {
        let mut connection = self.database.connection().await?;
        sqlx::query("DELETE FROM refrain_log WHERE flow = $1 AND name = $2")
            .bind(&key.flow().as_bytes()[..])
            .bind(written(key.name()))
            .execute(&mut *connection)
            .await?;
        connection.done();
        Ok(())
    }

    pub(super) async fn spill_token(&self, id: &str, token: Vec<u8>, keep: Duration) -> Result<()> {
        let id = indexed("the id of a token", id)?;
        let mut connection = self.database.connection().await?;
        sqlx::query(SPILL)
            .bind(id)
            .bind(token)
            .bind(micros(keep))
            .execute(&mut *connection)
            .await?;
        connection.done();
        Ok(())
    }

    pub(super) async fn spilled_token(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let mut connection = self.database.connection().await?;
        let token = sqlx::query_scalar(SPILLED)
            .bind(written(id))
            .fetch_optional(&mut *connection)
            .await?;
        connection.done();
        Ok(token)
    }
}
