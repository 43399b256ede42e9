//! Notes about sessions.

use super::{SqliteStore, now};
use crate::sql::most;
use crate::store::StoreError;
use crate::time::micros;
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

const KEEP: &str = "
INSERT INTO refrain_notes (session, name, value, until) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (session, name) DO UPDATE SET value = excluded.value, until = excluded.until";

const FORGET: &str = "
DELETE FROM refrain_notes WHERE rowid IN (SELECT rowid FROM refrain_notes WHERE until <= ?1 LIMIT ?2)";

const NOTES: &str =
    "SELECT name, value FROM refrain_notes WHERE session = ?1 AND until > ?2 ORDER BY name";

impl SqliteStore {
    pub(super) async fn keep_note(
        &self,
        session: &str,
        name: &str,
        value: Vec<u8>,
        keep: Duration,
    ) -> Result<()> {
        let mut writer = self.file.writer().await?;
        sqlx::query(FORGET)
            .bind(now())
            .bind(most(crate::FORGOTTEN))
            .execute(&mut *writer)
            .await?;
        sqlx::query(KEEP)
            .bind(session)
            .bind(name)
            .bind(value)
            .bind(now() + micros(keep))
            .execute(&mut *writer)
            .await?;
        self.tell_noted(session);
        Ok(())
    }

    pub(super) async fn remove_note(&self, session: &str, name: &str) -> Result<bool> {
        let mut writer = self.file.writer().await?;
        let removed = sqlx::query_scalar(
            "DELETE FROM refrain_notes WHERE session = ?1 AND name = ?2 RETURNING until",
        )
        .bind(session)
        .bind(name)
        .fetch_optional(&mut *writer)
        .await?;
        let taken = removed.is_some_and(|until: i64| until > now());
        if taken {
            self.tell_noted(session);
        }
        Ok(taken)
    }

    pub(super) async fn notes_of(&self, session: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let notes = sqlx::query_as(NOTES)
            .bind(session)
            .bind(now())
            .fetch_all(&self.file.readers)
            .await?;
        Ok(notes)
    }

    fn tell_noted(&self, session: &str) {
        // An error means that nobody listens.
        let _ = self.noted.send(session.to_owned());
    }
}
