//! Notes about sessions.

use super::PgStore;
use super::text::{indexed, read, written};
use crate::sql::most;
use crate::store::StoreError;
use crate::time::micros;
use std::time::Duration;

type Result<T> = std::result::Result<T, StoreError>;

const KEEP: &str = concat!(
    "INSERT INTO refrain_notes (session, name, value, until) VALUES ($1, $2, $3, ",
    now!(),
    " + $4)
    ON CONFLICT (session, name) DO UPDATE SET value = excluded.value, until = excluded.until"
);

/// Others do the same at the same time: what they have is left to them.
const FORGET: &str = concat!(
    "DELETE FROM refrain_notes WHERE ctid = ANY (ARRAY(SELECT ctid FROM refrain_notes WHERE until <= ",
    now!(),
    " LIMIT $1 FOR UPDATE SKIP LOCKED))"
);

const REMOVE: &str = concat!(
    "DELETE FROM refrain_notes WHERE session = $1 AND name = $2 RETURNING until > ",
    now!()
);

const NOTES: &str = concat!(
    "SELECT name, value FROM refrain_notes WHERE session = $1 AND until > ",
    now!(),
    " ORDER BY name"
);

impl PgStore {
    pub(super) async fn keep_note(
        &self,
        session: &str,
        name: &str,
        value: Vec<u8>,
        keep: Duration,
    ) -> Result<()> {
        let (of, name) = (
            indexed("the id of a session", session)?,
            indexed("the name of a note", name)?,
        );
        let mut connection = self.database.connection().await?;
        sqlx::query(FORGET)
            .bind(most(crate::FORGOTTEN))
            .execute(&mut *connection)
            .await?;
        sqlx::query(KEEP)
            .bind(&of)
            .bind(&name)
            .bind(value)
            .bind(micros(keep))
            .execute(&mut *connection)
            .await?;
        connection.done();
        self.database.tell_noted(session);
        Ok(())
    }

    pub(super) async fn remove_note(&self, session: &str, name: &str) -> Result<bool> {
        let mut connection = self.database.connection().await?;
        let taken = sqlx::query_scalar(REMOVE)
            .bind(written(session))
            .bind(written(name))
            .fetch_optional(&mut *connection)
            .await?;
        connection.done();
        let taken = taken.unwrap_or(false);
        if taken {
            self.database.tell_noted(session);
        }
        Ok(taken)
    }

    pub(super) async fn notes_of(&self, session: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let mut connection = self.database.connection().await?;
        let notes: Vec<(String, Vec<u8>)> = sqlx::query_as(NOTES)
            .bind(written(session))
            .fetch_all(&mut *connection)
            .await?;
        connection.done();
        let notes = notes.into_iter();
        Ok(notes.map(|(name, value)| (read(name), value)).collect())
    }
}
