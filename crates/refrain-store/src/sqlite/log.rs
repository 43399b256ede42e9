//! The replay log, and tokens that are too large to travel.

use super::{SqliteStore, now};
use crate::sql::{BEGIN_RECORD, DELETE_RECORD, FINISH_RECORD, GET_RECORD, column};
use crate::store::StoreError;
use crate::time::micros;
use refrain_core::{Keep, LogKey, Recorded};
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

const SPILL: &str = "
INSERT INTO refrain_tokens (id, bytes, until) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, until = excluded.until";

impl SqliteStore {
    pub(super) async fn begin_record(&self, key: &LogKey, keep: Keep) -> Result<Recorded> {
        let mut writer = self.file.writer().await?;
        let begun = sqlx::query(BEGIN_RECORD)
            .bind(&key.flow().as_bytes()[..])
            .bind(key.name())
            .bind(column(keep.until))
            .bind(column(keep.now))
            .execute(&mut *writer)
            .await?;
        if begun.rows_affected() > 0 {
            return Ok(Recorded::Fresh);
        }
        // If it was taken back just now, it had begun all the same.
        let value: Option<Option<String>> = sqlx::query_scalar(GET_RECORD)
            .bind(&key.flow().as_bytes()[..])
            .bind(key.name())
            .fetch_optional(&mut *writer)
            .await?;
        Ok(value.flatten().map_or(Recorded::Begun, Recorded::Done))
    }

    pub(super) async fn finish_record(&self, key: &LogKey, value: &str) -> Result<()> {
        let mut writer = self.file.writer().await?;
        sqlx::query(FINISH_RECORD)
            .bind(&key.flow().as_bytes()[..])
            .bind(key.name())
            .bind(value)
            .execute(&mut *writer)
            .await?;
        Ok(())
    }

    pub(super) async fn forget_record(&self, key: &LogKey) -> Result<()> {
        let mut writer = self.file.writer().await?;
        sqlx::query(DELETE_RECORD)
            .bind(&key.flow().as_bytes()[..])
            .bind(key.name())
            .execute(&mut *writer)
            .await?;
        Ok(())
    }

    pub(super) async fn spill_token(&self, id: &str, token: Vec<u8>, keep: Duration) -> Result<()> {
        let mut writer = self.file.writer().await?;
        sqlx::query(SPILL)
            .bind(id)
            .bind(token)
            .bind(now() + micros(keep))
            .execute(&mut *writer)
            .await?;
        Ok(())
    }

    pub(super) async fn spilled_token(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let token =
            sqlx::query_scalar("SELECT bytes FROM refrain_tokens WHERE id = ?1 AND until > ?2")
                .bind(id)
                .bind(now())
                .fetch_optional(&self.file.readers)
                .await?;
        Ok(token)
    }
}
