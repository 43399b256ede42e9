//! Notes about sessions.

use super::PgStore;
use super::text::{indexed, read, written};
use crate::sql::{count, most};
use crate::store::{NewNote, Room, StoreError};
use crate::time::micros;
use sqlx::Connection;

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

/// Whoever looks how much room is left and takes some of it does so alone, until the transaction ends.
const ALONE: &str = "SELECT pg_advisory_xact_lock(1, hashtext($1))";

/// The other notes whose names begin alike.
const OTHERS: &str = concat!(
    "SELECT count(*), coalesce(sum(octet_length(name) - $4 + octet_length(value)), 0)::bigint FROM refrain_notes
    WHERE session = $1 AND starts_with(name, $2) AND name <> $3 AND until > ",
    now!()
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

const NAMES: &str = concat!(
    "SELECT session, name FROM refrain_notes WHERE session = ANY($1) AND until > ",
    now!(),
    " ORDER BY session, name"
);

const VALUE: &str = concat!(
    "SELECT value FROM refrain_notes WHERE session = $1 AND name = $2 AND until > ",
    now!()
);

impl PgStore {
    pub(super) async fn keep_note(&self, note: NewNote<'_>) -> Result<bool> {
        let (place, name, prefix) = (
            indexed("the place of a note", note.place)?,
            indexed("the name of a note", note.name)?,
            written(note.room.prefix),
        );
        let mut connection = self.database.connection().await?;
        sqlx::query(FORGET)
            .bind(most(crate::FORGOTTEN))
            .execute(&mut *connection)
            .await?;
        let mut tx = connection.begin().await?;
        if note.room != Room::ANY {
            sqlx::query(ALONE).bind(&place).execute(&mut *tx).await?;
            let (others, bytes): (i64, i64) = sqlx::query_as(OTHERS)
                .bind(&place)
                .bind(&prefix)
                .bind(&name)
                .bind(most(prefix.len()))
                .fetch_one(&mut *tx)
                .await?;
            let (others, bytes) = (count(others), count(bytes));
            if !note.room.holds(note.name, &note.value, others, bytes) {
                tx.rollback().await?;
                connection.done();
                return Ok(false);
            }
        }
        sqlx::query(KEEP)
            .bind(&place)
            .bind(&name)
            .bind(note.value)
            .bind(micros(note.keep))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        connection.done();
        self.database.tell_noted(note.place);
        Ok(true)
    }

    pub(super) async fn remove_note(&self, place: &str, name: &str) -> Result<bool> {
        let mut connection = self.database.connection().await?;
        let taken = sqlx::query_scalar(REMOVE)
            .bind(written(place))
            .bind(written(name))
            .fetch_optional(&mut *connection)
            .await?;
        connection.done();
        let taken = taken.unwrap_or(false);
        if taken {
            self.database.tell_noted(place);
        }
        Ok(taken)
    }

    pub(super) async fn notes_of(&self, place: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let mut connection = self.database.connection().await?;
        let notes: Vec<(String, Vec<u8>)> = sqlx::query_as(NOTES)
            .bind(written(place))
            .fetch_all(&mut *connection)
            .await?;
        connection.done();
        let notes = notes.into_iter();
        Ok(notes.map(|(name, value)| (read(name), value)).collect())
    }

    pub(super) async fn names_of_notes(&self, places: &[String]) -> Result<Vec<(String, String)>> {
        let places: Vec<_> = places.iter().map(|place| written(place)).collect();
        let mut connection = self.database.connection().await?;
        let names: Vec<(String, String)> = sqlx::query_as(NAMES)
            .bind(places)
            .fetch_all(&mut *connection)
            .await?;
        connection.done();
        let names = names.into_iter();
        Ok(names
            .map(|(place, name)| (read(place), read(name)))
            .collect())
    }

    pub(super) async fn value_of_note(&self, place: &str, name: &str) -> Result<Option<Vec<u8>>> {
        let mut connection = self.database.connection().await?;
        let value = sqlx::query_scalar(VALUE)
            .bind(written(place))
            .bind(written(name))
            .fetch_optional(&mut *connection)
            .await?;
        connection.done();
        Ok(value)
    }
}
